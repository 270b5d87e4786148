"""Sets of TensorFlow Datasets, read at random; the package is optional."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from hookline.recipes.data.custom import read_set
from hookline.recipes.data.images import covering, sides_of
from hookline.recipes.data.splits import check_split
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import Data

INSTALL = "pip install tensorflow-datasets array-record importlib-resources"
SPLITS = ("stratified", "random")


def tfds(
    *,
    name: str,
    data_dir: str | None = None,
    inputs: str = "image",
    targets: str = "label",
    parts: list[str] | None = None,
    image_size: int | list[int] | None = None,
    scale: str = "auto",
    channels: str = "auto",
    cache: str = "auto",
    threads: int = 8,
    validation: float | int = 0.1,
    test: float | int = 0.2,
    split: str = "stratified",
    seed: int = 0,
) -> Data:
    """Return a set of TensorFlow Datasets, which downloads and prepares it once.

    Its splits "train", "validation" and "test" are used if it has them; missing ones are taken from the training
    examples. It is prepared as ArrayRecord files, which can be read row by row.

    The arguments are explained in `configs/data/tfds.yaml`.
    """
    options = dict(locals())
    check_split(split, SPLITS)
    size = None if image_size is None else sides_of(image_size)
    try:
        package = importlib.import_module("tensorflow_datasets")
        given = _open(package, name, data_dir)
        # Labels are read without decoding the images beside them.
        bare = _open(package, name, data_dir, decoders={inputs: package.decode.SkipDecoding()})
    except ModuleNotFoundError as error:
        raise UserError(f"data=tfds needs TensorFlow Datasets ({error} for '{name}'). Install: {INSTALL}.") from error

    def make(part: str) -> _Examples:
        return _Examples(given[part], bare[part], inputs, targets, size)

    return read_set(name, given, next(iter(given.values())).dataset_info.features, make, options)


def _open(package: Any, name: str, data_dir: str | None, **options: Any) -> dict[str, Any]:
    """Return the sources of all splits by name."""
    try:
        found = package.data_source(name, data_dir=data_dir, builder_kwargs={"file_format": "array_record"}, **options)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise UserError(
            f"TensorFlow Datasets cannot open '{name}' ({type(error).__name__}: {reason}). Check data.name and "
            "data.data_dir; a set is downloaded once, which takes a connection."
        ) from error
    return {str(part): source for part, source in found.items()}


class _Examples:
    """Examples of one split."""

    def __init__(self, source: Any, bare: Any, inputs: str, targets: str, size: tuple[int, int] | None) -> None:
        self._source, self._bare = source, bare
        self._inputs, self._targets, self._size = inputs, targets, size

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, row: int) -> tuple[np.ndarray, Any]:
        example = self._source[row]
        values = np.asarray(example[self._inputs])
        return (values if self._size is None else covering(values, self._size)), example[self._targets]

    @property
    def labels(self) -> np.ndarray:
        return np.array([int(self._bare[row][self._targets]) for row in range(len(self._bare))], np.int64)
