"""Sets of TensorFlow Datasets, read at random; the package is optional."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from hookline.recipes.data.custom import ExampleReader, read_data
from hookline.recipes.data.hold_out import check_split, chosen_parts
from hookline.recipes.data.images import covering, sides_of
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.data import Data

PACKAGE = "tensorflow_datasets"
INSTALL = "pip install tensorflow-datasets array-record importlib-resources"
FORMAT = "array_record"
RESIZE = "Set data.image_size to bring all to one size."
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
    check_split(split)
    if split not in SPLITS:
        raise UserError(f"data.split={split} received with data=tfds; expected {' or '.join(SPLITS)}. Choose one.")
    size = None if image_size is None else sides_of(image_size)
    given = _open(name, data_dir)
    chosen = chosen_parts(f"The TensorFlow Dataset '{name}'", given, parts)
    features = given["train"].dataset_info.features
    for option, feature in (("data.inputs", inputs), ("data.targets", targets)):
        if feature not in features:
            raise unknown_name(option, feature, features)
    # Labels are read without decoding the images beside them.
    bare = _open(name, data_dir, decoders={inputs: _package().decode.SkipDecoding()})
    readers = {}
    for part in chosen:
        examples = _Examples(given[part], bare[part], inputs, targets, size)
        readers[part] = ExampleReader(examples, threads=threads, name=f"{name}, {part}", alike=RESIZE)
    label = features[targets]
    form = {"cache": cache, "scale": scale, "channels": channels}
    return read_data(
        name,
        readers,
        {"validation": validation, "test": test},
        split=split,
        seed=seed,
        classes=getattr(label, "num_classes", None),
        class_names=tuple(getattr(label, "names", None) or ()),
        **form,
    )


class _Examples:
    """Examples of one split, as `ExampleReader` takes them."""

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


def _package() -> Any:
    try:
        return importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        raise UserError(
            f"data=tfds needs TensorFlow Datasets, and {error.name} is missing. Install: {INSTALL}."
        ) from error


def _open(name: str, data_dir: str | None, **options: Any) -> dict[str, Any]:
    """Return the sources of all splits by name."""
    package = _package()
    try:
        found = package.data_source(name, data_dir=data_dir, builder_kwargs={"file_format": FORMAT}, **options)
    except ModuleNotFoundError as error:
        raise UserError(f"TensorFlow Datasets needs {error.name or error} for '{name}'. Install: {INSTALL}.") from error
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise UserError(
            f"TensorFlow Datasets cannot open '{name}' ({type(error).__name__}: {reason}). Check data.name and "
            "data.data_dir; a set is downloaded once, which takes a connection."
        ) from error
    return {str(part): source for part, source in found.items()}
