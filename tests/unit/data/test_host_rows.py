"""Rows that Python reads: the same bits wherever a batch is made, on the host alone, and errors as they were raised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data.input_form import HostRows
from hookline.trainer.errors import UserError
from hookline.trainer.input.batches import EvaluationBatches, TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.step.stage import python_errors
from tests.support.batches import assert_same_bits, eager_batches, step_of, traced_batches

SIZE = 40
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE, 4, 4, 1), np.uint8)
LABELS = np.arange(SIZE, dtype=np.int64) % 3

SCRIPT = """
import time
import numpy as np, tensorflow as tf
from hookline.recipes.data.input_form import HostRows
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Split

def read(rows):
    time.sleep(0.05)
    return {"inputs": np.zeros([len(rows), 2], np.float32)}

specs = {"inputs": tf.TensorSpec([2], tf.float32)}
source = HostRows(read, specs, np.zeros(1000, np.int64), lambda batch: batch)
ring = [TrainingBatches(Split("train", source, np.arange(1000)), batch_size=4, seed=0).iterator(0)]
next(ring[0])
ring.append(ring)
del ring
print("done")
"""


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


def test_a_batch_has_the_same_bits_however_it_is_made():
    batches = TrainingBatches(make_split(), batch_size=8, seed=3)
    eager = eager_batches(batches, 0, 6)
    np.testing.assert_allclose(eager["inputs"], PIXELS[eager["index"]] / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(eager["box"], eager["index"] * 2)
    np.testing.assert_array_equal(eager["targets"], LABELS[eager["index"]])
    assert_same_bits(traced_batches(batches, 0, 6), eager)
    iterator = batches.iterator(2)
    prefetched = [next(iterator) for _ in range(4)]
    assert_same_bits({key: np.stack([each[key] for each in prefetched]) for key in eager}, eager_batches(batches, 2, 6))


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


def test_a_program_ends_while_batches_are_read():
    """Nothing waits for a read that cannot come back."""
    command = [sys.executable, "-c", SCRIPT]
    found = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr[-2000:]
