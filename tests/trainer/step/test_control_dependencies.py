"""The puzzle of control dependencies: what stands inside sees the update, what was made before does not."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.toy import StatelessHook, toy_loop


class Puzzle(StatelessHook):
    """Count steps; show the count as read before the update ops and under their control dependencies."""

    def build(self, context):
        self.x = tf.Variable(0.0, trainable=False)

    def state(self):
        return {"x": self.x}

    writes = state

    def transform_weights(self, weights, context):
        self.early = tf.convert_to_tensor(self.x)
        return weights

    def update_ops(self, context):
        return [self.x.assign_add(1.0)]

    def measure(self, context):
        return {"early": self.early, "identity": tf.identity(self.x)}


@pytest.mark.parametrize(("accumulation_steps", "xla"), [(1, False), (1, True), (2, False)])
def test_the_step_reads_zero_before_its_update_ops_and_one_to_five_after(accumulation_steps: int, xla: bool) -> None:
    loop = toy_loop([Puzzle()], xla=xla, accumulation_steps=accumulation_steps)
    seen = []
    for step in range(5):
        loop.run(step, 1)
        seen.append(loop.accumulators.read())
        loop.accumulators.reset()
    assert [values["early"] for values in seen] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [values["identity"] for values in seen] == [1.0, 2.0, 3.0, 4.0, 5.0]
