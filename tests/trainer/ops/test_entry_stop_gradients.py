"""Entry-wise stop_gradient: the value is unchanged to the bit, the gradient is multiplied by the mask."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.ops.backward import entry_stop_gradients
from tests.support.masking import bits

CORNERS = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-40, 3.4e38, 1.0, -2.5], np.float32)


def value_and_gradient(op, target, mask, upstream, *, jit=False):
    @tf.function(autograph=False, jit_compile=jit)
    def run(target, mask, upstream):
        value = op(target, mask)
        return value, tf.gradients(value, target, grad_ys=upstream)[0]

    value, gradient = run(tf.constant(target), tf.constant(mask), tf.constant(upstream))
    return value.numpy(), gradient.numpy()


@pytest.mark.parametrize(("dtype", "jit"), [(bool, False), (np.float32, True), (np.int32, False)])
def test_value_is_bit_identical_and_stopped_entries_get_zero_gradient(dtype, jit):
    upstream = np.linspace(-3, 3, 10, dtype=np.float32)
    upstream[[1, 3, 5]] = np.nan, np.inf, -np.inf
    for mask in (np.zeros(10), np.ones(10), np.arange(10) % 2 == 0):
        value, gradient = value_and_gradient(entry_stop_gradients, CORNERS, mask.astype(dtype), upstream, jit=jit)
        np.testing.assert_array_equal(bits(value), bits(CORNERS))
        np.testing.assert_array_equal(gradient, np.where(mask, upstream, 0))


def test_mask_may_broadcast_and_scale_and_gets_no_gradient():
    target, upstream = np.ones((3, 2), np.float32), np.full((3, 2), 8.0, np.float32)
    value, gradient = value_and_gradient(entry_stop_gradients, target, np.float32([[0.25], [0], [2]]), upstream)
    np.testing.assert_array_equal(value, target)
    np.testing.assert_array_equal(gradient, [[2, 2], [0, 0], [16, 16]])
    mask, x = tf.Variable([1.0, 0.0]), tf.constant([2.0, 3.0], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = entry_stop_gradients(x, mask)
    by_target, by_mask = tape.gradient(value, [x, mask])
    assert value.dtype == by_target.dtype == tf.float16
    np.testing.assert_array_equal(by_target, [1, 0])
    assert by_mask is None
    with pytest.raises(ValueError, match="broadcast"):
        entry_stop_gradients(tf.constant(target), tf.ones([2, 3]))
