"""The embedded digits dataset."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hookline.recipes.data.input_form import transform_of
from hookline.recipes.data.splits import data_of_parts
from hookline.trainer.input.data import ArraySource, Data
from hookline.trainer.input.preparation import pixel_preparation
from hookline.trainer.input.split import split_indices

SIDE = 8
SHAPE = (SIDE, SIDE, 1)
CLASSES = 10
PEAK = 16


def sklearn_table(name: str, delimiter: str | None = None) -> np.ndarray:
    """Return a table of `sklearn.datasets` without its slow import: float64 [rows, columns], [rows] of one column."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / f"{name}.csv.gz", delimiter=delimiter)


def digits(*, validation_fraction: float = 0.1, test_fraction: float = 0.2, seed: int = 0) -> Data:
    """Return the 1,797 digits of scikit-learn (Alpaydin & Kaynak, UCI 1998), in splits stratified by class."""
    table = sklearn_table("digits", ",")
    images, labels = table[:, :-1].astype(np.uint8).reshape(-1, *SHAPE), table[:, -1].astype(np.int64)
    parts = split_indices(len(labels), {"validation": validation_fraction, "test": test_fraction}, seed, labels)
    form = pixel_preparation(SHAPE, PEAK)
    source = ArraySource({"inputs": images, "targets": labels}, transform_of(form))
    return data_of_parts("digits", {"train": source}, parts, preparation=form, classes=CLASSES, class_names=())
