"""Sums over replicas: right, in order, in few messages, with gradients, and with the same bits on all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.replicas import on_replicas, run_on_each
from trainer.replicas import collectives
from trainer.replicas.collectives import Collectives, Group, _messages

SHAPES = ([3], [], [2, 2], [1], [0], [4, 1, 2])


def numbers(index: int, dtype: str = "float32") -> list[tf.Tensor]:
    """Return tensors of a replica that no other has."""
    generator = np.random.default_rng(index)
    return [tf.constant(generator.normal(size=shape), dtype) for shape in SHAPES]


def messages(graph: tf.Graph) -> list[tuple[str, int]]:
    """Return dtype and entries of each message that a graph sends."""
    return [
        (each.inputs[0].dtype.name, each.inputs[0].shape.num_elements())
        for each in graph.get_operations()
        if each.type == "CollectiveReduceV2"
    ]


def traced(compute) -> tf.Graph:
    """Return the graph of what one replica of two computes; it is never run."""
    made = tf.function(lambda: compute(Collectives(Group(2))), autograph=False)
    return made.get_concrete_function().graph


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
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


def test_bfloat16_and_mixed_dtypes_come_back_each_in_its_place() -> None:
    def compute(replica):
        one = float(replica.index + 1)
        return [
            tf.cast(each, tf.float32)
            for each in replica.sum([tf.fill([2], one), tf.cast(10.0 * one, tf.bfloat16), tf.constant([100.0 * one])])
        ]

    for found in run_on_each(on_replicas(2), compute):
        assert [each.tolist() for each in found] == [[3.0, 3.0], 30.0, [300.0]]


def test_tensors_of_a_dtype_travel_in_one_message() -> None:
    graph = traced(lambda sums: sums.sum([*numbers(0), tf.zeros([5], tf.float64), tf.zeros([2])]))
    assert messages(graph) == [("float32", 3 + 1 + 4 + 1 + 8 + 2), ("float64", 5)]


def test_a_full_message_leaves_and_the_next_one_begins(monkeypatch) -> None:
    monkeypatch.setattr(collectives, "MESSAGE_BYTES", 16)
    tensors = [tf.zeros([size]) for size in (3, 1, 2, 9, 1)]
    assert list(_messages(tensors)) == [[0, 1], [2, 3], [4]]
    found = run_on_each(on_replicas(2), lambda replica: replica.sum(numbers(replica.index)))
    for value, *parts in zip(found[0], numbers(0), numbers(1), strict=True):
        np.testing.assert_allclose(value, parts[0] + parts[1], rtol=1e-6)


def test_one_tensor_alone_keeps_its_shape() -> None:
    (first, second) = run_on_each(on_replicas(2), lambda replica: replica.sum([tf.ones([2, 3])]))
    np.testing.assert_array_equal(first[0], np.full([2, 3], 2.0))
    np.testing.assert_array_equal(second[0], first[0])


@pytest.mark.parametrize("tensors", [1, 2])
def test_the_gradient_is_the_sum_of_what_all_replicas_have_for_the_sum(tensors: int) -> None:
    """Loss of replica r: (r + 1) * sum(S_k^2); S = x_0 + x_1. So d(loss of all)/dx = 2 S * (1 + 2)."""

    def compute(replica):
        own = [tf.constant([1.0, 2.0]) * (replica.index + 1) * (k + 1) for k in range(tensors)]
        summed = replica.sum(own)
        loss = float(replica.index + 1) * tf.add_n([tf.reduce_sum(tf.square(each)) for each in summed])
        return tf.gradients(loss, own)

    for gradients in run_on_each(on_replicas(2), compute):
        for k, gradient in enumerate(gradients):
            np.testing.assert_allclose(gradient, 2 * 3 * 3.0 * (k + 1) * np.array([1.0, 2.0]))


def test_a_second_derivative_goes_through_a_sum() -> None:
    def compute(replica):
        x = tf.constant(float(replica.index + 1))
        (summed,) = replica.sum([x])
        (first,) = tf.gradients(summed**3, [x])  # 2 * 3 S^2
        return tf.gradients(first, [x])  # 2 * 2 * 6 S

    assert [float(found[0]) for found in run_on_each(on_replicas(2), compute)] == [72.0, 72.0]


def test_groups_have_keys_of_their_own() -> None:
    first, second = Group(2), Group(2)
    assert second.key == first.key + 1
