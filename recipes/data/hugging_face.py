"""Data sets of Hugging Face, read at random or from the beginning of a stream; the package is optional."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hookline.recipes import check_choice, check_whole
from hookline.recipes.data.custom import read_set
from hookline.recipes.data.images import covering, sides_of
from hookline.recipes.data.splits import check_split
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import Data

SAVED = ("dataset_dict.json", "state.json")
"""Files of `save_to_disk`: of several splits, of one."""
MODES = ("auto", "RGB", "L")
SPLITS = ("auto", "stratified", "random")
GREY, NUMBERS = ("1", "L", "LA"), ("I", "F", "I;16")
"""Modes of Pillow: grey, and numbers that are not pixels from 0 to 255."""


def _check(split: str, streaming: Any, examples: Any, image_size: Any, mode: str) -> None:
    check_split(split, SPLITS)
    if examples is not None:
        check_whole("data.examples", examples, 1)
    elif streaming:
        raise UserError("data.streaming=true needs data.examples: a stream is read once, into memory. Set how many.")
    check_choice("data.mode", mode, MODES)
    if image_size is not None:
        sides_of(image_size)


@prechecked(_check)
def hugging_face(
    *,
    path: str,
    config: str | None = None,
    cache_dir: str | None = None,
    inputs: str = "image",
    targets: str = "label",
    parts: list[str] | None = None,
    streaming: bool = False,
    examples: int | None = None,
    image_size: int | list[int] | None = None,
    mode: str = "auto",
    scale: str = "auto",
    channels: str = "auto",
    cache: str = "auto",
    threads: int = 8,
    validation: float | int = 0.1,
    test: float | int = 0.2,
    split: str = "auto",
    seed: int = 0,
) -> Data:
    """Return a data set of the hub, of `save_to_disk`, or of files that `datasets.load_dataset` reads.

    Its splits "train", "validation" and "test" are used if it has them; missing ones are taken from the training
    examples. A set without splits is all for training. Classes and their names are those of a ClassLabel column.

    The arguments are explained in `configs/data/hugging_face.yaml`.
    """
    options = dict(locals())
    size = None if image_size is None else sides_of(image_size)
    given = _load(path, config, cache_dir, streaming)
    first = next(iter(given.values()))
    columns = first.features or next(iter(first))  # a stream may know none before it is read

    def make(part: str) -> _Examples:
        return _Examples(given[part].select_columns([inputs, targets]), inputs, targets, examples, size, mode)

    return read_set(Path(path).name, given, columns, make, options)


class _Examples:
    """Examples of one split; of a stream, those in memory."""

    def __init__(
        self, source: Any, inputs: str, targets: str, most: int | None, size: tuple[int, int] | None, mode: str
    ) -> None:
        self._inputs, self._targets, self._size, self._mode = inputs, targets, size, mode
        self._rows: Any
        if hasattr(source, "__len__"):
            rows = source.with_format(None)  # as a set may have been saved for another framework
            self._rows = rows if most is None else rows.select(range(min(most, len(rows))))
        else:
            self._rows = list(source.take(most))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[np.ndarray, Any]:
        return self._example(self._rows[row])

    @property
    def labels(self) -> np.ndarray:
        """Return all targets; images beside them are not decoded."""
        if isinstance(self._rows, list):
            return np.array([row[self._targets] for row in self._rows])
        return np.array(self._rows.select_columns([self._targets])[:][self._targets])

    def _example(self, example: Mapping[str, Any]) -> tuple[np.ndarray, Any]:
        value = example[self._inputs]
        if not isinstance(value, Image.Image):
            return np.asarray(value), example[self._targets]
        if self._mode != "auto":
            value = value.convert(self._mode)
        elif value.mode not in NUMBERS:
            value = value.convert("L" if value.mode in GREY else "RGB")
        pixels = np.asarray(value)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        return (pixels if self._size is None else covering(pixels, self._size)), example[self._targets]


def _load(path: str, config: str | None, cache_dir: str | None, streaming: bool) -> dict[str, Any]:
    """Return the splits by name."""
    try:
        package = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise UserError(
            f"data=hugging_face needs the package datasets, and {error.name} is missing. Install: pip install datasets."
        ) from error
    folder = Path(path).expanduser()
    try:
        if any((folder / name).is_file() for name in SAVED):
            found = package.load_from_disk(str(folder))
        else:
            place = str(folder) if folder.exists() else path
            found = package.load_dataset(place, config, cache_dir=cache_dir, streaming=streaming)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise UserError(
            f"The package datasets cannot open '{path}' ({type(error).__name__}: {reason}). Check data.path and "
            "data.config; a set of the hub is downloaded once, which takes a connection."
        ) from error
    return {str(part): each for part, each in found.items()} if isinstance(found, Mapping) else {"train": found}
