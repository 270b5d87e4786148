"""The plan of a traced loop, for tests; a bench with several networks, objectives and odd names."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from hookline.scripts.planning.plan import Plan
from hookline.scripts.planning.trace import plan_step
from hookline.trainer.hook import Declaration, GraphHook, HostHook
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import StatelessHook, ToyObjective, build_context, toy_batch, toy_network


def plan_of(loop: ChunkLoop, host_hooks: Sequence[HostHook] = ()) -> Plan:
    """Return the plan of a loop."""
    return plan_step(loop.trainer, host_hooks, loop.accumulators.names)


class Clip(StatelessHook):
    """Clip a kernel, count steps in UPDATE_OPS, and report the count."""

    def __init__(self, name: str = "clip", network: str = "model", *, veto: bool = False) -> None:
        super().__init__(name)
        self.network, self.vetoes = network, veto

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def declare(self):
        state = {"count": self.count}
        return Declaration(state, writes=state, projected={"toy/hidden/kernel"})

    def project(self, context):
        kernel = context.network.trainable_variables["toy/hidden/kernel"].value
        kernel.assign(tf.clip_by_value(kernel, -1.0, 1.0))

    def veto(self, context):
        """Hold nothing back."""
        return {f"{self.name} never": tf.constant(False)} if self.vetoes else {}

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]

    def measure(self, context):
        return {f"{self.name}/count": tf.convert_to_tensor(self.count)}


class Both(ToyObjective):
    """Train one network on what another one says, too."""

    def __init__(self, network: str, other: str, name: str) -> None:
        super().__init__(network, name)
        self.other = other

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.losses["other"] = tf.reduce_mean(forward(self.other, batch["inputs"]))
        return output


def pair_loop(hooks: Sequence[GraphHook] = ()) -> ChunkLoop:
    """Return a loop with the networks "first" (Adam, dropout) and "second" (SGD), each trained by its objective."""
    networks = [toy_network("first", keras.optimizers.Adam(0.1), dropout=0.5), toy_network("second")]
    for hook in hooks:
        hook.build(build_context(next(each for each in networks if each.name == hook.network)))
    objectives = [ToyObjective("first", "one"), Both("second", "first", "two")]
    return ChunkLoop(Trainer(networks, objectives, hooks, seed=0), toy_batch, xla=False)
