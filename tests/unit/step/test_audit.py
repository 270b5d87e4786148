"""The audit finds what is not wired, and names it."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.support.toy import StatelessHook, ToyObjective, build_context, toy_batch, toy_loop, toy_network
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


def test_a_kernel_of_an_optimizer_writes_the_variable_and_its_slot() -> None:
    class Momentum(Counter):
        """Move a variable of the hook's own by TensorFlow's kernel."""

        def build(self, context):
            super().build(context)
            self.slot = tf.Variable(0.0, trainable=False)

        def state(self):
            return {"count": self.count, "slot": self.slot}

        writes = state

        def update_ops(self, context):
            handles = {"var": self.count.handle, "accum": self.slot.handle}
            return [tf.raw_ops.ResourceApplyKerasMomentum(**handles, lr=1.0, grad=-1.0, momentum=0.5)]

    hook = Momentum("momentum")
    loop = toy_loop([hook])
    assert {name: len(writes) for name, writes in loop.trainer.commits[0].hook_writes["momentum"].items()} == {
        "count": 1,
        "slot": 1,
    }
    loop.run(0, 2)
    assert (hook.count.numpy(), hook.slot.numpy()) == (2.5, 1.5)


@pytest.mark.parametrize("declared", [True, False])
def test_reading_a_variable_and_adding_in_place_of_assigning_is_named(declared: bool) -> None:
    """In TensorFlow, v + 1 is a tensor: v is what it was before."""

    class Reads(Counter):
        def transform_weights(self, weights, context):
            self.noise = tf.random.uniform([])  # it changes the generator's state, and not in update_ops
            return weights

        def update_ops(self, context):
            return [self.count + self.noise]

        def writes(self):
            return self.state() if declared else {}

    with pytest.raises(UserError, match="'counter' returned the op .*Add.* writes no variable: reading it and adding"):
        toy_loop([Reads("counter")])


def test_declaring_a_variable_that_no_op_writes_is_named() -> None:
    class Forgets(Counter):
        def update_ops(self, context):
            self.count = self.count + 1.0
            return []

        def state(self):
            return {"count": self.variable}

        writes = state

        def build(self, context):
            super().build(context)
            self.variable = self.count

    with pytest.raises(UserError, match="'counter' declares that it writes 'count', but no op of the step writes it"):
        toy_loop([Forgets("counter")])


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

    with pytest.raises(UserError, match="'counter' returned something that is no op .*made outside"):
        toy_loop([Outside("counter")])


def test_update_op_of_an_earlier_trace_is_named() -> None:
    class Caches(Counter):
        operation = None

        def update_ops(self, context):
            if self.operation is None:
                self.operation = self.count.assign_add(1.0)
            return [self.operation]

    hook = Caches("counter")
    hook.build(build_context(toy_network()))
    trainer = Trainer([toy_network()], [ToyObjective()], [hook], seed=0)
    ChunkLoop(trainer, toy_batch, xla=False).run(0, 3)
    assert hook.count.numpy() == 3.0
    with pytest.raises(UserError, match="'counter' returned the op .*Assign.* from update_ops.*made outside"):
        ChunkLoop(trainer, toy_batch, xla=False)


@pytest.mark.parametrize("guarded", [False, True])
def test_update_op_of_another_stage_is_named(guarded: bool) -> None:
    class Early(Counter):
        def transform_gradients(self, gradients, context):
            self.operation = self.count.assign_add(1.0)
            return gradients

        def update_ops(self, context):
            return [self.operation]

        def veto(self, context):
            return {"never": tf.constant(False)} if guarded else {}

    with pytest.raises(UserError, match="'counter' returned the op .*Assign.*another trace, stage"):
        toy_loop([Early("counter")])


def test_update_op_of_a_branch_is_named() -> None:
    class Branches(Counter):
        def update_ops(self, context):
            made = []
            tf.cond(context.step > 3, lambda: made.append(self.count.assign_add(1.0)) or 1, lambda: 0)
            return made

    with pytest.raises(UserError, match="'counter' returned the op .*Assign.*stage or inner graph"):
        toy_loop([Branches("counter")])


class ClassicLayer(keras.layers.Layer):
    """Put something into UPDATE_OPS whenever it is called."""

    def __init__(self, make) -> None:
        """Take what makes the op, without arguments."""
        super().__init__()
        self.make = make

    def call(self, inputs):
        """Return the inputs."""
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, self.make())
        return inputs


@pytest.mark.parametrize("kind", ["eager", "earlier_trace"])
def test_classic_update_op_from_outside_the_step_is_named(kind: str) -> None:
    count = tf.Variable(0.0, trainable=False)
    made = [count.assign_add(1.0)]
    if kind == "earlier_trace":
        tf.function(lambda: made.append(count.assign_add(1.0).op), autograph=False).get_concrete_function()
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(ClassicLayer(lambda: made[-1])(inputs)))
    network = Network("model", model, keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
    with pytest.raises(
        UserError, match="UPDATE_OPS holds (the op .*Assign|something that is no op).*made outside this step"
    ):
        toy_loop(network=network)
    tf.compat.v1.reset_default_graph()  # the model's own construction put it into the collection, too


def test_a_group_of_updates_and_a_branch_that_updates_are_taken() -> None:
    class Groups(Counter):
        def update_ops(self, context):
            branch = tf.cond(context.step >= 2, lambda: self.count.assign_add(10.0).read_value(), lambda: 0.0)
            with tf.control_dependencies([branch]):
                return [tf.group(self.count.assign_add(1.0)), branch.op]

    hook = Groups("counter")
    toy_loop([hook]).run(0, 3)
    assert hook.count.numpy() == 13.0


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_batch_norm_updates_that_a_hook_drops_are_named(accumulation_steps: int) -> None:
    class Drops(StatelessHook):
        def transform_state(self, new_state, context):
            return {}

    names = "toy/norm/moving_mean, toy/norm/moving_variance"
    message = f"objective 'objective' changes {names}, but no op of the step writes that.*transform_state.*`frozen`"
    with pytest.raises(UserError, match=message):
        toy_loop([Drops()], accumulation_steps=accumulation_steps)


def test_batch_norm_updates_that_a_hook_drops_in_the_second_objective_are_named() -> None:
    class DropsLater(StatelessHook):
        def transform_state(self, new_state, context):
            return {} if context.objective == "two" else new_state

    objectives = [ToyObjective(name="one"), ToyObjective(name="two")]
    with pytest.raises(UserError, match="objective 'two' changes toy/norm/moving_mean"):
        toy_loop([DropsLater()], objectives=objectives)


def test_a_hook_may_declare_only_what_its_own_network_leaves_alone() -> None:
    class Drops(StatelessHook):
        def transform_state(self, new_state, context):
            return {}

    class Declares(StatelessHook):
        network = "second"

        def frozen(self):
            return {"toy/norm/moving_mean", "toy/norm/moving_variance"}

    networks, objectives = [toy_network(), toy_network("second")], [ToyObjective(), ToyObjective("second", "other")]
    with pytest.raises(UserError, match="objective 'objective' changes toy/norm/moving_mean"):
        ChunkLoop(Trainer(networks, objectives, [Drops(), Declares("declares")], seed=0), toy_batch, xla=False)


def test_batch_norm_updates_that_the_step_drops_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.step.commit.collect_state_updates", lambda variables, new_state: None)
    with pytest.raises(UserError, match="changes toy/norm/moving_mean, toy/norm/moving_variance, but no op"):
        toy_loop()


def test_a_hook_may_write_the_statistics_itself_in_place_of_the_step() -> None:
    class Takes(StatelessHook):
        def transform_state(self, new_state, context):
            self.mean = new_state["toy/norm/moving_mean"]
            return {name: value for name, value in new_state.items() if name != "toy/norm/moving_mean"}

        def update_ops(self, context):
            return [context.network.variables["toy/norm/moving_mean"].value.assign(2.0 * self.mean)]

    network = toy_network()
    loop = toy_loop([Takes()], network=network)
    loop.run(0, 1)
    assert "toy/norm/moving_mean" in loop.trainer.commits[0].update_writes


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
