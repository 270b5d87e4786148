"""The plan of a traced loop, for tests; a bench with several networks, objectives and odd names."""

import tensorflow as tf

from hookline.scripts.planning.trace import plan_step
from hookline.trainer.hook import Declaration
from tests.support.toy import StatelessHook


def plan_of(loop, host_hooks=()):
    return plan_step(loop.trainer, host_hooks, loop.accumulators.names)


class Clip(StatelessHook):
    def __init__(self, name="clip", network="model", *, veto=False):
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
        return {f"{self.name} never": tf.constant(False)} if self.vetoes else {}

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]

    def measure(self, context):
        return {f"{self.name}/count": tf.convert_to_tensor(self.count)}
