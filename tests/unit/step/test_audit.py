"""The audit finds what is not wired, and names it."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import StatelessHook, ToyObjective, toy_batch, toy_loop, toy_network


def upstream(operation: tf.Operation) -> set[str]:
    """Walk the graph by hand: names of all ops before `operation`, through inputs and control inputs."""
    found, stack = set(), [operation]
    while stack:
        current = stack.pop()
        parents = [*(tensor.op for tensor in current.inputs), *current.control_inputs]
        stack += [parent for parent in parents if parent.name not in found]
        found |= {parent.name for parent in parents}
    return found


@pytest.mark.parametrize("guarded", [False, True])
def test_every_batch_norm_assignment_is_upstream_of_every_apply(guarded: bool) -> None:
    class Veto(StatelessHook):
        def veto(self, context):
            return {"never": tf.constant(False)}

    layers = [keras.Input((6,))]
    for index in range(3):
        layers += [keras.layers.Dense(4, name=f"dense_{index}"), keras.layers.BatchNormalization(name=f"norm_{index}")]
    model = keras.Sequential([*layers, keras.layers.Dense(3, name="last")])
    network = Network("model", model, keras.optimizers.Adam())
    network.optimizer.build(model.trainable_variables)
    loop = toy_loop([Veto()] if guarded else [], network=network)
    commit = loop.trainer.commits[0]
    expected = {name for name in network.variables if "moving_" in name}
    assert len(expected) == 6
    assert set(commit.update_writes) == expected
    assert set(commit.apply_ops) == set(network.trainable_variables)
    for operations in commit.apply_ops.values():
        for operation in operations:
            assert {update.name for update in commit.update_ops} <= upstream(operation)


class Counter(StatelessHook):
    """Count steps; each test breaks it in one of the usual ways."""

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def state(self):
        return {"count": self.count}

    writes = state

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]


def test_a_group_of_updates_and_a_branch_that_updates_are_taken() -> None:
    class Groups(Counter):
        def update_ops(self, context):
            branch = tf.cond(context.step >= 2, lambda: self.count.assign_add(10.0).read_value(), lambda: 0.0)
            with tf.control_dependencies([branch]):
                return [tf.group(self.count.assign_add(1.0)), branch.op]

    hook = Groups("counter")
    toy_loop([hook]).run(0, 3)
    assert hook.count.numpy() == 13.0


def test_apply_outside_the_control_dependencies_is_refused() -> None:
    class Early(Trainer):
        """Apply without waiting for UPDATE_OPS, as a hand-written loop does."""

        def apply_gradients(self, network, gradients):
            with tf.control_dependencies(None):
                for variable in network.trainable_variables.values():
                    variable.value.assign_sub(0.1 * tf.zeros(variable.shape))

    with pytest.raises(UserError, match="are not control ancestors of the op .* that applies the gradient of 'toy/"):
        ChunkLoop(Early([toy_network()], [ToyObjective()], [], seed=0), toy_batch, xla=False)


class Reads(Counter):
    """v + 1 is a tensor: v is what it was before."""

    def update_ops(self, context):
        return [self.count + 1.0]


class NeverWrites(Counter):
    def update_ops(self, context):
        return []


class LeavesOut(Counter):
    def update_ops(self, context):
        self.count.assign_add(1.0)
        return []


class Outside(Counter):
    def build(self, context):
        super().build(context)
        self.operation = self.count.assign_add(1.0)  # eager: it runs now, and never again

    def update_ops(self, context):
        return [self.operation]


class Early(Counter):
    def transform_gradients(self, gradients, context):
        self.operation = self.count.assign_add(1.0)
        return gradients

    def update_ops(self, context):
        return [self.operation]

    def veto(self, context):
        return {"never": tf.constant(False)}


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (Reads, "'counter' returned the op .*Add.* writes no variable"),
        (NeverWrites, "'counter' declares that it writes 'count', but no op"),
        (LeavesOut, "'counter' writes 'count' outside UPDATE_OPS"),
        (Outside, "'counter' returned something that is no op"),
        (Early, "'counter' returned the op .*Assign"),
    ],
)
def test_an_update_that_is_not_wired_is_named(kind: type[Counter], match: str) -> None:
    with pytest.raises(UserError, match=match):
        toy_loop([kind("counter")])


class Drops(StatelessHook):
    def transform_state(self, new_state, context):
        return {} if context.objective == "two" else new_state


def test_batch_norm_updates_that_are_dropped_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "changes toy/norm/moving_mean, toy/norm/moving_variance, but no op"
    objectives = [ToyObjective(name="one"), ToyObjective(name="two")]
    for steps in (1, 2):
        with pytest.raises(UserError, match=f"objective 'two' {names}"):
            toy_loop([Drops()], objectives=objectives, accumulation_steps=steps)
    monkeypatch.setattr("hookline.trainer.step.commit.collect_state_updates", lambda variables, new_state: None)
    with pytest.raises(UserError, match=names):
        toy_loop()


class Cut(StatelessHook):
    def transform_weights(self, weights, context):
        return {n: tf.stop_gradient(w) if n == "toy/hidden/kernel" else w for n, w in weights.items()}


class Freeze(Cut):
    def frozen(self):
        return {"toy/hidden/kernel"}


def test_a_variable_without_a_gradient_is_named_unless_frozen() -> None:
    with pytest.raises(UserError, match="No gradient reaches toy/hidden/kernel"):
        toy_loop([Cut()])
    network = toy_network()
    before = network.variables["toy/hidden/kernel"].numpy()
    toy_loop([Freeze()], network=network).run(0, 3)
    assert (network.variables["toy/hidden/kernel"].numpy() == before).all()
