"""Sums over replicas: right, in order, in few messages, with gradients, and with the same bits on all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.replicas import replica as collectives
from hookline.trainer.replicas.replica import _messages
from tests.support.replicas import on_replicas, run_on_each

SHAPES = ([3], [], [2, 2], [1], [0], [4, 1, 2])


def numbers(index: int, dtype: str = "float32") -> list[tf.Tensor]:
    """Return tensors of a replica that no other has."""
    generator = np.random.default_rng(index)
    return [tf.constant(generator.normal(size=shape), dtype) for shape in SHAPES]


@pytest.mark.parametrize(("count", "dtype"), [(2, "float32"), (3, "float16")])
def test_all_replicas_get_the_sums_in_order_and_with_the_same_bits(count: int, dtype: str) -> None:
    found = run_on_each(on_replicas(count), lambda replica: replica.sum(numbers(replica.index, dtype)))
    expected = [
        np.sum(each, axis=0, dtype=np.float64) for each in zip(*(numbers(i, dtype) for i in range(count)), strict=True)
    ]
    for first, others in zip(found[0], zip(*found[1:], strict=True), strict=True):
        assert first.dtype == dtype
        assert all(other.tobytes() == first.tobytes() for other in others)
    for value, wanted in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(
            value, wanted, rtol=1e-2 if dtype == "float16" else 1e-6, atol=1e-2 if dtype == "float16" else 1e-6
        )


def test_a_full_message_leaves_and_the_next_one_begins(monkeypatch) -> None:
    monkeypatch.setattr(collectives, "MESSAGE_BYTES", 16)
    tensors = [tf.zeros([size]) for size in (3, 1, 2, 9, 1)]
    assert list(_messages(tensors)) == [[0, 1], [2, 3], [4]]
    found = run_on_each(on_replicas(2), lambda replica: replica.sum(numbers(replica.index)))
    for value, *parts in zip(found[0], numbers(0), numbers(1), strict=True):
        np.testing.assert_allclose(value, parts[0] + parts[1], rtol=1e-6)


def test_the_gradient_is_the_sum_of_what_all_replicas_have_for_the_sum() -> None:
    """Loss of replica r: (r + 1) * sum(S_k^2); S = x_0 + x_1. So d(loss of all)/dx = 2 S * (1 + 2)."""

    def compute(replica):
        own = [tf.constant([1.0, 2.0]) * (replica.index + 1) * (k + 1) for k in range(2)]
        summed = replica.sum(own)
        loss = float(replica.index + 1) * tf.add_n([tf.reduce_sum(tf.square(each)) for each in summed])
        return tf.gradients(loss, own)

    for gradients in run_on_each(on_replicas(2), compute):
        for k, gradient in enumerate(gradients):
            np.testing.assert_allclose(gradient, 2 * 3 * 3.0 * (k + 1) * np.array([1.0, 2.0]))
