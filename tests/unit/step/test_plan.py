"""The plan: stages with their hooks, what is written, which variables there are."""

from __future__ import annotations

import tensorflow as tf

from tests.support.toy import StatelessHook, toy_loop, toy_network
from trainer.hook import GraphHook, HostHook
from trainer.step.plan import GRAPH_STAGES, HOST_STAGES, describe_plan, overridden_stages


class Clip(StatelessHook):
    """Clip a kernel and count."""

    def build(self, context):
        self.count = tf.Variable(0.0)

    def state(self):
        return {"count": self.count}

    writes = state

    def projected(self):
        return {"toy/hidden/kernel"}

    def project(self, context):
        kernel = context.network.trainable_variables["toy/hidden/kernel"].value
        kernel.assign(tf.clip_by_value(kernel, -1.0, 1.0))

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]


class Watch(HostHook):
    """Watch chunks."""

    def state_dict(self):
        return {}

    def on_chunk_end(self, run, report):
        pass


def test_plan_names_stages_updates_variables_and_metrics() -> None:
    loop = toy_loop([Clip("clip")], network=toy_network())
    watch = Watch()
    watch.name = "watch"
    plan = describe_plan(loop.trainer, [watch], loop.accumulators.names)
    assert "| project | clip |" in plan
    assert "| on_chunk_end | watch |" in plan
    assert "transform_batch" not in plan
    assert "| objective | AssignVariableOp | toy/norm/moving_mean |" in plan
    assert "| objective | AssignAddVariableOp | clip/count |" in plan
    assert "| toy/hidden/kernel | (6, 8) | 192 | trainable, projected by clip |" in plan
    assert "| toy/norm/moving_mean | (8,) | 32 | state |" in plan
    assert "- loss/cross_entropy" in plan


def test_frozen_variables_are_told_apart() -> None:
    class Freeze(StatelessHook):
        def transform_weights(self, weights, context):
            return {n: tf.stop_gradient(w) if n == "toy/hidden/kernel" else w for n, w in weights.items()}

        def frozen(self):
            return {"toy/hidden/kernel"}

    loop = toy_loop([Freeze()])
    assert "| toy/hidden/kernel | (6, 8) | 192 | frozen |" in describe_plan(loop.trainer, [], [])


def test_every_stage_of_the_plan_is_a_stage_of_the_interface() -> None:
    assert all(callable(getattr(GraphHook, stage)) for stage in GRAPH_STAGES)
    assert all(callable(getattr(HostHook, stage)) for stage in HOST_STAGES)
    assert overridden_stages(StatelessHook(), GraphHook, GRAPH_STAGES) == []
