"""A copy between networks is deep: nothing that happens to one of them reaches the other."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.pairs import Judge, discriminator, generator, pairs_loop
from tests.support.toy import toy_network
from trainer.errors import UserError
from trainer.network import Network
from trainer.objective import ObjectiveOutput
from trainer.rate_schedules import Warmup
from trainer.step.copy_network import copy_network, fingerprint, snapshot

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "amsgrad_ema": lambda: keras.optimizers.Adam(0.01, amsgrad=True, use_ema=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.3),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, initial_accumulator_value=0.2),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8.0),
    "schedule": lambda: keras.optimizers.Adam(Warmup(0.01, 5)),
}


class Unserializable(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of a user, without a config."""

    def __call__(self, step):
        return 0.1 / (1.0 + tf.cast(step, tf.float32))


OPTIMIZERS["own_schedule"] = lambda: keras.optimizers.Adam(Unserializable())


def trained(name: str, steps: int, optimizer: keras.optimizers.Optimizer | None = None) -> Network:
    """Return a discriminator whose weights, statistics, seed state and slots have moved."""
    network, made = discriminator(name, optimizer), generator("made")
    made.fixed = True
    pairs_loop([network, made], [Judge("judge", name, ["made"])]).run(0, steps)
    return network


def plain(values: dict[str, np.ndarray], network: Network) -> list[np.ndarray]:
    """Return the values of the model's variables, in order."""
    return [values[name] for name in network.variables]


def rates(network: Network) -> set[str]:
    return {f"optimizer/{name}" for name in network.optimizer_variables if name.startswith("learning_rate")}


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def disturb(network: Network) -> None:
    """Change every variable in place, by the ways in which TensorFlow writes into a buffer that it holds."""
    for variable in (*network.variables.values(), *network.optimizer_variables.values()):
        value = variable.value
        value.assign_add(tf.ones_like(value))
        if value.shape.rank:
            value.scatter_add(tf.IndexedSlices(tf.ones_like(value)[:1], tf.constant([0])))
            value[0].assign(value[0] + tf.ones_like(value[0]))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("later", ["source", "target"])
