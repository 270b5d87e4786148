"""Errors of Python inside a graph come out as they were raised."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.ops.override_gradient import override_gradient
from hookline.trainer.step.compile import python_ops
from hookline.trainer.step.stage import python_errors
from tests.support.toy import StatelessHook, toy_batch, toy_loop


def of_numpy(x: tf.Tensor, dtype: str) -> tf.Tensor:
    spec = tf.TensorSpec(x.shape, x.dtype)
    return override_gradient(lambda x: x.astype(dtype), lambda u, i, o: u, [x], numpy_output=spec, name="mine")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_user_error_comes_out_of_the_traced_loop(dtype: str) -> None:
    def batch(step):  # whose Python XLA does not compile
        made = toy_batch(step)
        return {**made, "inputs": tf.ensure_shape(tf.numpy_function(np.copy, [made["inputs"]], tf.float32), [16, 6])}

    hook = StatelessHook("numpy")
    hook.transform_weights = lambda weights, context: {n: of_numpy(w, dtype) for n, w in weights.items()}
    loop = toy_loop([hook], batch=batch)
    assert sum("/numpy/numpy_forward" in name for name in python_ops(loop.graph)) == 6
    assert python_ops(toy_loop(batch=batch, xla=True).graph) == []
    if dtype == "float32":  # as declared
        assert loop.run(0, 2) == (2, [])
        return
    with pytest.raises(UserError, match="^The NumPy forward of 'mine' returned float64"):
        loop.run(0, 2)
    with pytest.raises(tf.errors.InvalidArgumentError), python_errors():
        tf.debugging.assert_equal(tf.constant(1), tf.constant(2))
