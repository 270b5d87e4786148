"""The file of the digits within scikit-learn, read without importing that package: its import takes a second."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

FILE = Path("datasets") / "data" / "digits.csv.gz"
SIDE = 8


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of `sklearn.datasets.load_digits`.

    Returns:
        float64 [1797, 8, 8], whole grey values 0..16; int64 [1797].
    """
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (file := Path(folder) / FILE).is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                table = np.loadtxt(lines, delimiter=",", dtype=np.float64)
            return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # its data lies elsewhere in this version

    bunch = load_digits()
    return bunch.images, bunch.target.astype(np.int64)