def test_a_copy_has_every_value_and_stands_alone_afterwards(kind: str, later: str) -> None:
    source = trained("source", 3, OPTIMIZERS[kind]())
    target = discriminator("target", OPTIMIZERS[kind]())
    assert copy_network(source, target, optimizer="copy") == []  # outside a step it is made at once
    for ours, theirs in zip(snapshot(source).values(), snapshot(target).values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    still, moved = (target, source) if later == "source" else (source, target)
    before, of_moved = fingerprint(still), snapshot(moved)
    disturb(moved)
    assert fingerprint(still) == before
    for name, value in snapshot(moved).items():
        assert not np.array_equal(value, of_moved[name]), name


def test_what_a_target_draws_after_a_copy_is_what_the_source_draws_and_further_draws_are_its_own() -> None:
    source, target = trained("source", 2), discriminator("target")
    copy_network(source, target, optimizer="keep")
    inputs = tf.ones([4, 6])
    first = source.model(inputs, training=True).numpy()
    source.model(inputs, training=True)  # the source's seed goes on; that of the target does not
    np.testing.assert_array_equal(target.model(inputs, training=True).numpy(), first)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_slots_are_kept_or_reset_as_told(kind: str) -> None:
    source, target = trained("source", 2, keras.optimizers.SGD(0.1)), trained("target", 3, OPTIMIZERS[kind]())
    before = snapshot(target)
    copy_network(source, target, optimizer="keep")
    kept = snapshot(target)
    assert_same(*({n: v for n, v in each.items() if n.startswith("optimizer/")} for each in (kept, before)))
    for ours, theirs in zip(plain(snapshot(source), source), plain(kept, target), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    copy_network(source, target, optimizer="reset")
    fresh = discriminator("target", OPTIMIZERS[kind]())
    for ours, new in zip(target.optimizer.variables, fresh.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), new.numpy(), err_msg=ours.path)
    after = snapshot(target)
    assert any(not np.array_equal(after[name], before[name]) for name in after if name.startswith("optimizer/"))


@pytest.mark.parametrize("optimizer", ["copy", "reset"])
def test_the_learning_rate_stays_the_targets_own(optimizer: str) -> None:
    source, target = trained("source", 1), discriminator("target", keras.optimizers.Adam(0.25))
    target.optimizer.learning_rate = 0.5  # lowered or raised while it trained
    copy_network(source, target, optimizer=optimizer)
    assert float(target.optimizer.learning_rate) == 0.5
    assert float(source.optimizer.learning_rate) == pytest.approx(0.05)
    assert rates(source) == {"optimizer/learning_rate"}


class Follow(Judge):
    """Copy the discriminator to the messenger, and train the messenger on."""

    slots = "copy"

    def begin(self, networks):
        return copy_network(networks["source"], networks["messenger"], optimizer=self.slots)


@pytest.mark.parametrize(("slots", "xla"), [("copy", False), ("keep", False), ("reset", False), ("reset", True)])
def test_a_messenger_in_the_traced_step_starts_each_time_from_its_source_and_goes_its_own_way(
    slots: str, xla: bool
) -> None:
    """Step by step: the messenger equals the source of now with one update of its own, made by hand."""
    source, messenger, made, twin = (
        *map(discriminator, ("source", "messenger")),
        generator("made"),
        discriminator("twin"),
    )
    copy_network(source, twin, optimizer="copy")
    judge, follow = Judge("judge", "source", ["made"]), Follow("follow", "messenger", ["made"])
    made.fixed, follow.slots = True, slots
    undisturbed = Judge("judge", "twin", ["made"])  # the same draws: its objective has the same name
    loop = pairs_loop([source, messenger, made], [judge, follow], xla=xla)
    by_hand = pairs_loop([twin, made], [undisturbed], xla=xla)
    for step in range(3):
        loop.run(step, 1)
        by_hand.run(step, 1)
        for mine, others in zip(snapshot(source).values(), snapshot(twin).values(), strict=True):
            np.testing.assert_allclose(
                mine, others, rtol=1e-3, atol=1e-4
            )  # what messengers do never reaches the source
        ours, theirs = snapshot(messenger), snapshot(source)
        iterations = int(ours["optimizer/iteration"])
        assert iterations == {"copy": step + 2, "keep": step + 1, "reset": 1}[slots]
        seed = "dropout/seed_generator_state"
        np.testing.assert_array_equal(ours[seed] - theirs[seed], [0, 2])  # two calls more
        distance = np.abs(ours["messenger/hidden/kernel"] - theirs["source/hidden/kernel"]).max()
        assert 0.0 < distance < 0.2  # one update at a rate of 0.05 from the weights of now


@pytest.mark.parametrize("xla", [False, True])
def test_networks_share_no_buffer_after_traced_copies(xla: bool) -> None:
    source, messenger, made = discriminator("source"), discriminator("messenger"), generator("made")
    made.fixed = True
    loop = pairs_loop(
        [source, messenger, made],
        [Judge("judge", "source", ["made"]), Follow("follow", "messenger", ["made"])],
        xla=xla,
    )
    loop.run(0, 2)
    for moved, still in ((source, messenger), (messenger, source)):
        before = fingerprint(still)
        disturb(moved)
        assert fingerprint(still) == before
    before = fingerprint(messenger)
    messenger.fixed = True
    pairs_loop([source, messenger, made], [Judge("judge", "source", ["made"])], xla=xla).run(2, 2)
    assert fingerprint(messenger) == before


def test_a_traced_copy_alone_is_byte_equal() -> None:
    """The objective copies and then has a gradient of zero, so that all stays as copied."""

    class Still(Follow):
        def compute(self, forward, batch):
            logits = forward("messenger", batch["inputs"])
            return ObjectiveOutput({"nothing": 0.0 * tf.reduce_sum(logits)})

    source, messenger = trained("source", 2), discriminator("messenger", keras.optimizers.SGD(0.1))
    source.fixed = messenger.model.get_layer("norm").trainable = True
    messenger.model.get_layer("norm").momentum, messenger.model.get_layer("dropout").rate = 1.0, 0.0
    still = Still("follow", "messenger", [])
    still.slots = "keep"
    pairs_loop([source, messenger], [still]).run(0, 1)
    for ours, theirs in zip(plain(snapshot(messenger), messenger), plain(snapshot(source), source), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_snapshot_never_changes_again_and_a_fingerprint_sees_every_part() -> None:
    network = trained("network", 1)
    held = snapshot(network)
    copies, marks = {name: value.copy() for name, value in held.items()}, {fingerprint(network)}
    for variable in (*network.variables.values(), *network.optimizer_variables.values()):
        variable.value.assign(variable.value + tf.ones_like(variable.value))
        marks.add(fingerprint(network))
    assert len(marks) == 1 + len(held)
    assert_same(held, copies)
    for value in held.values():
        value[...] = 7  # nor does writing into it reach the network
    assert fingerprint(network) in marks


def test_fingerprints_tell_zeros_of_two_signs_apart_and_names_and_shapes() -> None:
    marks = set()
    for zero in (0.0, -0.0):
        network = discriminator("network")
        for variable in (*network.variables.values(), *network.optimizer_variables.values()):
            variable.assign(np.full(variable.shape, zero, variable.dtype))
        marks.add(fingerprint(network))
    assert len(marks) == 2


def network_of(
    *layers: keras.Layer, name: str = "target", optimizer: keras.optimizers.Optimizer | None = None
) -> Network:
    network = Network(
        name, keras.Sequential([keras.Input((6,)), *layers], name=name), optimizer or OPTIMIZERS["nadam"]()
    )
    network.optimizer.build(network.model.trainable_variables)
    return network


def dense(units: int, name: str | None = None, **options: object) -> keras.Layer:
    return keras.layers.Dense(units, name=name, **options)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([dense(4, "one"), dense(2, "two")], "has the shape [6, 3] in one and [6, 4] in the other"),
        (
            [dense(3, "one"), dense(2, "three")],
            "where one has 'source/two/kernel', the other has 'target/three",
        ),
        ([dense(3, "one")], "'source' has 'source/two/kernel', which 'target' does not have"),
        ([dense(3, "one"), dense(2, "two"), dense(2)], "'target' has 'target/dense"),
        ([dense(3, "one", dtype="float64"), dense(2, "two")], "'source/one/kernel' is float32 in one and float64 in"),
        ([dense(3, "one", use_bias=False), dense(2, "two")], "where one has 'source/one/bias', the other has"),
    ],
)
def test_networks_that_do_not_correspond_are_named(layers: list[keras.Layer], message: str) -> None:
    source = network_of(dense(3, "one"), dense(2, "two"), name="source")
    target = network_of(*layers)
    before = fingerprint(target)
    with pytest.raises(UserError) as refusal:
        copy_network(source, target, optimizer="copy")
    line = str(refusal.value)
    assert message in line
    assert line.startswith("The network 'source' cannot be copied to 'target': ")
    assert line.endswith("give both the hooks that rebuild models, or neither.")
    assert fingerprint(target) == before


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (keras.optimizers.SGD(0.1), "the optimizer of one is Nadam, that of the other SGD"),
        (keras.optimizers.Nadam(0.1, use_ema=True), "the optimizers have 10 and 14 variables without the rate"),
        (
            keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.1)),
            "the optimizer of one is Nadam, that of the other LossScaleOptimizer of Nadam",
        ),
    ],
)
def test_optimizers_that_do_not_correspond_are_named(optimizer: keras.optimizers.Optimizer, message: str) -> None:
    source = network_of(dense(3, "one"), dense(2, "two"), name="source")
    target = network_of(dense(3, "one"), dense(2, "two"), optimizer=optimizer)
    with pytest.raises(UserError, match=f"'source' cannot be copied to 'target': {message}.*'keep' or 'reset'"):
        copy_network(source, target, optimizer="copy")
    copy_network(source, target, optimizer="keep")


