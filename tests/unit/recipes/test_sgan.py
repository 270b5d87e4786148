"""The recipe sgan: who changes whom in the real traced step, copies, and both forms of the local pairs."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from recipes.adversarial.objectives import Discriminate
from recipes.data.digits import digits
from recipes.data.gaussian_mixture import ring
from recipes.models.dcgan import dcgan
from recipes.sgan import sgan
from tests.support.adversarial import assign_slices, evaluator_of, loop_of, parts_of
from trainer.errors import UserError
from trainer.input.data import Data
from trainer.recipe import Recipe
from trainer.step.copy_network import fingerprint, snapshot

PAIRS = 3
LOCAL = {"generators", "discriminators"}
GLOBAL = {"messengers", "global_generator", "global_discriminator"}


@pytest.fixture(scope="module")
def data() -> Data:
    return ring(modes=2, radius=1.0, deviation=0.3, examples=2000)


def recipe_of(data, **options):
    keras.utils.set_random_seed(0)
    parts = options.pop("parts", None) or parts_of(data, units=[8])
    return sgan(parts=parts, **{"pairs": PAIRS, "latent_size": 4, "samples": 50, **options})


def named(recipe):
    return {network.name: network for network in recipe.networks}


def part_of(recipe, *objectives):
    """The recipe with some of its objectives; networks that none of them trains are fixed."""
    chosen = [each for each in recipe.objectives if each.name in objectives]
    trained = {name for each in chosen for name in each.changes}
    for network in recipe.networks:
        network.fixed = network.name not in trained
    return Recipe(recipe.networks, chosen)


def fingerprints(recipe):
    return {network.name: fingerprint(network) for network in recipe.networks}


def changed(recipe, loop, start, steps):
    before = fingerprints(recipe)
    loop.run(start, steps)
    after = fingerprints(recipe)
    return {name for name in before if before[name] != after[name]}


def test_the_objectives_of_a_step_stand_in_the_papers_order(data):
    recipe = recipe_of(data)
    assert [(each.name, each.changes) for each in recipe.objectives] == [
        ("local_discriminators", ("discriminators",)),
        ("local_generators", ("generators",)),
        ("messengers", ("messengers",)),
        ("global_generator", ("global_generator",)),
        ("global_discriminator", ("global_discriminator",)),
    ]
    assert len(recipe_of(data, stacked="auto").networks) == len(recipe_of(data, stacked=True).networks) == 5
    separate = recipe_of(data, stacked=False)
    assert len(separate.networks) == 3 * PAIRS + 2
    assert separate.objectives[2].changes == ("messenger_0", "messenger_1", "messenger_2")


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("xla", [False, True])
def test_a_global_update_leaves_every_byte_of_the_local_networks(data, stacked, xla):
    recipe = recipe_of(data, stacked=stacked, messenger_every=1)
    part = part_of(recipe, "messengers", "global_generator", "global_discriminator")
    moved = changed(recipe, loop_of(part, data, batch_size=24, xla=xla), 0, 2)
    assert {name.rstrip("_012").removesuffix("s") for name in moved} == {name.rstrip("s") for name in GLOBAL}
    assert len(moved) == (3 if stacked else PAIRS + 2)


def test_a_local_update_leaves_every_byte_of_the_global_networks(data):
    recipe = recipe_of(data)
    part = part_of(recipe, "local_discriminators", "local_generators")
    assert changed(recipe, loop_of(part, data, batch_size=24), 0, 2) == LOCAL


@pytest.mark.parametrize("objective", ["local_discriminators", "local_generators", "messengers", "global_generator"])
def test_batch_norm_of_other_networks_stands_still(objective):
    data = digits()
    recipe = recipe_of(data, parts=parts_of(data, model=dcgan, filters=[2, 4]), pairs=2, messenger_every=1)
    part = part_of(recipe, objective)
    moved = changed(recipe, loop_of(part, data, batch_size=8), 0, 1)
    assert moved == set(part.objectives[0].changes)


def test_the_local_pairs_become_what_they_become_without_the_global_ones(data):
    whole, alone = recipe_of(data), recipe_of(data)
    loop_of(whole, data, batch_size=24).run(0, 4)
    loop_of(part_of(alone, "local_discriminators", "local_generators"), data, batch_size=24).run(0, 4)
    for name in LOCAL:
        for key, value in snapshot(named(alone)[name]).items():
            np.testing.assert_array_equal(snapshot(named(whole)[name])[key], value, err_msg=key)


def test_a_global_discriminator_that_trains_local_generators_is_refused(data):
    """Plant what a public re-implementation does: its global step goes on into the local generators."""

    class Published(Discriminate):
        def __init__(self, whole):
            self.__dict__.update(vars(whole))
            self.changes = (*whole.changes, *whole.game.generators.names)

    recipe = recipe_of(data)
    recipe.objectives[-1] = Published(recipe.objectives[-1])
    with pytest.raises(UserError, match="generators") as error:
        loop_of(recipe, data, batch_size=24)
    assert "global_discriminator" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hidden_write_to_a_local_generator_is_refused(data):
    class Hidden(Discriminate):
        def __init__(self, whole, network):
            self.__dict__.update(vars(whole))
            self.network = network

        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            self.network.model.trainable_variables[0].value.assign_add(tf.ones([PAIRS, 4, 8]))
            return output

    recipe = recipe_of(data)
    recipe.objectives[-1] = Hidden(recipe.objectives[-1], named(recipe)["generators"])
    with pytest.raises(UserError, match="global_discriminator.*generators"):
        loop_of(recipe, data, batch_size=24)


def test_both_forms_do_the_same_with_the_same_weights(data):
    parts = parts_of(data, units=[8], optimizer=lambda rate: keras.optimizers.SGD(10 * rate))
    options = {"parts": parts, "loss": "wasserstein", "gradient_penalty": 1.0, "discriminator_updates": 2}
    stacked, separate = (recipe_of(data, stacked=form, **options) for form in (True, False))
    ours, theirs = named(stacked), named(separate)
    for kind in ("generator", "discriminator", "messenger"):
        assign_slices(ours[f"{kind}s"].model, [theirs[f"{kind}_{place}"].model for place in range(PAIRS)])
    for name in ("global_generator", "global_discriminator"):
        theirs[name].model.set_weights(ours[name].model.get_weights())
    loops = [loop_of(recipe, data, batch_size=24) for recipe in (stacked, separate)]
    for loop in loops:
        loop.run(0, 3)
    found, expected = (  # a norm is that of all that an objective changes, so the two forms have others
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


def weights(network):
    return [variable.numpy() for variable in network.variables.values()]


@pytest.mark.parametrize(
    ("every", "updates", "due"), [(1, 1, [1, 1, 1, 1]), (3, 1, [1, 0, 0, 1]), (2, 2, [1, 0, 1, 0])]
)
@pytest.mark.parametrize("stacked", [True, False])
def test_messengers_are_copies_of_the_moment_and_go_their_own_way(data, every, updates, due, stacked):
    recipe = recipe_of(
        data, messenger_every=every, discriminator_updates=updates, messenger_optimizer="keep", stacked=stacked
    )
    networks = named(recipe)
    pairs = (
        [("discriminators", "messengers")]
        if stacked
        else [(f"discriminator_{n}", f"messenger_{n}") for n in range(PAIRS)]
    )
    for _, messenger in pairs:
        networks[messenger].optimizer = keras.optimizers.SGD(0.0)  # so that it stays as it was copied
    loop = loop_of(recipe, data, batch_size=24)
    for step, copied in enumerate(due):
        before = {messenger: weights(networks[messenger]) for _, messenger in pairs}
        loop.run(step, 1)
        for source, messenger in pairs:
            expected = weights(networks[source]) if copied else before[messenger]
            for found, value in zip(weights(networks[messenger]), expected, strict=True):
                np.testing.assert_array_equal(found, value)
            assert copied or not all(
                np.array_equal(a, b) for a, b in zip(weights(networks[source]), before[messenger], strict=True)
            )


@pytest.mark.parametrize(("option", "expected"), [("copy", [2, 3, 4]), ("reset", [1, 2, 1]), ("keep", [1, 2, 3])])
def test_the_messengers_optimizer_is_copied_reset_or_kept(data, option, expected):
    recipe = recipe_of(data, messenger_optimizer=option, messenger_every=2)
    loop = loop_of(recipe, data, batch_size=24)
    networks = named(recipe)
    found = []
    for step in range(3):
        loop.run(step, 1)
        found.append(int(networks["messengers"].optimizer.iterations))
    assert int(networks["discriminators"].optimizer.iterations) == 3
    assert found == expected  # a copy is made in the first and the third step


def test_the_global_generator_learns_from_the_local_pairs(data):
    recipe = recipe_of(data, parts=parts_of(data), messenger_every=5, samples=1000)
    loop, evaluator = loop_of(recipe, data, batch_size=192), evaluator_of(recipe, data)
    loop.run(0, 300)
    after = evaluator.run(300)
    assert after["global_generator/metric/coverage"] > 0.75
    assert after["local_generators/metric/coverage"] > 0.7
    best = after["local_generators/metric/best_coverage"]
    assert best >= after["local_generators/metric/coverage"]
    assert after["local_generators/metric/best_modes"] == 2.0


def test_pairs_differ_and_draw_differently(data):
    recipe = recipe_of(data)
    loop_of(recipe, data, batch_size=24).run(0, 1)
    evaluator = evaluator_of(recipe, data)
    evaluator.run(1)
    samples = evaluator.collected("local_generators")["samples"]
    assert samples.shape == (PAIRS, 50, 2)
    assert len(np.unique(samples.round(6))) > 0.99 * samples.size
    drawn = [each.pictures(evaluator.collected(each.name), None) for each in recipe.objectives]
    assert [list(each) for each in drawn] == [[], ["local_generators_samples"], [], ["global_generator_samples"], []]


def test_a_run_repeats_exactly_and_depends_on_the_seed(data):
    runs = []
    for seed in (0, 0, 1):
        recipe = recipe_of(data)
        loop_of(recipe, data, batch_size=24, seed=seed).run(0, 3)
        runs.append(fingerprints(recipe))
    assert runs[0] == runs[1]
    assert all(runs[0][name] != runs[2][name] for name in runs[0])


def test_a_run_cut_in_two_is_the_same(data):
    whole, cut = recipe_of(data, messenger_every=3), recipe_of(data, messenger_every=3)
    loop_of(whole, data, batch_size=24).run(0, 5)
    loop_of(cut, data, batch_size=24).run(0, 2)
    again = recipe_of(data, messenger_every=3)  # another process would build it anew
    second = loop_of(again, data, batch_size=24)
    for old, new in zip(cut.networks, again.networks, strict=True):
        for name, variable in {**new.variables, **new.optimizer_variables}.items():
            variable.assign({**old.variables, **old.optimizer_variables}[name].numpy())
    second.run(2, 3)
    assert fingerprints(again) == fingerprints(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": 1}, "pairs=1 received. Expected a whole number of at least 2"),
        ({"pairs": 2.5}, "pairs=2.5 received"),
        ({"stacked": "yes"}, r"stacked=yes received. Expected true, false, or null \(auto\)"),
        ({"stacked": 1}, "stacked=1 received"),
        ({"messenger_optimizer": "rest"}, "Unknown messenger_optimizer 'rest'. Did you mean 'reset'"),
        ({"messenger_every": 0}, "messenger_every=0 received. Expected a whole number of at least 1"),
        ({"loss": "wasserstein"}, "gradient_penalty=0 received with loss=wasserstein"),
    ],
)
def test_a_wrong_option_is_one_clear_line(data, options, message):
    with pytest.raises(UserError, match=message) as error:
        recipe_of(data, **options)
    assert "\n" not in str(error.value)


def test_a_batch_that_the_pairs_do_not_divide_is_refused(data):
    with pytest.raises(UserError, match="25 examples are left for an update .* Expected a multiple of 3"):
        loop_of(recipe_of(data), data, batch_size=25)


def test_what_cannot_be_stacked_is_built_separately_and_refused_where_it_is_asked_for(data):
    images = digits()
    conv = parts_of(images, model=dcgan, filters=[2, 4])
    assert len(recipe_of(images, parts=conv, pairs=2).networks) == 8
    message = "stacked=true received, but dcgan cannot be stacked: [^.]*. Expected task.stacked=false, or auto.$"
    with pytest.raises(UserError, match=message):
        recipe_of(images, parts=conv, stacked=True)
    clipped = parts_of(data, units=[8], optimizer=lambda rate: keras.optimizers.Adam(rate, clipnorm=1.0))
    assert len(recipe_of(data, parts=clipped).networks) == 3 * PAIRS + 2
    with pytest.raises(UserError, match="stacked=true received, but clipping by the norm of a gradient would mix"):
        recipe_of(data, parts=clipped, stacked=True)
    factored = parts_of(data, units=[8], optimizer=keras.optimizers.Adafactor)
    with pytest.raises(UserError, match="stacked=true received, but the optimizer Adafactor may mix"):
        recipe_of(data, parts=factored, stacked=True)
