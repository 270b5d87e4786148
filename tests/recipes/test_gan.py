"""The recipes gan and sgan: steps, which network changes which, copies, learning, and what they refuse."""

import keras
import numpy as np
import pytest

from hookline.recipes.adversarial import Discriminate
from hookline.recipes.data.digits import digits
from hookline.recipes.data.points import ring
from hookline.recipes.gan import gan, sgan
from hookline.recipes.models.dcgan import dcgan
from hookline.recipes.models.gan_mlp import gan_mlp
from hookline.recipes.models.mlp import mlp
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import Data
from hookline.trainer.recipe import Recipe
from tests.support.adversarial import assign_slices, evaluator_of, loop_of, parts_of
from tests.support.networks import fingerprint
from tests.support.refusals import assert_refused
from tests.support.toy import values_of


@pytest.fixture(scope="module")
def data() -> Data:
    return ring(modes=2, radius=1.0, deviation=0.3, examples=2000)


@pytest.mark.full
def test_images_are_generated_and_shown():
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


def test_discriminator_trains_on_scores_before_its_sigmoid(data):
    def with_sigmoid(input_shape, role, latent_size):
        model = gan_mlp(input_shape, role=role, latent_size=latent_size, units=[8])
        model.layers[-1].activation = keras.activations.sigmoid  # the generator keeps its own
        return model

    recipe = gan(parts=parts_of(data, model=with_sigmoid))
    assert [each.name for each in recipe.objectives] == ["discriminator", "generator"]
    generator, discriminator = recipe.networks
    assert [each.name for each in discriminator.final_activations] == ["sigmoid"]
    assert discriminator.model.layers[-1].activation is keras.activations.linear
    assert generator.model.layers[-1].activation is keras.activations.sigmoid


def test_invalid_options_are_refused(data):
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


PAIRS = 2


def recipe_of(data, **options):
    keras.utils.set_random_seed(0)
    parts = options.pop("parts", None) or parts_of(data, units=[8])
    return sgan(parts=parts, **{"pairs": PAIRS, "latent_size": 4, "samples": 50, **options})


def named(recipe):
    return {network.name: network for network in recipe.networks}


@pytest.mark.full
def test_objectives_of_a_step_follow_order_of_paper(data):
    recipe = recipe_of(data)
    assert [(each.name, each.trains) for each in recipe.objectives] == [
        ("local_discriminators", ("discriminators",)),
        ("local_generators", ("generators",)),
        ("messengers", ("messengers",)),
        ("global_generator", ("global_generator",)),
        ("global_discriminator", ("global_discriminator",)),
    ]
    separate = recipe_of(data, stacked=False)
    assert len(separate.networks) == 3 * PAIRS + 2
    assert separate.objectives[2].trains == ("messenger_0", "messenger_1")


@pytest.mark.full
def test_local_networks_train_as_without_global_ones(data):
    whole, alone, local = recipe_of(data), recipe_of(data), ("generators", "discriminators")
    loop_of(whole, data, batch_size=24).run(0, 4)
    for network in alone.networks:
        network.fixed = network.name not in local
    part = Recipe(alone.networks, [each for each in alone.objectives if each.name.startswith("local_")])
    loop = loop_of(part, data, batch_size=24)
    before = {network.name: fingerprint(network) for network in alone.networks}
    loop.run(0, 4)
    assert {each.name for each in alone.networks if fingerprint(each) != before[each.name]} == {*local}
    for name in local:
        np.testing.assert_equal(values_of(named(whole)[name]), values_of(named(alone)[name]))


@pytest.mark.full
def test_global_discriminator_that_trains_local_generators_is_refused(data):
    """Plant what a public re-implementation does: its global step also trains the local generators."""

    class Published(Discriminate):
        def __init__(self, whole):
            self.__dict__.update(vars(whole))
            self.trains = (*whole.trains, *whole.game.generators.names)

    recipe = recipe_of(data)
    recipe.objectives[-1] = Published(recipe.objectives[-1])
    with pytest.raises(UserError, match="generators") as error:
        loop_of(recipe, data, batch_size=24)
    assert "global_discriminator" in str(error.value)


