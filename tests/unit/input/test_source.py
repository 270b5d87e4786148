"""Sources gather rows the same way eagerly and in graphs, and put no data into a graph."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import UserError
from trainer.input.source import ArraySource


def halved(batch):
    return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) / 2.0}


def make_source(size=300):
    pixels = np.arange(size * 4, dtype=np.uint64).reshape(size, 2, 2).astype(np.uint8)
    return ArraySource({"inputs": pixels, "targets": np.arange(size, dtype=np.int64)}, halved), pixels


def test_gather_returns_transformed_rows_and_nothing_else():
    source, pixels = make_source()
    rows = np.array([7, 0, 299, 7], np.int64)
    batch = source.gather(tf.constant(rows))
    assert set(batch) == {"inputs", "targets"}
    assert batch["inputs"].dtype == tf.float32
    np.testing.assert_array_equal(batch["inputs"], pixels[rows] / 2.0)
    np.testing.assert_array_equal(batch["targets"], rows)


def test_images_stay_uint8_in_memory():
    source, pixels = make_source()
    assert source.bytes == pixels.nbytes + 300 * 8
    assert source.size == 300


def test_transform_sees_only_the_rows_of_the_batch():
    shapes = []

    def spy(batch):
        shapes.append(batch["inputs"].shape)
        return batch

    source = ArraySource({"inputs": np.zeros((50, 3), np.uint8)}, spy)
    source.gather(tf.constant([1, 2], tf.int64))
    assert shapes == [(2, 3)]


def test_labels_are_the_targets_of_every_row_and_need_no_transform():
    def refuse(batch):
        raise AssertionError("an input was made")

    targets = np.array([2, 0, 1, 2], np.uint8)
    source = ArraySource({"inputs": np.zeros((4, 3), np.uint8), "targets": targets}, refuse)
    assert source.labels.dtype == np.int64
    np.testing.assert_array_equal(source.labels, [2, 0, 1, 2])
    source.labels[0] = 7  # a copy: nobody can change the data by it
    np.testing.assert_array_equal(source.labels, [2, 0, 1, 2])


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({}, "targets: none; expected integers"),
        ({"targets": np.zeros(3, np.float32)}, "float32 of shape .3.; expected integers .3."),
        ({"targets": np.zeros((3, 10), np.int64)}, "int64 of shape .3, 10."),
    ],
)
def test_labels_of_targets_that_are_no_class_numbers_are_refused(arrays, found):
    with pytest.raises(UserError, match=found):
        _ = ArraySource({"inputs": np.zeros((3, 2), np.uint8), **arrays}, halved).labels


def test_traced_function_captures_the_arrays_and_holds_no_copy():
    source, pixels = make_source(size=5000)
    traced = tf.function(source.gather, autograph=False).get_concrete_function(tf.TensorSpec([4], tf.int64))
    assert traced.graph.as_graph_def().ByteSize() < pixels.nbytes // 4
    assert len(traced.captured_inputs) == 2


def test_source_made_while_tracing_outlives_the_trace():
    made = []

    @tf.function(autograph=False)
    def traced():
        made.append(make_source()[0])
        return tf.constant(0)

    traced()
    np.testing.assert_array_equal(made[0].gather(tf.constant([5], tf.int64))["targets"], [5])


def test_without_accelerator_the_device_copy_is_the_source_itself():
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("this machine has an accelerator")
    source, _ = make_source()
    assert source.on_accelerator() is source


@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs a GPU")
def test_splits_share_one_copy_on_the_accelerator():
    source, pixels = make_source()
    copy = source.on_accelerator()
    assert copy is source.on_accelerator()
    assert copy is copy.on_accelerator()
    rows = tf.constant([3, 1], tf.int64)
    assert "GPU" in copy.gather(rows)["inputs"].device
    np.testing.assert_array_equal(copy.labels, source.labels)
    np.testing.assert_array_equal(copy.gather(rows)["inputs"], pixels[[3, 1]] / 2.0)


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({}, "no array"),
        ({"inputs": np.zeros((3, 1)), "targets": np.zeros(2)}, "inputs: 3, targets: 2"),
        ({"inputs": np.zeros((0, 1)), "targets": np.zeros(0)}, "inputs: 0, targets: 0"),
    ],
)
def test_arrays_of_no_or_unequal_length_are_refused(arrays, found):
    with pytest.raises(UserError, match=found):
        ArraySource(arrays, halved)
