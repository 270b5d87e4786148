"""Several updates of one objective in a step, what they begin with, and what a veto does to those after it."""

from __future__ import annotations

import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.pairs import Fool, Judge, discriminator, generator, pairs_loop
from tests.support.toy import (
    BATCH,
    StatelessHook,
    ToyObjective,
    build_context,
    toy_arrays,
    toy_batch,
    toy_loop,
    toy_network,
    values_of,
)
from trainer.errors import UserError
from trainer.objective import ObjectiveOutput
from trainer.step.audit import ancestors
from trainer.step.copy_network import copy_network, fingerprint, snapshot
from trainer.step.updates import batch_parts


def often(updates: int, objective=None):
    objective = objective or ToyObjective()
    objective.updates = updates
    return objective


def quarter_batch(step: tf.Tensor):
    """Return a quarter of a toy batch as a batch of its own: step 4k + i holds part i of batch k."""
    whole = toy_batch(step // 4)
    size = BATCH // 4
    start = tf.cast(step % 4, tf.int32) * size
    return {name: tensor[start : start + size] for name, tensor in whole.items()}


@pytest.mark.parametrize("xla", [False, True])
def test_updates_of_a_step_equal_as_many_steps_on_its_parts(xla: bool) -> None:
    network, twin = toy_network(), toy_network()
    twin.model.set_weights(network.model.get_weights())
    loop = toy_loop(network=network, objectives=[often(4)], xla=xla)
    loop.run(0, 2)
    by_hand = toy_loop(network=twin, batch=quarter_batch)
    by_hand.run(0, 8)
    for name, value in values_of(network).items():
        np.testing.assert_allclose(value, values_of(twin)[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert network.optimizer.iterations.numpy() == 8
    ours, theirs = loop.accumulators.read(), by_hand.accumulators.read()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():  # the averages over all runs
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, err_msg=name)


def test_each_update_accumulates_over_its_own_micro_batches() -> None:
    parts, whole = toy_network(), toy_network()
    for network in (parts, whole):
        network.model.set_weights(toy_network().model.get_weights())
        network.model.get_layer("norm").trainable = False
    whole.model.set_weights(parts.model.get_weights())
    toy_loop(network=parts, objectives=[often(2)], accumulation_steps=4).run(0, 2)
    toy_loop(network=whole, objectives=[often(2)]).run(0, 2)
    for name, value in values_of(whole).items():
        np.testing.assert_allclose(values_of(parts)[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("updates", "accumulation_steps", "message"),
    [
        (3, 1, "'objective' has updates=3, received for batches of 16 examples.*trainer.batch_size that 3 divides"),
        (8, 4, "trainer.accumulation_steps=4 received for batches of 2 examples"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused(updates: int, accumulation_steps: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        toy_loop(objectives=[often(updates)], accumulation_steps=accumulation_steps)


def test_a_batch_without_a_known_size_is_refused() -> None:
    def open_batch(step):
        batch = toy_batch(step)
        return {name: tf.boolean_mask(tensor, batch["targets"] >= 0) for name, tensor in batch.items()}

    with pytest.raises(UserError, match="updates=2, received for batches of an unknown number of examples"):
        toy_loop(objectives=[often(2)], batch=open_batch)


def test_parts_hold_every_example_once_and_what_is_no_example_whole() -> None:
    batch = {"inputs": {"a": tf.range(12), "b": tf.ones([12, 2])}, "table": tf.range(5), "scale": tf.constant(2.0)}
    parts = list(batch_parts(often(3), batch))
    assert [part["inputs"]["a"].numpy().tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert all(part["inputs"]["b"].shape == (4, 2) for part in parts)
    assert all(part["table"].shape == 5 and part["scale"].shape == () for part in parts)
    assert next(batch_parts(often(1), batch)) is batch


class Counter(StatelessHook):
    """Count updates of the network, and steps; note the examples that were seen."""

    def build(self, context):
        self.updates, self.steps = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))
        self.last = tf.Variable(-1, dtype=tf.int64, trainable=False)
        self.traced: list[tuple[int, int]] = []

    def state(self):
        return {"updates": self.updates, "steps": self.steps, "last": self.last}

    writes = state

    def update_ops(self, context):
        self.traced.append((context.update, context.batch["inputs"].shape[0]))
        fresh = tf.cast(self.last != context.step, tf.int64)
        steps = self.steps.assign_add(fresh)
        with tf.control_dependencies([steps]):
            return [self.updates.assign_add(1), steps, self.last.assign(context.step)]


def test_a_hook_runs_once_for_each_update_and_knows_the_step() -> None:
    hook, network = Counter("counter"), toy_network()
    toy_loop([hook], network=network, objectives=[often(4)]).run(0, 3)
    assert hook.traced == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert (hook.updates.numpy(), hook.steps.numpy(), hook.last.numpy()) == (12, 3, 2)
    assert network.optimizer.iterations.numpy() == 12


def test_draws_of_a_hook_differ_between_updates_objectives_and_networks_and_not_for_a_single_one() -> None:
    seen: dict[tuple[str, str, int], np.ndarray] = {}

    class Draws(StatelessHook):
        def update_ops(self, context):
            return [self.kept[context.objective, context.update].assign(context.stateless_seed("mask"))]

        def build(self, context):
            self.kept = {(o, u): tf.Variable([0, 0]) for o in ("objective", "one", "two") for u in range(2)}

        def state(self):
            return {f"{o}{u}": variable for (o, u), variable in self.kept.items()}

    networks = [toy_network("a"), toy_network("b")]
    hooks = [Draws("of_a"), Draws("of_b")]
    for hook, network in zip(hooks, networks, strict=True):
        hook.network = network.name
        hook.build(build_context(network))
    pairs_loop(networks, [often(2, ToyObjective("a", "one")), often(2, ToyObjective("b", "two"))], hooks).run(3, 1)
    for hook, objective in zip(hooks, ("one", "two"), strict=True):
        for update in range(2):
            seen[hook.name, objective, update] = hook.kept[objective, update].numpy()
    assert len({tuple(value) for value in seen.values()}) == 4
    alone = Draws("alone")
    toy_loop([alone]).run(3, 1)
    assert alone.kept["objective", 0].numpy().tolist() == [zlib.crc32(b"0/mask") & 0x7FFFFFFF, 3]  # as it always was


class Begins(Judge):
    """Copy the source, count how often, and note what the messenger held when the weights were read."""

    def __init__(self, *arguments, counter: tf.Variable, difference: tf.Variable) -> None:
        super().__init__(*arguments)
        self.counter, self.difference = counter, difference

    def begin(self, networks):
        copies = copy_network(networks["source"], networks["messenger"], optimizer="reset")
        self.graph, self.begun = copies[0].graph, [*copies, self.counter.assign_add(1).op]
        return self.begun

    def compute(self, forward, batch):
        read = forward.passes["messenger"].context.latent["messenger/hidden/kernel"]
        own = forward.passes["source"].context.latent["source/hidden/kernel"]
        if self.graph is read.graph:  # not in a branch
            assert {*self.begun} <= ancestors(read.op) & ancestors(own.op)
        else:
            assert any(operation.type in ("If", "StatelessIf") for operation in read.op.control_inputs)
        self.difference.assign_add(tf.reduce_sum(tf.abs(read - own)))
        return super().compute(forward, batch)


class Guard(StatelessHook):
    """Hold back the objective of a network at some step."""

    def __init__(self, network: str, at: int = 100) -> None:
        super().__init__(f"guard_{network}")
        self.network, self.at = network, at

    def veto(self, context):
        return {"no": tf.equal(context.step, self.at)}


def messengers(counter: tf.Variable, difference: tf.Variable, updates: int = 1):
    networks = [discriminator("source"), discriminator("messenger"), generator("made")]
    follow = Begins("follow", "messenger", ["made"], counter=counter, difference=difference)
    objectives = [Judge("judge", "source", ["made"]), follow, Fool("fool", "made", ["messenger"])]
    follow.updates = updates
    return networks, objectives


@pytest.mark.parametrize(
    ("xla", "guarded", "updates"), [(False, False, 2), (False, True, 2), (True, False, 1), (True, True, 1)]
)
def test_begin_runs_once_for_each_run_and_before_anything_is_read(xla: bool, guarded: bool, updates: int) -> None:
    counter, difference = tf.Variable(0), tf.Variable(0.0)
    networks, objectives = messengers(counter, difference, updates)
    hooks = [Guard("source"), Guard("messenger")] if guarded else []
    loop = pairs_loop(networks, objectives, hooks, xla=xla)
    assert counter.numpy() == 0  # tracing runs nothing
    loop.run(0, 3)
    assert counter.numpy() == 3 * updates
    assert difference.numpy() == 0.0
    assert networks[1].optimizer.iterations.numpy() == 1  # reset, then one update
    assert networks[0].optimizer.iterations.numpy() == 3


@pytest.mark.parametrize("xla", [False, True])
def test_a_veto_holds_back_its_own_run_and_all_after_it_with_what_they_begin_with(xla: bool) -> None:
    counter, difference = tf.Variable(0), tf.Variable(0.0)
    networks, objectives = messengers(counter, difference)
    loop = pairs_loop(networks, objectives, [Guard("source", 2)], xla=xla)
    loop.run(0, 2)
    before = [fingerprint(network) for network in networks]
    assert loop.run(2, 3) == (2, ["judge/no"])
    assert [fingerprint(network) for network in networks] == before
    assert counter.numpy() == 2
    assert loop.accumulators.variable.numpy()[:, 1].tolist() == [2.0] * len(loop.accumulators.names)


@pytest.mark.parametrize("xla", [False, True])
def test_what_ran_before_a_veto_stays_written_the_copies_of_its_own_run_too(xla: bool) -> None:
    counter, difference = tf.Variable(0), tf.Variable(0.0)
    networks, objectives = messengers(counter, difference)
    source, messenger, made = networks
    loop = pairs_loop(networks, objectives, [Guard("messenger", 2)], xla=xla)
    loop.run(0, 2)
    before = {network.name: fingerprint(network) for network in networks}
    assert loop.run(2, 3) == (2, ["follow/no"])
    assert fingerprint(source) != before["source"]  # it had its run
    assert fingerprint(made) == before["made"]
    assert counter.numpy() == 3
    copied, own = snapshot(messenger), snapshot(source)
    for name, other in zip(messenger.variables, source.variables, strict=True):
        np.testing.assert_array_equal(copied[name], own[other], err_msg=name)  # the copy, and nothing more
    assert copied["optimizer/iteration"] == 0


@pytest.mark.parametrize("updates", [2, 4])
def test_a_veto_in_one_update_holds_back_the_later_ones(updates: int) -> None:
    class Third(StatelessHook):
        def veto(self, context):
            return {"odd": tf.constant(context.update == 1)}

    network = toy_network()
    loop = toy_loop([Third()], network=network, objectives=[often(updates)])
    assert loop.run(0, 3) == (0, ["odd"])
    assert network.optimizer.iterations.numpy() == 1
    assert loop.accumulators.variable.numpy()[:, 1].tolist() == [1.0] * len(loop.accumulators.names)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
def test_each_objective_reads_the_weights_as_the_one_before_left_them(xla: bool, guarded: bool) -> None:
    """Step by step, in one trace: as if each objective had a step of its own on the same batch."""
    networks, twins = ([discriminator("judge", rate()), generator("made", rate())] for _ in range(2))
    for network in (networks[0], twins[0]):
        network.model.get_layer("dropout").rate = 0.0
    for network, twin in zip(networks, twins, strict=True):
        copy_network(network, twin, optimizer="copy")
    objectives = [Plain("one", "judge", "made"), Plain("two", "made", "judge")]
    hooks = [Guard("judge"), Guard("made")] if guarded else []
    pairs_loop(networks, objectives, hooks, xla=xla).run(0, 3)
    loops = []
    for index, objective in enumerate(objectives):
        for position, twin in enumerate(twins):
            twin.fixed = position != index
        loops.append(pairs_loop(twins, [objective], xla=xla))
    for step in range(3):
        for loop in loops:
            loop.run(step, 1)
    for network, twin in zip(networks, twins, strict=True):
        expected = snapshot(twin)
        for name, value in snapshot(network).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


def rate() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.5, momentum=0.5)


class Plain(Judge):
    """Train one network on the outputs of both, without draws."""

    def __init__(self, name: str, network: str, other: str) -> None:
        super().__init__(name, network, [])
        self.other = other

    def compute(self, forward, batch):
        made = forward("made", toy_arrays()[0][:BATCH, :2])
        judged = forward("judge", made)
        sign = 1.0 if self.network == "judge" else -1.0
        return ObjectiveOutput({"judged": tf.nn.softplus(sign * judged[:, 0])})


@pytest.mark.parametrize("kind", ["eager", "number", "read"])
def test_what_begin_returns_must_be_an_op_that_writes(kind: str) -> None:
    variable = tf.Variable(0.0)
    outside = variable.assign_add(1.0)

    class Begin(ToyObjective):
        def begin(self, networks):
            return [{"eager": outside, "number": 3, "read": variable + 1.0}[kind]]

    message = "The objective 'objective' returned .* from begin" + (
        ", which writes no variable" if kind == "read" else ""
    )
    with pytest.raises(UserError, match=message):
        toy_loop(objectives=[Begin()])
