"""The audit finds what is not wired, and names it."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.support.toy import StatelessHook, ToyObjective, toy_batch, toy_loop, toy_network
from trainer.errors import UserError
from trainer.network import Network
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer


def upstream(operation: tf.Operation) -> set[str]:
    """Walk the graph by hand: names of all ops before `operation`, through inputs and control inputs."""
    found: set[str] = set()
    stack = [operation]
    while stack:
        current = stack.pop()
        for parent in [tensor.op for tensor in current.inputs] + list(current.control_inputs):
            if parent.name not in found:
                found.add(parent.name)
                stack.append(parent)
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


def test_wired_update_passes_and_runs_once_a_step() -> None:
    hook = Counter("counter")
    loop = toy_loop([hook])
    assert hook.count.numpy() == 0.0
    loop.run(0, 7)
    assert hook.count.numpy() == 7.0


def test_reading_instead_of_assigning_is_named() -> None:
    class Reads(Counter):
        def update_ops(self, context):
            return [self.count + 1.0]

    with pytest.raises(UserError, match="'counter' declares that it writes 'count', but no op of the step writes it"):
        toy_loop([Reads("counter")])


def test_update_left_out_of_the_collection_is_named() -> None:
    class Forgets(Counter):
        def update_ops(self, context):
            self.count.assign_add(1.0)
            return []

    with pytest.raises(UserError, match="'counter' writes 'count' outside UPDATE_OPS.*Return the op from update_ops"):
        toy_loop([Forgets("counter")])


def test_update_created_outside_the_step_is_named() -> None:
    class Outside(Counter):
        def build(self, context):
            super().build(context)
            self.operation = self.count.assign_add(1.0)  # eager: it runs now, and never again

        def update_ops(self, context):
            return [self.operation]

    with pytest.raises(TypeError, match="Expected an op or a tensor created in this step"):
        toy_loop([Outside("counter")])


def test_trainable_variable_without_gradient_is_named() -> None:
    class Cut(StatelessHook):
        def transform_weights(self, weights, context):
            return {n: tf.stop_gradient(w) if n == "toy/hidden/kernel" else w for n, w in weights.items()}

    with pytest.raises(UserError, match="No gradient reaches toy/hidden/kernel in objective 'objective'"):
        toy_loop([Cut()])


def test_variable_that_a_hook_declares_frozen_may_lack_a_gradient_and_stays() -> None:
    class Freeze(StatelessHook):
        def transform_weights(self, weights, context):
            return {n: tf.stop_gradient(w) if n == "toy/hidden/kernel" else w for n, w in weights.items()}

        def frozen(self):
            return {"toy/hidden/kernel"}

    network = toy_network()
    before = network.variables["toy/hidden/kernel"].numpy()
    toy_loop([Freeze()], network=network).run(0, 3)
    assert (network.variables["toy/hidden/kernel"].numpy() == before).all()


def test_apply_outside_the_control_dependencies_is_refused() -> None:
    class Early(Trainer):
        """Apply without waiting for UPDATE_OPS, as a hand-written loop does."""

        def apply_gradients(self, network, gradients):
            with tf.control_dependencies(None):
                for variable in network.trainable_variables.values():
                    variable.value.assign_sub(0.1 * tf.zeros(variable.shape))

    with pytest.raises(UserError, match="are not control ancestors of the op .* that applies the gradient of 'toy/"):
        ChunkLoop(Early([toy_network()], [ToyObjective()], [], seed=0), toy_batch, xla=False)
