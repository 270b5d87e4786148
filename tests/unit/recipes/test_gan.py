"""The recipe gan: what is built, what a step does, that it learns, and what it refuses."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from recipes.data.digits import digits
from recipes.data.gaussian_mixture import ring
from recipes.data.toy_points import toy_points
from recipes.gan import gan
from recipes.models.dcgan import dcgan
from recipes.models.gan_mlp import gan_mlp
from recipes.models.mlp import mlp
from tests.support.adversarial import evaluator_of, loop_of, parts_of
from trainer.errors import UserError
from trainer.input.data import Data


@pytest.fixture(scope="module")
def data() -> Data:
    return ring(modes=2, radius=1.0, deviation=0.3, examples=2000)


def test_two_networks_play_in_order_with_optimizers_of_their_own(data):
    recipe = gan(parts=parts_of(data), discriminator_learning_rate=0.25, discriminator_updates=3)
    generator, discriminator = recipe.networks
    assert [(each.name, each.changes, each.updates) for each in recipe.objectives] == [
        ("discriminator", ("discriminator",), 3),
        ("generator", ("generator",), 1),
    ]
    assert generator.model.input_shape == (None, 16)
    assert float(generator.optimizer.learning_rate) == pytest.approx(0.005)
    assert float(discriminator.optimizer.learning_rate) == 0.25


def test_a_discriminator_that_ends_in_a_sigmoid_plays_with_the_scores_before_it(data):
    def with_sigmoid(input_shape, role, latent_size):
        model = gan_mlp(input_shape, role=role, latent_size=latent_size, units=[8])
        if role == "discriminator":
            model.layers[-1].activation = keras.activations.sigmoid
        return model

    _, discriminator = gan(parts=parts_of(data, model=with_sigmoid)).networks
    (taken,) = discriminator.final_activations
    assert taken.name == "sigmoid"
    assert discriminator.model.layers[-1].activation is keras.activations.linear


def test_a_step_updates_the_discriminator_as_often_as_asked(data):
    recipe = gan(parts=parts_of(data), discriminator_updates=3)
    loop_of(recipe, data, batch_size=96).run(0, 2)
    generator, discriminator = recipe.networks
    assert int(discriminator.optimizer.iterations) == 6
    assert int(generator.optimizer.iterations) == 2


@pytest.mark.parametrize("loss", ["non_saturating", "hinge"])
def test_it_learns_a_wide_mixture(data, loss):
    recipe = gan(parts=parts_of(data), loss=loss, latent_size=4)
    loop, evaluator = loop_of(recipe, data, batch_size=128), evaluator_of(recipe, data)
    before = evaluator.run(0)["generator/metric/coverage"]
    loop.run(0, 300)
    after = evaluator.run(300)
    assert before < 0.6
    assert after["generator/metric/coverage"] > 0.8
    assert after["generator/metric/modes"] == 2.0


def test_it_learns_by_the_wasserstein_loss(data):
    recipe = gan(parts=parts_of(data), loss="wasserstein", gradient_penalty=1.0, latent_size=4, discriminator_updates=2)
    loop, evaluator = loop_of(recipe, data, batch_size=128), evaluator_of(recipe, data)
    loop.run(0, 250)
    after = evaluator.run(250)
    assert after["generator/metric/coverage"] > 0.6
    assert "discriminator/loss/gradient_penalty" in after


def test_an_evaluation_repeats_exactly_and_shows_the_samples(data):
    recipe = gan(parts=parts_of(data), samples=100)
    loop_of(recipe, data, batch_size=64)
    evaluator = evaluator_of(recipe, data)
    assert evaluator.run(0) == evaluator.run(5)
    collected = evaluator.collected("generator")
    assert collected["samples"].shape == (1, 100, 2)
    (picture,) = recipe.objectives[1].pictures(collected, no_examples).values()
    assert picture.ndim == 3
    assert picture.min() >= 0.0
    assert picture.max() <= 1.0
    assert recipe.objectives[1].pictures({}, no_examples) == {}


def no_examples(positions):
    pytest.fail("pictures need no more than what was collected")


def test_images_are_generated_and_drawn():
    data = digits()
    recipe = gan(parts=parts_of(data, model=dcgan, filters=[4, 8]), samples=70)
    loop_of(recipe, data, batch_size=32).run(0, 2)
    evaluator = evaluator_of(recipe, data)
    values = evaluator.run(2)
    assert not any("coverage" in name for name in values)
    assert np.isfinite(list(values.values())).all()
    (picture,) = recipe.objectives[1].pictures(evaluator.collected("generator"), no_examples).values()
    assert picture.shape[0] > 8 * 8


def test_data_that_nothing_judges_are_generated_all_the_same():
    data = toy_points()
    recipe = gan(parts=parts_of(data))
    loop_of(recipe, data, batch_size=32).run(0, 1)
    assert set(evaluator_of(recipe, data).run(1)) >= {"generator/loss/total", "discriminator/loss/real"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hing"}, "Unknown loss 'hing'. Did you mean 'hinge'"),
        ({"noise": "gaussian"}, "Unknown noise 'gaussian'.*normal"),
        ({"penalty": "r2", "gradient_penalty": 1.0}, "Unknown penalty 'r2'"),
        ({"gradient_penalty": -1.0}, "gradient_penalty=-1.0 received. Expected a number of 0 or more"),
        ({"gradient_penalty": float("nan")}, "gradient_penalty=nan received"),
        ({"loss": "wasserstein"}, "gradient_penalty=0 received with loss=wasserstein.*such as 10"),
        ({"discriminator_updates": 0}, "discriminator_updates=0 received. Expected a whole number of at least 1"),
        ({"discriminator_updates": 1.5}, "discriminator_updates=1.5 received"),
        ({"discriminator_learning_rate": 0.0}, "discriminator_learning_rate=0.0 received"),
        ({"discriminator_learning_rate": float("inf")}, "discriminator_learning_rate=inf received"),
        ({"latent_size": 0}, "latent_size=0 received. Expected a whole number of at least 1"),
        ({"samples": 1}, "samples=1 received. Expected a whole number of at least 2"),
        ({"classifier": "runs/x"}, "task.classifier=runs/x received, but data=ring has no images"),
    ],
)
def test_a_wrong_option_is_one_clear_line(data, options, message):
    with pytest.raises(UserError, match=message) as error:
        gan(parts=parts_of(data), **options)
    assert "\n" not in str(error.value)


def test_a_model_for_something_else_is_refused(data):
    def classifier(input_shape, classes, **ignored):
        return mlp(input_shape, classes, units=[4])

    with pytest.raises(UserError, match=r"'mlp' maps \(None, 2\) to \(None, 1\). Expected \(None, 16\) to \(None, 2\)"):
        gan(parts=parts_of(data, model=classifier))


def test_a_penalty_on_scores_that_mix_examples_is_refused():
    with pytest.raises(UserError, match="depend on one example alone, but the discriminator has batch norm"):
        gan(parts=parts_of(digits(), model=dcgan), gradient_penalty=1.0)
    gan(parts=parts_of(digits(), model=dcgan, batch_norm="generator"), gradient_penalty=1.0)


def test_a_batch_that_the_updates_do_not_divide_is_refused(data):
    recipe = gan(parts=parts_of(data), discriminator_updates=3)
    with pytest.raises(UserError, match="64"):
        loop_of(recipe, data, batch_size=64)


def test_a_network_keeps_the_statistics_that_another_objective_makes_it_run_with():
    data = digits()
    recipe = gan(parts=parts_of(data, model=dcgan, filters=[4, 8]))
    loop = loop_of(recipe, data, batch_size=32)
    discriminator = recipe.networks[1]
    moving = [v for v in discriminator.state_variables.values() if isinstance(v, keras.Variable)]
    assert moving  # it has batch norm
    only_generator = recipe.objectives[1]
    discriminator.fixed = True
    alone = loop_of(type(recipe)(recipe.networks, [only_generator]), data, batch_size=32)
    before = [v.numpy() for v in moving]
    alone.run(0, 2)
    for variable, value in zip(moving, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    loop.run(2, 1)
    assert not all(np.array_equal(v.numpy(), value) for v, value in zip(moving, before, strict=True))
