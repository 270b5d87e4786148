"""Python ends although a queue still reads rows: nothing waits for a read that cannot come back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import time
import numpy as np, tensorflow as tf
from recipes.data.host_rows import HostRows
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split

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


def test_a_program_ends_while_batches_are_read():
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr[-2000:]
