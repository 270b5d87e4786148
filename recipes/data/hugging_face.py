"""Data sets of Hugging Face, read at random or from the beginning of a stream; the package is optional."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hookline.recipes.data.custom import ExampleReader, read_data
from hookline.recipes.data.hold_out import check_split, chosen_parts
from hookline.recipes.data.images import covering, sides_of
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data

INSTALL = "pip install datasets"
SAVED = ("dataset_dict.json", "state.json")
"""Files of `save_to_disk`: of several splits, of one."""
MODES = ("auto", "RGB", "L")
SPLITS = ("auto", "stratified", "random")
GREY, NUMBERS = ("1", "L", "LA"), ("I", "F", "I;16")
"""Modes of Pillow: grey, and numbers that are not pixels from 0 to 255."""
ALIKE = "Set data.image_size to bring all to one size, or data.mode to have colour or grey in all."


def _check(split: str, streaming: Any, examples: Any, image_size: Any, mode: str) -> None:
    check_split(split)
    if split not in SPLITS:
        raise UserError(
            f"data.split={split} received with data=hugging_face; expected {', '.join(SPLITS)}. Choose one."
        )
    if examples is not None and (not is_whole_number(examples) or examples < 1):
        raise UserError(f"Received data.examples={examples!r}; expected a whole number above 0, or null for all.")
    if streaming and examples is None:
        raise UserError("data.streaming=true needs data.examples: a stream is read once, into memory. Set how many.")
    if mode not in MODES:
        raise unknown_name("data.mode", mode, MODES)
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
    _check(split, streaming, examples, image_size, mode)
    size = None if image_size is None else sides_of(image_size)
    given = _load(path, config, cache_dir, streaming)
    chosen = chosen_parts(f"The data set '{path}'", given, parts)
    columns = given["train"].features or next(iter(given["train"]))  # a stream may know none before it is read
    for option, column in (("data.inputs", inputs), ("data.targets", targets)):
        if column not in columns:
            raise unknown_name(option, column, columns)
    readers = {}
    for part in chosen:
        found = _Examples(given[part].select_columns([inputs, targets]), inputs, targets, examples, size, mode)
        readers[part] = ExampleReader(found, threads=threads, name=f"{path}, {part}", alike=ALIKE)
    label = columns[targets]
    return read_data(
        Path(path).name,
        readers,
        {"validation": validation, "test": test},
        split=split,
        seed=seed,
        classes=getattr(label, "num_classes", None),
        class_names=tuple(getattr(label, "names", None) or ()),
        cache=cache,
        scale=scale,
        channels=channels,
    )


class _Examples:
    """Examples of one split, as `ExampleReader` takes them; of a stream those in memory."""

    def __init__(
        self, source: Any, inputs: str, targets: str, most: int | None, size: tuple[int, int] | None, mode: str
    ) -> None:
        self._inputs, self._targets, self._size, self._mode = inputs, targets, size, mode
        self._streamed: list[tuple[np.ndarray, Any]] | None = None
        if not hasattr(source, "__len__"):
            self._streamed = [self._example(each) for each in source.take(most)]
            return
        self._source = source.with_format(None)  # as a set may have been saved for another framework
        if most is not None and most < len(source):
            self._source = self._source.select(range(most))

    def __len__(self) -> int:
        return len(self._source if self._streamed is None else self._streamed)

    def __getitem__(self, row: int) -> tuple[np.ndarray, Any]:
        return self._example(self._source[row]) if self._streamed is None else self._streamed[row]

    @property
    def labels(self) -> np.ndarray:
        """Return all targets; images beside them are not decoded."""
        if self._streamed is not None:
            return np.array([target for _, target in self._streamed])
        return np.array(self._source.select_columns([self._targets])[:][self._targets])

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
            f"data=hugging_face needs the package datasets, and {error.name} is missing. Install: {INSTALL}."
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