def test_itself_a_shared_variable_and_an_unknown_option_are_refused() -> None:
    network = toy_network("network")
    with pytest.raises(UserError, match="received 'network' twice. Expected two networks"):
        copy_network(network, network, optimizer="keep")
    other = Network("other", network.model, keras.optimizers.SGD(0.1))
    with pytest.raises(UserError, match="they share the variable 'toy/hidden/kernel', so that"):
        copy_network(network, other, optimizer="keep")
    with pytest.raises(UserError, match="received optimizer='forget'. Expected one of: keep, copy, reset"):
        copy_network(network, toy_network("other"), optimizer="forget")


class Small(keras.Model):
    """A subclassed model."""

    def __init__(self, name: str) -> None:
        """Make one layer without a name."""
        super().__init__(name=name)
        self.inner = keras.layers.Dense(3)

    def call(self, inputs):
        """Return the layer's outputs."""
        return self.inner(inputs)


def functional(name: str) -> keras.Model:
    inputs = keras.Input((6,))
    block = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)], name=f"block_{name}")
    return keras.Model(inputs, keras.layers.Dropout(0.5)(block(inputs)), name=name)


def sequential(name: str) -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.BatchNormalization()], name=name)


@pytest.mark.parametrize("build", [sequential, functional, Small])
def test_models_of_one_builder_correspond_whatever_keras_calls_their_layers(build: Callable) -> None:
    networks = []
    for name in ("first_0", "first_1"):
        model = build(name)
        model(tf.zeros([1, 6]))
        networks.append(Network(name, model, keras.optimizers.Adam(0.1)))
        networks[-1].optimizer.build(model.trainable_variables)
    source, target = networks
    assert source.variables.keys() != target.variables.keys()  # such as dense and dense_1
    disturb(source)
    copy_network(source, target, optimizer="copy")
    for ours, theirs in zip(plain(snapshot(source), source), plain(snapshot(target), target), strict=True):
        np.testing.assert_array_equal(ours, theirs)
