"""The recipe gan: what is built, what a step does, that it learns, and what it refuses."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.recipes.data.digits import digits
from hookline.recipes.data.points import ring
from hookline.recipes.gan import gan
from hookline.recipes.models.dcgan import dcgan
from hookline.recipes.models.gan_mlp import gan_mlp
from hookline.recipes.models.mlp import mlp
from hookline.trainer.input.data import Data
from tests.support.adversarial import evaluator_of, loop_of, parts_of
from tests.support.refusals import assert_refused


@pytest.fixture(scope="module")
def data() -> Data:
    return ring(modes=2, radius=1.0, deviation=0.3, examples=2000)


def test_a_step_updates_the_discriminator_as_often_as_asked(data):
    recipe = gan(parts=parts_of(data), discriminator_learning_rate=0.25, discriminator_updates=3)
    assert [each.name for each in recipe.objectives] == ["discriminator", "generator"]
    loop_of(recipe, data, batch_size=96).run(0, 2)
    generator, discriminator = recipe.networks
    assert int(discriminator.optimizer.iterations) == 6
    assert int(generator.optimizer.iterations) == 2
    assert float(generator.optimizer.learning_rate) == pytest.approx(0.005)
    assert float(discriminator.optimizer.learning_rate) == 0.25


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"loss": "hinge"}, id="hinge"),
        pytest.param(
            {"loss": "wasserstein", "gradient_penalty": 1.0, "discriminator_updates": 2},
            id="wasserstein",
            marks=pytest.mark.full,
        ),
    ],
)
def test_it_learns_a_wide_mixture(data, options):
    recipe = gan(parts=parts_of(data), latent_size=4, **options)
    loop, evaluator = loop_of(recipe, data, batch_size=128), evaluator_of(recipe, data)
    before = evaluator.run(0)
    assert evaluator.run(5) == before  # an evaluation repeats exactly
    loop.run(0, 300)
    after = evaluator.run(300)
    assert before["generator/metric/coverage"] < 0.6 < after["generator/metric/coverage"]
    assert after["generator/metric/modes"] == 2.0
    assert ("discriminator/loss/gradient_penalty" in after) == ("gradient_penalty" in options)


@pytest.mark.full
def test_images_are_generated_and_drawn():
    data = digits()
    recipe = gan(parts=parts_of(data, model=dcgan, filters=[4, 8]), samples=70)
    loop_of(recipe, data, batch_size=32).run(0, 2)
    evaluator = evaluator_of(recipe, data)
    values = evaluator.run(2)
    assert not any("coverage" in name for name in values)
    assert np.isfinite(list(values.values())).all()
    (picture,) = recipe.objectives[1].show(evaluator.collected("generator"), None).pictures.values()
    assert picture.ndim == 3
    assert picture.shape[0] > 8 * 8
    assert 0.0 <= picture.min() <= picture.max() <= 1.0
    assert recipe.objectives[1].show({}, None).pictures == {}


def test_a_discriminator_plays_with_the_scores_before_its_sigmoid(data):
    def with_sigmoid(input_shape, role, latent_size):
        model = gan_mlp(input_shape, role=role, latent_size=latent_size, units=[8])
        model.layers[-1].activation = keras.activations.sigmoid  # of generated points, it is theirs to keep
        return model

    generator, discriminator = gan(parts=parts_of(data, model=with_sigmoid)).networks
    assert [each.name for each in discriminator.final_activations] == ["sigmoid"]
    assert discriminator.model.layers[-1].activation is keras.activations.linear
    assert generator.model.layers[-1].activation is keras.activations.sigmoid


def test_a_wrong_option_is_one_clear_line(data):
    def classifier(input_shape, classes, **ignored):
        return mlp(input_shape, classes, units=[4])

    for options, message in (
        ({"loss": "hing"}, "'hinge'"),
        ({"loss": "wasserstein"}, "gradient_penalty=0 received with loss=wasserstein"),
        ({"classifier": "runs/x"}, "task.classifier=runs/x"),
        ({"parts": parts_of(data, model=classifier)}, r"'mlp' maps \(None, 2\) to \(None, 1\)"),
    ):
        assert_refused(message, gan, **{"parts": parts_of(data), **options})
    assert_refused("64", loop_of, gan(parts=parts_of(data), discriminator_updates=3), data, batch_size=64)
    assert_refused("batch norm", gan, parts=parts_of(digits(), model=dcgan), gradient_penalty=1.0)
    gan(parts=parts_of(digits(), model=dcgan, batch_norm="generator"), gradient_penalty=1.0)
