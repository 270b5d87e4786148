"""Datasets of Hugging Face and of TensorFlow Datasets, with random access; both packages are optional."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hookline.recipes.data.custom import ExampleReader, read_data
from hookline.recipes.data.images import covering, sides_of
from hookline.recipes.data.splits import PARTS
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, check_choice, check_integer, import_optional
from hookline.trainer.input.data import Data

SAVED = ("dataset_dict.json", "state.json")  # files that `save_to_disk` writes: for several splits, for one
SPLITS = ("auto", "stratified", "random")
GRAY, NUMBERS = ("1", "L", "LA"), ("I", "F", "I;16")
"""Modes of Pillow: grayscale, and numbers other than pixels from 0 to 255."""
INSTALL = "pip install tensorflow-datasets array-record importlib-resources"


def _check(split: str, streaming: Any, examples: Any, mode: str) -> None:
    check_choice("data.split", split, SPLITS)
    if examples is not None:
        check_integer("data.examples", examples, 1)
    elif streaming:
        raise UserError("data.streaming=true needs data.examples: a stream is read once, into memory. Set how many.")
    check_choice("data.mode", mode, ("auto", "RGB", "L"))


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
    """Return a dataset of the Hugging Face Hub, of `save_to_disk`, or of files that `datasets.load_dataset` reads.

    The splits "train", "validation" and "test" are used if present; missing ones are taken from the training examples.
    A dataset without splits is used as training examples. Classes and their names come from a ClassLabel column.
    """
    options = dict(locals())
    package = import_optional("datasets", extra="hugging-face", needed_by="data=hugging_face")
    folder = Path(path).expanduser()
    with _opening(f"The package datasets cannot open '{path}'", "Check data.path and data.config; a set of the hub"):
        if any((folder / name).is_file() for name in SAVED):
            found = package.load_from_disk(str(folder))
        else:
            place = str(folder) if folder.exists() else path
            found = package.load_dataset(place, config, cache_dir=cache_dir, streaming=streaming)
    given = {str(part): each for part, each in found.items()} if isinstance(found, Mapping) else {"train": found}
    first = next(iter(given.values()))
    columns = first.features or next(iter(first))  # a stream may have no features before it is read

    def make(part: str) -> _Examples:
        source = given[part].select_columns([inputs, targets])
        if not hasattr(source, "__len__"):  # a stream: its first examples are held in memory
            rows = list(source.take(examples))
            return _Examples(rows, lambda: [row[targets] for row in rows], options)
        source = source.with_format(None)  # a dataset may have been saved with another format
        chosen = source if examples is None else source.select(range(min(examples, len(source))))
        return _Examples(chosen, lambda: chosen.select_columns([targets])[:][targets], options)

    return _read_set(Path(path).name, given, columns, make, options)


@prechecked(lambda split: check_choice("data.split", split, SPLITS[1:]))
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
    """Return a dataset of TensorFlow Datasets, which is downloaded and prepared once.

    The splits "train", "validation" and "test" are used if present; missing ones are taken from the training examples.
    The dataset is prepared as ArrayRecord files, which can be read row by row.
    """
    options = dict(locals())
    try:
        package = importlib.import_module("tensorflow_datasets")
        with _opening(f"TensorFlow Datasets cannot open '{name}'", "Check data.name and data.data_dir; a set"):
            stored = {"data_dir": data_dir, "builder_kwargs": {"file_format": "array_record"}}
            given = package.data_source(name, **stored)
            bare = package.data_source(name, **stored, decoders={inputs: package.decode.SkipDecoding()})
    except ModuleNotFoundError as error:
        raise UserError(f"data=tfds needs TensorFlow Datasets ({error} for '{name}'). Install: {INSTALL}.") from error

    def make(part: str) -> _Examples:
        rows = bare[part]  # with undecoded images
        return _Examples(given[part], lambda: [int(rows[row][targets]) for row in range(len(rows))], options)

    return _read_set(name, given, next(iter(given.values())).dataset_info.features, make, options)


@contextmanager
def _opening(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise UserError(f"{what} ({type(error).__name__}: {reason}). {remedy} is downloaded once.") from error


class _Examples:
    """Examples of one split, from a mapping for each row."""

    def __init__(self, rows: Any, labels: Callable[[], list[Any]], options: Mapping[str, Any]) -> None:
        self._rows, self._labels = rows, labels
        self._inputs, self._targets, self._mode = options["inputs"], options["targets"], options.get("mode", "auto")
        self._size = None if options["image_size"] is None else sides_of(options["image_size"])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[np.ndarray, Any]:
        example = self._rows[row]
        values = example[self._inputs]
        if isinstance(values, Image.Image):
            if self._mode != "auto":
                values = values.convert(self._mode)
            elif values.mode not in NUMBERS:
                values = values.convert("L" if values.mode in GRAY else "RGB")
            pixels = np.asarray(values)
            values = pixels[..., None] if pixels.ndim == 2 else pixels
        values = np.asarray(values)
        return (values if self._size is None else covering(values, self._size)), example[self._targets]

    @property
    def labels(self) -> np.ndarray:
        return np.array(self._labels())


def _read_set(
    name: str,
    given: Mapping[str, Any],
    columns: Mapping[str, Any],
    make: Callable[[str], _Examples],
    options: Mapping[str, Any],
) -> Data:
    """Return the data of a dataset that a package has opened; the column of labels may define the classes."""
    there = [part for part in PARTS if part in given]
    parts = there if options["parts"] is None else options["parts"]
    for part in parts:
        check_choice("split in data.parts", part, there)
    if "train" not in parts:
        raise UserError(f"The set '{name}' is used with {', '.join(parts) or 'no split'}; expected train among them.")
    for option in ("inputs", "targets"):
        check_choice(f"data.{option}", options[option], columns)
    alike = "Set data.image_size to bring all to one size" + ", or data.mode for one color mode" * ("mode" in options)
    readers = {
        part: ExampleReader(make(part), name=f"{name}, {part}", threads=options["threads"], alike=f"{alike}.")
        for part in there
        if part in parts
    }
    label = columns[options["targets"]]
    classes, names = getattr(label, "num_classes", None), getattr(label, "names", None) or ()
    return read_data(name, readers, options, classes, names)
