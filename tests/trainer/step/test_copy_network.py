"""A copy between networks is deep: nothing that happens to one of them reaches the other."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.step.copy_network import copy_network, moving_variables
from tests.support.networks import fingerprint
from tests.support.pairs import Judge, discriminator, pairs_loop
from tests.support.refusals import assert_refused
from tests.support.toy import network_of, values_of

OPTIMIZERS = {
    "amsgrad_ema": lambda: keras.optimizers.Adam(0.01, amsgrad=True, use_ema=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, initial_accumulator_value=0.2),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8.0),
}


def filled(name, optimizer=None):
    """Return a network whose variables and moving optimizer variables all differ from their initial values."""
    network = discriminator(name, optimizer)
    for index, variable in enumerate((*network.variables.values(), *moving_variables(network).values())):
        variable.value.assign_add((2 + index) * tf.ones_like(variable.value))
    return network


def disturb(network):
    """Change every variable in place, in each way in which TensorFlow writes into an existing buffer."""
    for variable in (*network.variables.values(), *network.optimizer_variables.values()):
        value = variable.value
        value.assign_add(tf.ones_like(value))
        if value.shape.rank:
            value.scatter_add(tf.IndexedSlices(tf.ones_like(value)[:1], tf.constant([0])))
            value[0].assign(value[0] + tf.ones_like(value[0]))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_copy_has_every_value_and_is_independent_afterwards(kind):
    source, target = filled("source", OPTIMIZERS[kind]()), discriminator("target", OPTIMIZERS[kind]())
    assert copy_network(source, target, optimizer="copy") == []  # outside a step, it copies immediately
    np.testing.assert_equal(list(values_of(source).values()), list(values_of(target).values()))
    for still, moved in ((target, source), (source, target)):
        before, of_moved = fingerprint(still), values_of(moved)
        disturb(moved)
        assert fingerprint(still) == before
        for name, value in values_of(moved).items():
            assert not np.array_equal(value, of_moved[name]), name


@pytest.mark.parametrize("kind", ["ftrl", "loss_scale"])
def test_optimizer_slots_are_kept_or_reset_as_requested(kind):
    source, target = filled("source", keras.optimizers.SGD(0.1)), filled("target", OPTIMIZERS[kind]())
    before = values_of(target)
    copy_network(source, target, optimizer="keep")
    kept = values_of(target)
    np.testing.assert_equal(*({n: v for n, v in each.items() if n.startswith("optimizer/")} for each in (kept, before)))
    weights = [
        [values[name] for name in each.variables] for values, each in ((values_of(source), source), (kept, target))
    ]
    np.testing.assert_equal(*weights)
    copy_network(source, target, optimizer="reset")
    fresh = discriminator("target", OPTIMIZERS[kind]())
    np.testing.assert_equal(*([v.numpy() for v in each.optimizer.variables] for each in (target, fresh)))
    after = values_of(target)
    assert any(not np.array_equal(after[name], before[name]) for name in after if name.startswith("optimizer/"))


class Follow(Judge):
    slots = "copy"

    def begin(self, networks):
        return copy_network(networks["source"], networks["messenger"], optimizer=self.slots)


@pytest.mark.full
@pytest.mark.parametrize(("slots", "xla"), [("copy", False), pytest.param("reset", True, marks=pytest.mark.long)])
def test_messenger_starts_every_traced_step_from_its_source(slots, xla):
    """After every step, the messenger is one small update of its own away from the current source."""
    source, messenger, twin = map(discriminator, ("source", "messenger", "twin"))
    copy_network(source, twin, optimizer="copy")
    follow = Follow("follow", "messenger", [])
    follow.slots = slots
    loop = pairs_loop([source, messenger], [Judge("judge", "source", []), follow], xla=xla)
    by_hand = pairs_loop([twin], [Judge("judge", "twin", [])], xla=xla)  # of one name, with the same draws
    for step in range(3):
        loop.run(step, 1)
        by_hand.run(step, 1)
        for mine, others in zip(values_of(source).values(), values_of(twin).values(), strict=True):
            np.testing.assert_allclose(mine, others, rtol=1e-3, atol=1e-4)  # the messenger never affects the source
        ours, theirs = values_of(messenger), values_of(source)
        assert int(ours["optimizer/iteration"]) == {"copy": step + 2, "reset": 1}[slots]
        seed = "dropout/seed_generator_state"
        np.testing.assert_array_equal(ours[seed] - theirs[seed], [0, 1])  # one more call
        distance = np.abs(ours["messenger/hidden/kernel"] - theirs["source/hidden/kernel"]).max()
        assert 0.0 < distance < 0.2  # one update at a rate of 0.05
    for moved, still in ((source, messenger), (messenger, source)):  # no buffer is shared after traced copies
        before = fingerprint(still)
        disturb(moved)
        assert fingerprint(still) == before


def stacked(*layers, name="target", optimizer="Nadam"):
    model = keras.Sequential([keras.Input((6,)), *layers], name=name)
    return network_of(model, getattr(keras.optimizers, optimizer)(0.1), name)


def dense(units, name=None, **options):
    return keras.layers.Dense(units, name=name, **options)


def test_mismatched_networks_and_optimizers_are_refused():
    source = stacked(dense(3, "one"), dense(2, "two"), name="source")
    for layers, optimizer, match in (
        (
            [dense(4, "one"), dense(2, "two")],
            "Nadam",
            "'source' .*'target': 'source/one/kernel' is float32 .6, 3., and",
        ),
        ([dense(3, "one")], "Nadam", "one has 4 variables, the other 2"),
        ([dense(3, "one", dtype="float64"), dense(2, "two")], "Nadam", "is float32 .*is float64"),
        ([dense(3, "one"), dense(2, "two")], "SGD", "Nadam, .*SGD"),
    ):
        target = stacked(*layers, optimizer=optimizer)
        before = fingerprint(target)
        assert_refused(match, copy_network, source, target, optimizer="copy")
        assert fingerprint(target) == before
    assert_refused("'source' twice", copy_network, source, source, optimizer="keep")
