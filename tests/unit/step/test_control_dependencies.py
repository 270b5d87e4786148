"""The puzzle of control dependencies: what stands inside sees the update, what was made before does not."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.toy import StatelessHook, toy_loop
from trainer.step.update_ops import UPDATE_OPS, pending_update_ops


@pytest.mark.parametrize(("kind", "expected"), [("made_before", [0.0] * 5), ("identity", [1.0, 2.0, 3.0, 4.0, 5.0])])
def test_only_an_op_created_under_the_dependencies_makes_the_update_run(kind: str, expected: list[float]) -> None:
    """`with control_dependencies([add]): y = x` adds nothing, because no op is created there; identity(x) is one."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.get_variable("x", initializer=0.0, use_resource=True)
        before = tf.convert_to_tensor(x)
        tf.compat.v1.add_to_collection(UPDATE_OPS, tf.compat.v1.assign_add(x, 1.0))
        (update,) = pending_update_ops()
        assert "AssignAdd" in update.type or "ReadVariable" in update.type
        with tf.control_dependencies(pending_update_ops()):
            y = before if kind == "made_before" else tf.identity(x)
        session.run(tf.compat.v1.global_variables_initializer())
        assert [session.run(y).item() for _ in range(5)] == expected


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
