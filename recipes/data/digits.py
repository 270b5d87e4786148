"""The embedded digits."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import tensorflow as tf

from hookline.recipes.data.splits import data_of_parts
from hookline.trainer.input.data import ArraySource, Data
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.split import split_indices
from hookline.trainer.objective import Batch

SIDE = 8
SHAPE = (SIDE, SIDE, 1)
CLASSES = 10
PEAK = 16


def sklearn_table(name: str, delimiter: str | None = None) -> np.ndarray:
    """Return a table of `sklearn.datasets`, whose import would take a second: float64 [rows, columns]."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / f"{name}.csv.gz", delimiter=delimiter)


def centered_pixels(peak: int) -> Callable[[Batch], Batch]:
    """Return a transform of "inputs" from 0 .. peak to float32 in [-1, 1], which a sign splits in the middle."""

    def transform(batch: Batch) -> Batch:
        return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) * (2.0 / peak) - 1.0}

    return transform


def pixel_preparation(shape: tuple[int, ...], peak: int, *, fit: str = "crop", axes: str | None = None) -> Preparation:
    """Return the preparation that `centered_pixels` does; raw arrays of grey images lack the axis of channels."""
    return Preparation(shape, 2.0 / peak, -1.0, peak=peak, fit=fit, axes=axes or ("new" if shape[-1] == 1 else "last"))


def digits(*, validation_fraction: float = 0.1, test_fraction: float = 0.2, seed: int = 0) -> Data:
    """Return the 1,797 digits of scikit-learn (Alpaydin & Kaynak, UCI 1998), split by class."""
    table = sklearn_table("digits", ",")
    images, labels = table[:, :-1].astype(np.uint8).reshape(-1, *SHAPE), table[:, -1].astype(np.int64)
    parts = split_indices(len(labels), {"validation": validation_fraction, "test": test_fraction}, seed, labels)
    source = ArraySource({"inputs": images, "targets": labels}, centered_pixels(PEAK))
    form = pixel_preparation(SHAPE, PEAK)
    return data_of_parts("digits", {"train": source}, parts, preparation=form, classes=CLASSES, class_names=())
