"""The plan of a step says what is written, by whom, and what comes after it; for any networks and objectives."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.support.pairs import Judge, discriminator, generator, pairs_loop
from tests.support.plan import Classic, Clip, pair_loop, plan_of
from tests.support.toy import (
    CLASSES,
    FEATURES,
    StatelessHook,
    ToyObjective,
    build_context,
    toy_batch,
    toy_loop,
    toy_network,
)
from trainer.network import Network
from trainer.plan.flow import step_flow
from trainer.plan.plan import HOOK, NETWORK, OPTIMIZER, UNTRAINED, Apply, ObjectivePlan, Projection, Update
from trainer.plan.sections import sections
from trainer.step.copy_network import copy_network
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

MOVING = "the trainer, for moving statistics"
SEED = "the trainer, for seed state"
TRAINED = tuple(f"toy/{name}" for name in ("hidden/kernel", "hidden/bias", "norm/gamma", "norm/beta"))
TRAINED += ("toy/logits/kernel", "toy/logits/bias")


def roles(loop: ChunkLoop, network: str = "model") -> dict[str, str]:
    return {each.name: each.role for each in plan_of(loop).variables_of(NETWORK, network)}


@pytest.mark.parametrize("vetoed", [False, True])
@pytest.mark.parametrize("xla", [False, True])
def test_each_update_op_is_named_with_what_it_writes_and_who_added_it(vetoed: bool, xla: bool):
    loop = toy_loop([Clip(veto=vetoed)], network=toy_network(dropout=0.5), xla=xla)
    (objective,) = plan_of(loop).objectives
    assert objective == ObjectivePlan(
        name="objective",
        runs=("model",),
        changes=("model",),
        hooks=dict.fromkeys(("veto", "update_ops", "project", "measure"), ("clip",)),
        updates=(
            Update("AssignVariableOp", ("dropout/seed_generator_state",), SEED),
            Update("AssignVariableOp", ("toy/norm/moving_mean",), MOVING),
            Update("AssignVariableOp", ("toy/norm/moving_variance",), MOVING),
            Update("AssignAddVariableOp", ("clip/count",), "clip"),
        ),
        applies=(Apply("model", "SGD", TRAINED),),
        projections=(Projection("clip", "model", ("toy/hidden/kernel",)),),
    )


def test_updates_that_are_alike_share_a_row_and_none_is_lost():
    (objective,) = plan_of(toy_loop([Clip()], network=toy_network(dropout=0.5))).objectives
    alike = objective.alike_updates()
    assert [(each.ops, each.added_by) for each in alike] == [
        ("AssignVariableOp", SEED),
        ("2 x AssignVariableOp", MOVING),
        ("AssignAddVariableOp", "clip"),
    ]
    assert [name for each in alike for name in each.writes] == [
        name for each in objective.updates for name in each.writes
    ]


@pytest.mark.parametrize("vetoed", [False, True])
def test_what_the_forward_pass_adds_to_the_collection_is_named_also_where_a_veto_makes_a_branch(vetoed: bool):
    hook = Classic(veto=vetoed)
    loop = toy_loop([hook])
    (objective,) = plan_of(loop).objectives
    assert objective.updates[0] == Update("AssignAddVariableOp", ("clip/count",), "the forward pass")
    loop.run(0, 2)
    assert hook.count.numpy() == 2.0


class Direct(Clip):
    """Add the update to the collection in update_ops, and return nothing."""

    def update_ops(self, context):
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, self.count.assign_add(1.0).op)
        return []


def test_a_hook_that_fills_the_collection_by_itself_is_named():
    (objective,) = plan_of(toy_loop([Direct()])).objectives
    assert objective.updates[-1] == Update("AssignAddVariableOp", ("clip/count",), "clip")


def test_a_variable_that_nobody_declares_has_no_name():
    class Hidden(StatelessHook):
        def build(self, context):
            self.secret = tf.Variable([0.0, 0.0])

        def update_ops(self, context):
            return [self.secret.scatter_sub(tf.IndexedSlices(tf.constant([1.0]), tf.constant([0])))]

    updates = plan_of(toy_loop([Hidden()])).objectives[0].updates
    assert updates[-1] == Update("ResourceScatterSub", (), "probe")


def test_an_optimizers_variable_that_a_hook_writes_is_named():
    class Reset(StatelessHook):
        def update_ops(self, context):
            (slot,) = context.network.optimizer_slots("toy/logits/bias").values()
            return [slot.value.assign(tf.zeros(slot.shape))]

    network = toy_network(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    (name,) = plan_of(toy_loop([Reset()], network=network)).objectives[0].updates[-1].writes
    assert name == "optimizer/toy_logits_bias_momentum"


def test_several_networks_and_objectives_each_have_their_own():
    loop = pair_loop([Clip("clip_first", "first"), Clip("clip_second", "second")])
    plan = plan_of(loop)
    one, two = plan.objectives
    assert (one.name, one.runs, one.changes) == ("one", ("first",), ("first",))
    assert (two.name, two.runs, two.changes) == ("two", ("first", "second"), ("second",))
    assert [update.writes for update in one.updates] == [
        ("first/dropout/seed_generator_state",),
        ("first/toy/norm/moving_mean",),
        ("first/toy/norm/moving_variance",),
        ("clip_first/count",),
    ]
    assert [update.writes for update in two.updates] == [
        ("second/toy/norm/moving_mean",),
        ("second/toy/norm/moving_variance",),
        ("clip_second/count",),
    ]
    assert one.applies == (Apply("first", "Adam", TRAINED),)
    assert two.applies == (Apply("second", "SGD", TRAINED),)
    assert (one.hooks["project"], two.hooks["project"]) == (("clip_first",), ("clip_second",))
    assert plan.networks == {"first": "Sequential 'toy'", "second": "Sequential 'toy'"}
    assert len(plan.variables_of(OPTIMIZER, "first")) == 2 + 2 * len(TRAINED)
    assert {each.owner for each in plan.variables_of(HOOK)} == {"clip_first", "clip_second"}
    assert "two/loss/other" in plan.metrics.training


def test_an_objective_that_changes_several_networks_applies_to_each():
    class Joint(ToyObjective):
        changes = ("first", "second")

        def __init__(self):
            self.name = "joint"

        def compute(self, forward, batch):
            first = ToyObjective("first").compute(forward, batch)
            second = ToyObjective("second").compute(forward, batch)
            first.losses["second"] = second.losses["cross_entropy"]
            return first

    networks = [toy_network("first"), toy_network("second")]
    loop = ChunkLoop(Trainer(networks, [Joint()], [], seed=0), toy_batch, xla=False)
    (objective,) = plan_of(loop).objectives
    assert objective.applies == (Apply("first", "SGD", TRAINED), Apply("second", "SGD", TRAINED))
    assert len(objective.updates) == 4


def test_weights_are_transformed_wherever_the_network_runs_and_batches_for_all():
    class Transform(StatelessHook):
        def __init__(self, name: str, network: str) -> None:
            super().__init__(name)
            self.network = network

        def transform_batch(self, batch, context):
            return batch

        def transform_weights(self, weights, context):
            return weights

        def transform_gradients(self, gradients, context):
            return gradients

    one, two = plan_of(pair_loop([Transform("a", "first"), Transform("b", "second")])).objectives
    assert one.hooks == {"transform_batch": ("a", "b"), "transform_weights": ("a",), "transform_gradients": ("a",)}
    assert two.hooks == {"transform_batch": ("a", "b"), "transform_weights": ("a", "b"), "transform_gradients": ("b",)}


def test_projected_variables_stand_in_the_order_of_the_network():
    class ClipAll(Clip):
        def projected(self):
            return set(TRAINED)

    (projection,) = plan_of(toy_loop([ClipAll()])).objectives[0].projections
    assert projection.variables == TRAINED


def test_a_scaled_optimizer_is_named_with_the_one_inside_it():
    network = toy_network(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))
    plan = plan_of(toy_loop(network=network))
    assert plan.objectives[0].applies == (Apply("model", "LossScaleOptimizer(Adam)", TRAINED),)
    groups = [each.group for each in plan.variables_of(OPTIMIZER)]
    assert groups.count("momentums") == groups.count("velocities") == len(TRAINED)


def test_roles_tell_trained_frozen_written_and_untouched_variables_apart():
    class Freeze(StatelessHook):
        def transform_weights(self, weights, context):
            return {n: tf.stop_gradient(w) if n == "toy/hidden/kernel" else w for n, w in weights.items()}

        def frozen(self):
            return {"toy/hidden/kernel", "toy/norm/moving_mean"}

        def transform_state(self, new_state, context):
            return {name: value for name, value in new_state.items() if not name.endswith("moving_mean")}

    loop = toy_loop([Freeze()])
    found = roles(loop)
    assert found["toy/hidden/kernel"] == "frozen"
    assert found["toy/hidden/bias"] == "trainable"
    assert found["toy/norm/moving_variance"] == "state"
    assert found["toy/norm/moving_mean"] == "frozen"
    assert "toy/hidden/kernel" not in plan_of(loop).objectives[0].applies[0].variables


def test_a_layer_that_keras_does_not_train_is_not_called_state():
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(8, name="base", trainable=False), keras.layers.Dense(CLASSES)]
    )
    network = Network("model", model, keras.optimizers.SGD())
    network.optimizer.build(model.trainable_variables)
    found = roles(toy_loop(network=network))
    assert {role for name, role in found.items() if "base" in name} == {"not trained"}


def test_variables_have_shapes_types_bytes_and_all_hooks_that_project_them():
    network = toy_network(optimizer=keras.optimizers.Adam())
    plan = plan_of(toy_loop([Clip("a"), Clip("b")], network=network))
    found = {(each.kind, each.owner, each.name): each for each in plan.variables}
    kernel = found[NETWORK, "model", "toy/hidden/kernel"]
    assert (kernel.shape, kernel.dtype, kernel.bytes, kernel.group) == ((6, 8), "float32", 192, "toy/hidden")
    assert kernel.projected_by == ("a", "b")
    slot = found[OPTIMIZER, "model", "toy_hidden_kernel_velocity"]
    assert (slot.shape, slot.bytes, slot.group, slot.role) == ((6, 8), 192, "velocities", "")
    assert found[OPTIMIZER, "model", "iteration"].group == ""
    count = found[HOOK, "a", "count"]
    assert (count.shape, count.bytes) == ((), 4)
    assert len(plan.variables) == len(network.variables) + len(network.optimizer_variables) + 2


def test_a_variable_of_open_shape_counts_with_what_it_holds():
    class Grows(StatelessHook):
        def build(self, context):
            self.list = tf.Variable(tf.zeros([5, 2], tf.int64), shape=[None, 2], trainable=False)

        def state(self):
            return {"list": self.list}

    (variable,) = plan_of(toy_loop([Grows("grows")])).variables_of(HOOK)
    assert (variable.shape, variable.entries, variable.bytes) == ((None, 2), 10, 80)


class Follows(Judge):
    """Begin with a copy, in every second step."""

    def begin(self, networks):
        def copy():
            with tf.control_dependencies(copy_network(networks["source"], networks["messenger"], optimizer="keep")):
                return tf.constant(True)

        return [tf.cond(networks["source"].optimizer.iterations % 2 == 1, copy, lambda: tf.constant(False)).op]


@pytest.mark.parametrize("guarded", [False, True])
def test_each_objective_shows_its_copies_what_it_changes_and_how_often_it_runs(guarded: bool):
    networks = [discriminator("source"), discriminator("messenger"), generator("made")]
    networks[2].fixed = True
    follows = Follows("follows", "messenger", ["made"])
    follows.updates = 2
    clips = []
    if guarded:  # then the copies stand in a branch, since the objective before may hold the step back
        clips = [Clip(f"clip_{name}", name, veto=True) for name in ("source", "messenger")]
        for clip in clips:
            clip.projected, clip.project = set, lambda context: None
            clip.build(build_context(networks[0]))
    plan = plan_of(pairs_loop(networks, [Judge("judge", "source", ["made"]), follows], clips))
    judge, found = plan.objectives
    assert (judge.times, judge.changes, judge.runs) == (1, ("source",), ("source", "made"))
    assert (found.times, found.changes, found.runs) == (2, ("messenger",), ("messenger", "made"))
    copied = [name for each in found.updates if each.added_by == "begin" for name in each.writes]
    assert copied == [f"messenger/{name}" for name in networks[1].variables]
    assert not any(each.added_by == "begin" for each in judge.updates)
    order = next(each for each in sections(plan, full=False) if each.title.startswith("Objectives"))
    assert order.rows == (("judge", "source", "source, made", "1"), ("follows", "messenger", "messenger, made", "2"))
    assert {each.role for each in plan.variables_of(NETWORK, "made")} == {UNTRAINED}
    frame, arrows = step_flow(plan)
    keys = {box.key for box in frame.frames[1].boxes}
    assert frame.frames[1].title == "objective follows, 2 times a step"
    assert "objective_1_begin" in keys
    assert ("objective_1_begin", "objective_1_forward") in {(arrow.start, arrow.end) for arrow in arrows}


def test_one_objective_that_runs_once_needs_no_table_of_objectives():
    plan = plan_of(toy_loop())
    assert not any(each.title.startswith("Objectives") for each in sections(plan, full=True))
