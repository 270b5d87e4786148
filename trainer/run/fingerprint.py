"""The fingerprint of a run's data, so that a resumed run does not silently continue on other examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from hookline.trainer.input.data import Split
from hookline.trainer.objective import Batch
from hookline.trainer.run.checkpoint_files import tensors_digest

SAMPLES = 32
"""How many rows of a split are read."""


def data_fingerprint(splits: Iterable[Split]) -> str:
    """Return a sha256 of the rows that each split names, and of the contents of some of them."""
    digest = hashlib.sha256()
    for split in splits:
        rows = np.ascontiguousarray(split.indices)
        digest.update(f"{split.name} {split.source.size} {rows.size}".encode())
        digest.update(rows.data)
        places = np.unique(np.linspace(0, rows.size - 1, SAMPLES).astype(np.int64))
        batch = split.source.gather(tf.constant(rows[places]))
        digest.update(tensors_digest(_arrays(batch)).encode())
    return digest.hexdigest()


def _arrays(batch: Batch) -> dict[str, np.ndarray]:
    """Return the arrays of a batch by name; of inputs that are several, each under its own."""
    named = {name: tf.nest.flatten(value) for name, value in batch.items()}
    return {
        name if len(values) == 1 else f"{name}/{place}": value.numpy()
        for name, values in named.items()
        for place, value in enumerate(values)
    }
