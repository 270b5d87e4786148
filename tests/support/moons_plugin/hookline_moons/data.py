"""Points of the plane in two classes, each a half circle."""

import numpy as np
from sklearn.datasets import make_moons

from hookline.trainer.input.data import ArraySource, Data, Split
from hookline.trainer.input.split import split_indices


def moons(*, examples=400, noise=0.1):
    points, labels = make_moons(examples, noise=noise, random_state=0)
    arrays = {"inputs": points.astype(np.float32), "targets": labels.astype(np.int64)}
    source = ArraySource(arrays, lambda batch: batch)
    parts = split_indices(examples, {"validation": 0.2, "test": 0.2}, 0, arrays["targets"])
    splits = {name: Split(name, source, rows) for name, rows in parts.items()}
    return Data("moons", **splits, input_shape=(2,), classes=2, class_names=("upper", "lower"))