@pytest.mark.full
def test_stacked_and_separate_networks_train_alike_from_same_weights(data):
    parts = parts_of(data, units=[8], optimizer=lambda rate: keras.optimizers.SGD(10 * rate))
    options = {"parts": parts, "loss": "wasserstein", "gradient_penalty": 1.0}
    stacked, separate = (recipe_of(data, stacked=form, **options) for form in (True, False))
    ours, theirs = named(stacked), named(separate)
    for kind in ("generator", "discriminator", "messenger"):
        assign_slices(ours[f"{kind}s"].model, [theirs[f"{kind}_{place}"].model for place in range(PAIRS)])
    for name in ("global_generator", "global_discriminator"):
        theirs[name].model.set_weights(ours[name].model.get_weights())
    loops = [loop_of(recipe, data, batch_size=24) for recipe in (stacked, separate)]
    for loop in loops:
        loop.run(0, 2)
    found, expected = (  # a norm covers all that an objective changes, so it differs between the forms
        {name: value for name, value in loop.accumulators.read().items() if "grad_norm/" not in name} for loop in loops
    )
    assert found == pytest.approx(expected, abs=1e-5)
    for kind in ("generator", "discriminator", "messenger"):
        for place in range(PAIRS):
            for whole, one in zip(
                ours[f"{kind}s"].variables.values(), theirs[f"{kind}_{place}"].variables.values(), strict=True
            ):
                np.testing.assert_allclose(whole.numpy()[place].reshape(one.shape), one.numpy(), atol=1e-5)
    evaluations = [evaluator_of(recipe, data).run(3) for recipe in (stacked, separate)]
    assert evaluations[0] == pytest.approx(evaluations[1], abs=1e-4)


@pytest.mark.full
def test_messengers_are_current_copies_and_their_optimizer_is_reset(data):
    recipe = recipe_of(data, messenger_every=2, messenger_optimizer="reset")
    source, messenger = named(recipe)["discriminators"], named(recipe)["messengers"]
    messenger.optimizer = keras.optimizers.SGD(0.0)  # so that they stay as they were copied
    loop = loop_of(recipe, data, batch_size=24)
    for step, (copied, updates) in enumerate(((True, 1), (False, 2), (True, 1))):
        before = messenger.model.get_weights()
        loop.run(step, 1)
        np.testing.assert_equal(messenger.model.get_weights(), source.model.get_weights() if copied else before)
        assert copied or not all(np.array_equal(a, b) for a, b in zip(source.model.get_weights(), before, strict=True))
        assert (int(messenger.optimizer.iterations), int(source.optimizer.iterations)) == (updates, step + 1)


@pytest.mark.full
def test_global_generator_learns_from_local_pairs(data):
    recipe = recipe_of(data, parts=parts_of(data), messenger_every=5, samples=1000)
    loop, evaluator = loop_of(recipe, data, batch_size=192), evaluator_of(recipe, data)
    loop.run(0, 200)
    after = evaluator.run(200)
    samples = evaluator.collected("local_generators")["samples"]
    assert len(np.unique(samples.round(6))) > 0.99 * samples.size  # pairs draw differently
    assert after["global_generator/metric/coverage"] > 0.75
    assert after["local_generators/metric/coverage"] > 0.7
    assert after["local_generators/metric/best_coverage"] >= after["local_generators/metric/coverage"]


@pytest.mark.full
def test_networks_that_cannot_be_stacked_are_separate_or_refused(data):
    assert_refused("25 examples .* a multiple of 2", loop_of, recipe_of(data), data, batch_size=25)
    images = digits()
    conv = parts_of(images, model=dcgan, filters=[2, 4])
    assert len(recipe_of(images, parts=conv).networks) == 3 * PAIRS + 2
    assert_refused("dcgan cannot be stacked: .* task.stacked=false", recipe_of, images, parts=conv, stacked=True)
    clipped = parts_of(data, units=[8], optimizer=lambda rate: keras.optimizers.Adam(rate, clipnorm=1.0))
    assert len(recipe_of(data, parts=clipped).networks) == 3 * PAIRS + 2
    assert_refused("clipping by the norm", recipe_of, data, parts=clipped, stacked=True)
    factored = parts_of(data, units=[8], optimizer=keras.optimizers.Adafactor)
    assert_refused("Adafactor", recipe_of, data, parts=factored, stacked=True)
