"""Sources gather rows the same way eagerly and in graphs, and put no data into a graph."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.input.source import ArraySource


def halved(batch):
    return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) / 2.0}


def make_source(size=300):
    pixels = np.arange(size * 4, dtype=np.uint64).reshape(size, 2, 2).astype(np.uint8)
    return ArraySource({"inputs": pixels, "targets": np.arange(size, dtype=np.int64)}, halved), pixels


def test_gather_returns_transformed_rows_and_holds_bytes():
    source, pixels = make_source()
    assert (source.size, source.bytes) == (300, pixels.nbytes + 300 * 8)
    rows = np.array([7, 0, 299, 7], np.int64)
    batch = source.gather(tf.constant(rows))
    assert set(batch) == {"inputs", "targets"}
    assert batch["inputs"].dtype == tf.float32
    np.testing.assert_array_equal(batch["inputs"], pixels[rows] / 2.0)
    np.testing.assert_array_equal(batch["targets"], rows)
    made = []
    tf.function(lambda: made.append(make_source()[0]) or tf.constant(0))()  # outlives the trace
    np.testing.assert_array_equal(made[0].gather(tf.constant([5], tf.int64))["targets"], [5])


def test_arrays_that_make_no_examples_are_refused():
    for arrays, found in (
        ({"inputs": np.zeros((3, 1)), "targets": np.zeros(2)}, "inputs: 3, targets: 2"),
        ({"inputs": np.zeros((3, 1))}, "targets: none"),
        ({"inputs": np.zeros((3, 1)), "targets": np.zeros(3, np.float32)}, "float32"),
        ({"inputs": np.zeros((3, 1)), "targets": np.zeros((3, 10), np.int64)}, "int64 of shape .3, 10."),
    ):
        with pytest.raises(UserError, match=found):
            _ = ArraySource(arrays, halved).labels
