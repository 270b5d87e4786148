"""What hooks update is updated exactly once for every step of their network's optimizer."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.toy import BATCH, StatelessHook, ToyObjective, build_context, toy_batch, toy_network
from trainer.network import Network
from trainer.objective import Objective
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer


class Counter(StatelessHook):
    """Count updates, steps as the schedule sees them, and examples; write each in a way of its own."""

    def __init__(self, network: str) -> None:
        super().__init__(f"counter_{network}")
        self.network = network

    def build(self, context):
        self.updates, self.steps = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))
        self.examples = tf.Variable(tf.zeros([BATCH]), trainable=False)

    def state(self):
        return {"updates": self.updates, "steps": self.steps, "examples": self.examples}

    writes = state

    def update_ops(self, context):
        seen = tf.IndexedSlices(tf.ones([BATCH]), tf.range(tf.shape(context.batch["targets"])[0]))
        grouped = tf.group(self.steps.assign(context.step + 1))
        return [self.updates.assign_add(1), grouped, self.examples.scatter_add(seen)]

    @property
    def counts(self) -> tuple[int, int, float]:
        """Return updates, the last step + 1, and how often an example was counted."""
        (examples,) = set(self.examples.numpy().tolist())
        return int(self.updates.numpy()), int(self.steps.numpy()), examples


CASES = {
    "one_objective": (["model"], [("only", ("model",))], {"model": 1}),
    "two_networks": (["first", "second"], [("one", ("first",)), ("two", ("second",))], {"first": 1, "second": 1}),
    "one_network_twice": (["model"], [("one", ("model",)), ("two", ("model",))], {"model": 2}),
    "three_steps_of_two": (
        ["first", "second"],
        [("one", ("first",)), ("two", ("second",)), ("three", ("first",))],
        {"first": 2, "second": 1},
    ),
}


@pytest.mark.parametrize("accumulation_steps", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_updates_are_as_many_as_optimizer_steps(case: str, accumulation_steps: int) -> None:
    names, objectives, per_step = CASES[case]
    networks = [toy_network(name) for name in names]
    hooks = [Counter(name) for name in names]
    for network, hook in zip(networks, hooks, strict=True):
        network.shared = per_step[network.name] > 1
        hook.build(build_context(network))
    loop = ChunkLoop(
        Trainer(networks, make(objectives), hooks, seed=0, accumulation_steps=accumulation_steps), toy_batch, xla=False
    )
    assert_counts(networks, hooks, per_step, steps=0)  # tracing counts nothing
    for start, steps in ((0, 1), (1, 4), (5, 2)):
        loop.run(start, steps)
        assert_counts(networks, hooks, per_step, steps=start + steps)


def make(objectives: list[tuple[str, tuple[str, ...]]]) -> list[Objective]:
    return [ToyObjective(changes[0], name) for name, changes in objectives]


def assert_counts(networks: list[Network], hooks: list[Counter], per_step: dict[str, int], *, steps: int) -> None:
    for network, hook in zip(networks, hooks, strict=True):
        expected = per_step[network.name] * steps
        assert network.optimizer.iterations.numpy() == expected
        assert hook.counts == (expected, steps, float(expected))


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_xla_runs_updates_once_too(accumulation_steps: int) -> None:
    network, hook = toy_network(), Counter("model")
    hook.build(build_context(network))
    trainer = Trainer([network], [ToyObjective()], [hook], seed=0, accumulation_steps=accumulation_steps)
    ChunkLoop(trainer, toy_batch, xla=True).run(0, 5)
    assert_counts([network], [hook], {"model": 1}, steps=5)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_vetoed_step_updates_nothing(accumulation_steps: int) -> None:
    class VetoThird(Counter):
        def veto(self, context):
            return {"third": tf.equal(context.step, 2)}

    network, hook = toy_network(), VetoThird("model")
    hook.build(build_context(network))
    trainer = Trainer([network], [ToyObjective()], [hook], seed=0, accumulation_steps=accumulation_steps)
    assert ChunkLoop(trainer, toy_batch, xla=False).run(0, 5) == (2, ["third"])
    assert_counts([network], [hook], {"model": 1}, steps=2)
