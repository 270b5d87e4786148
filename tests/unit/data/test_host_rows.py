"""Rows that Python reads: the same bits wherever a batch is made, on the host alone, and errors as they were raised."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from recipes.data.host_rows import HostRows
from tests.support.batches import assert_same_bits, eager_batches, step_of, traced_batches
from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches, TrainingBatches, resolve_placement
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.run.training_sheet import training_sheet
from trainer.step.python_errors import python_errors

SIZE = 40
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE, 4, 4, 1), np.uint8)
LABELS = np.arange(SIZE, dtype=np.int64) % 3


def scaled(batch):
    return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) * (1.0 / 255.0)}


def make_source(fail=None):
    def read(rows):
        if fail in rows.tolist():
            raise UserError(f"Row {fail} cannot be read. Mend it.")
        return {"inputs": PIXELS[rows], "box": rows.astype(np.float32) * 2}

    specs = {"inputs": tf.TensorSpec([4, 4, 1], tf.uint8), "box": tf.TensorSpec([], tf.float32)}
    return HostRows(read, specs, LABELS, scaled)


def make_split(**options):
    return Split("train", make_source(**options), np.arange(SIZE, dtype=np.int64))


def test_a_batch_has_the_same_bits_eagerly_in_tf_data_and_in_a_traced_loop():
    batches = TrainingBatches(make_split(), batch_size=8, seed=3)
    eager = eager_batches(batches, 0, 6)
    np.testing.assert_allclose(eager["inputs"], PIXELS[eager["index"]] / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(eager["box"], eager["index"] * 2)
    np.testing.assert_array_equal(eager["targets"], LABELS[eager["index"]])
    assert_same_bits(traced_batches(batches, 0, 6), eager)
    iterator = batches.iterator(2)
    prefetched = [next(iterator) for _ in range(4)]
    assert_same_bits({key: np.stack([each[key] for each in prefetched]) for key in eager}, eager_batches(batches, 2, 6))


def test_evaluation_reads_in_a_traced_loop_every_row_once():
    batches = EvaluationBatches(make_split(), batch_size=16)
    assert batches.placement == "host"
    found = traced_batches(batches, 0, batches.count)
    rows = found["index"][found["weights"] == 1]
    np.testing.assert_array_equal(rows, np.arange(SIZE))
    np.testing.assert_allclose(found["inputs"][found["weights"] == 1], PIXELS / 255.0, rtol=1e-6)


def test_shapes_and_dtypes_are_known_while_a_graph_is_traced():
    signature = TrainingBatches(make_split(), batch_size=8, seed=3).dataset(0).element_spec
    assert signature["inputs"] == tf.TensorSpec([8, 4, 4, 1], tf.float32)
    assert signature["targets"] == tf.TensorSpec([8], tf.int64)


def test_auto_placement_is_the_host_and_the_device_is_refused_in_one_line():
    source = make_source()
    assert source.bytes == SIZE * (16 + 4 + 8)  # small enough for the device, if it could go there
    assert resolve_placement("auto", source) == resolve_placement("host", source) == "host"
    with pytest.raises(UserError, match="placement 'device' for data that Python or files give.*placement=auto"):
        resolve_placement("device", source)
    arrays = ArraySource({"inputs": PIXELS, "targets": LABELS}, scaled)
    assert not arrays.host_only
    assert resolve_placement("auto", arrays) == resolve_placement("device", arrays) == "device"


def test_only_the_labels_lie_in_memory():
    source = make_source()
    assert source.host_only
    assert (source.size, source.held_bytes) == (SIZE, SIZE * 8)
    assert source.on_accelerator() is source
    np.testing.assert_array_equal(source.labels, LABELS)
    assert source.labels.dtype == np.int64


def test_an_error_is_the_one_that_was_raised_wherever_the_batch_was_made():
    split, message = make_split(fail=17), "^Row 17 cannot be read. Mend it.$"
    batches = TrainingBatches(split, batch_size=SIZE, seed=0)
    with pytest.raises(UserError, match=message):
        batches.batch(step_of(0))
    with pytest.raises(UserError, match=message), python_errors():
        next(batches.iterator(0))
    evaluation = EvaluationBatches(split, batch_size=8)
    with pytest.raises(UserError, match=message), python_errors():
        tf.function(evaluation.batch, autograph=False)(step_of(2))
    assert tf.function(evaluation.batch, autograph=False)(step_of(1))["inputs"].shape == (8, 4, 4, 1)


def test_a_sheet_of_training_examples_can_be_drawn():
    sheet = training_sheet(TrainingBatches(make_split(), batch_size=8, seed=3))
    assert sheet is not None
    assert sheet.shape[2] == 1


def test_xla_compiles_what_uses_the_batch():
    batches = TrainingBatches(make_split(), batch_size=8, seed=3)
    mean = tf.function(lambda batch: tf.reduce_mean(batch["inputs"]), jit_compile=True)

    @tf.function(autograph=False)
    def step():
        return mean(batches.batch(step_of(0)))

    assert float(step()) == pytest.approx(float(keras.ops.mean(batches.batch(step_of(0))["inputs"])), rel=1e-6)
