"""What predict.py reads, and what it prints: examples of files, and predictions as a table or file."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.deploy.inference.graph import ACTIVATIONS
from hookline.scripts.command import csv_text
from hookline.trainer.errors import ARRAY_FAULTS, UserError, printable, unknown_name, user_path
from hookline.trainer.files import open_file
from hookline.trainer.input.preparation import Preparation

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
ARRAY_SUFFIXES = (".npz", ".npy")
STANDARD_INPUT = "-"
KEYS = ("inputs", "x_test")
"""Arrays that are taken where an npz file holds several; `recipes/data/arrays.py` calls them so."""


Batches = Iterator[tuple[list[str], Any]]
"""What each example is called, and inputs float32 [n, *shape] as the network takes them, several in a dict."""


def find_examples(
    paths: Sequence[str], preparation: Preparation, size: int, skipped: list[str], *, array: str | None = None
) -> Batches:
    """Return the examples of image files, or of one npz or npy file, some at a time.

    Meanwhile `skipped` gets a line for each example that cannot be read.
    """
    arrays = [path for path in paths if path.lower().endswith(ARRAY_SUFFIXES)]
    if arrays and len(paths) > 1:
        raise UserError(f"Received {arrays[0]} beside other images. Expected one npz or npy file, or images.")
    if array is not None and not (arrays and arrays[0].lower().endswith(".npz")):
        raise UserError(f"array={array} received without an npz file. Expected images=<file>.npz, or no array.")
    if arrays:
        return _of_rows(_read_rows(user_path(arrays[0], "images"), array), preparation, size)
    if not preparation.takes_images:
        raise UserError(
            f"This network takes inputs of shape {list(preparation.shape)} that are not known to be made of pixels. "
            "Expected an npz or npy file of examples in place of images."
        )
    return _of_files(paths, preparation, size, skipped)


def list_files(path: str) -> list[str]:
    """Return the files that a path matches, in natural order: 2.png before 10.png."""
    if path == STANDARD_INPUT:
        names = [line for line in sys.stdin.read().splitlines() if line.strip()]
        if not names:
            raise UserError("images=- received, but the standard input names no file. Expected one name per line.")
        return names
    given = user_path(path, "images")
    if given.is_dir():
        inside = {each: each.relative_to(given).parts for each in given.rglob("*")}
        shown = [each for each, parts in inside.items() if not any(part.startswith(".") for part in parts)]
        found = [str(each) for each in shown if each.suffix.lower() in IMAGE_SUFFIXES and each.is_file()]
        if not found:
            raise UserError(f"The folder '{given}' holds no {', '.join(IMAGE_SUFFIXES)}. Expected images in it.")
        return sorted(found, key=natural_order)
    matching = [str(given)] if given.exists() else glob.glob(str(given), recursive=True)
    if not matching:
        raise UserError(f"images={path} does not exist. Expected an image, a folder, an npz or an npy file.")
    return sorted(matching, key=natural_order)


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key by which numbers in names count as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if number % 2 else (1, 0, part) for number, part in enumerate(parts)]


def _of_files(files: Sequence[str], preparation: Preparation, size: int, skipped: list[str]) -> Batches:
    from hookline.recipes.data.images import UnreadableImage, decode_image, described

    def read(name: str) -> np.ndarray | str:
        try:
            with open_file(os.path.expanduser(name), follow=True) as file:
                return decode_image(file.read(), preparation)
        except (OSError, UnreadableImage) as error:
            return described(name, getattr(error, "strerror", None) or error)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(files), size):
            names = files[start : start + size]
            read_in = dict(zip(names, pool.map(read, names), strict=False))
            skipped.extend(each for each in read_in.values() if isinstance(each, str))
            whole = [name for name in names if not isinstance(read_in[name], str)]
            if whole:
                yield whole, preparation.of_images(np.stack([read_in[name] for name in whole]))


def _of_rows(rows: np.ndarray, preparation: Preparation, size: int) -> Batches:
    for start in range(0, len(rows), size):
        part = np.asarray(rows[start : start + size])
        yield [str(start + row) for row in range(len(part))], preparation.of_arrays(part)


def find_several(paths: Sequence[str], inputs: Mapping[str, Preparation], size: int) -> Batches:
    """Yield the examples of an npz file for a network with several inputs: x_test_<name>, or <name>."""
    if len(paths) != 1 or not paths[0].lower().endswith(".npz"):
        raise UserError(f"This network takes the inputs {', '.join(inputs)}. Expected images=<file>.npz with them.")
    path = user_path(paths[0], "images")
    rows = {name: _read_rows(path, None, (f"x_test_{name}", name)) for name in inputs}
    sizes = {len(each) for each in rows.values()}
    if len(sizes) > 1:
        raise UserError(f"'{path}' holds inputs of {sorted(sizes)} examples. Expected as many of each.")
    for parts in zip(*(_of_rows(rows[name], each, size) for name, each in inputs.items()), strict=True):
        yield parts[0][0], {name: part for name, (_, part) in zip(inputs, parts, strict=True)}


def _read_rows(path: Path, array: str | None, keys: Sequence[str] = KEYS) -> np.ndarray:
    """Return the examples of a file; those of an npy file stay there until they are asked for."""
    try:
        if path.suffix.lower() == ".npy":
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                rows = archive[_choose(path, list(archive), array, keys)]
    except ARRAY_FAULTS as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"'{path}' is not a readable file of plain arrays ({error}). Write it with numpy.savez."
        ) from error
    if not rows.ndim or not len(rows):
        raise UserError(f"'{path}' holds no example. Expected an array with an axis of examples.")
    return rows


def _choose(path: Path, names: Sequence[str], array: str | None, keys: Sequence[str]) -> str:
    if array is not None:
        if array not in names:
            raise unknown_name(f"array in '{path}'", array, names)
        return array
    found = [name for name in keys if name in names] or (list(names) if keys is KEYS else [])
    if len(found) != 1:
        wanted = "array=<name> to say which" if keys is KEYS else f"one of {' and '.join(keys)}"
        raise UserError(f"'{path}' holds {', '.join(names) or 'no array'}. Expected {wanted}.")
    return found[0]


def rank(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest classes and their probabilities, [examples, top]; of equal ones the lower label first."""
    wide = logits.astype(np.float64)
    labels = np.argsort(-wide, axis=1, kind="stable")[:, :top]
    return labels, np.take_along_axis(ACTIVATIONS["softmax"](wide), labels, axis=1)


def name_classes(outputs: int, known: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return what the entries of the outputs are called."""
    names = tuple(given or known) or tuple(str(label) for label in range(outputs))
    if len(names) != outputs:
        raise UserError(f"Received {len(names)} class names for {outputs} outputs. Expected one for each.")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"class_names has '{twice}' more than once. Expected different names.")
    return names


DIGITS = 6
"""Of a probability in a file."""
SHOWN_OUTPUTS = 8


@dataclass(frozen=True)
class Predictions:
    """The predictions of all examples that could be read, in their order."""

    names: Sequence[str]  # what each example is called
    labels: np.ndarray | None  # int [examples, top]; None if the outputs are asked for
    values: np.ndarray  # probabilities [examples, top], or outputs [examples, outputs]
    classes: Sequence[str] = ()  # what each label is called, or each output

    def __iter__(self) -> Iterator[tuple[str, list[tuple[int, float]]]]:
        """Yield name, and label and value of each entry; the label of an output is its place."""
        for index, name in enumerate(self.names):
            values = self.values[index].astype(np.float32 if self.labels is None else np.float64)
            labels = range(len(values)) if self.labels is None else self.labels[index]
            yield name, [(int(label), float(value)) for label, value in zip(labels, values, strict=True)]


def as_csv(predictions: Predictions) -> str:
    """Return predictions as CSV with a line of names above."""
    if predictions.labels is None:
        heads: list[str] = list(predictions.classes)
        rows = [[name, *(repr(value) for _, value in found)] for name, found in predictions]
    else:
        numbers = range(1, predictions.values.shape[1] + 1)
        heads = [f"{what}_{number}" for number in numbers for what in ("class", "probability")]
        rows = [
            [name, *(text for label, p in found for text in (predictions.classes[label], f"{p:.{DIGITS}f}"))]
            for name, found in predictions
        ]
    return csv_text([["example", *heads], *rows])


def as_json(predictions: Predictions) -> str:
    """Return predictions as a JSON list, an object for each example."""
    records: list[dict[str, Any]] = []
    for name, found in predictions:
        if predictions.labels is None:
            records.append({"example": name, "outputs": [value for _, value in found]})
        else:
            classes = [
                {"class": predictions.classes[label], "label": label, "probability": round(p, DIGITS)}
                for label, p in found
            ]
            records.append({"example": name, "predictions": classes})
    return json.dumps(records, indent=1) + "\n"


def as_table(predictions: Predictions) -> str:
    """Return predictions as lines with aligned columns."""
    rows = [["example", "outputs" if predictions.labels is None else "prediction"]]
    for name, found in predictions:
        if predictions.labels is None:
            more = " ..." if len(found) > SHOWN_OUTPUTS else ""
            cells = [" ".join(f"{value:.4g}" for _, value in found[:SHOWN_OUTPUTS]) + more]
        else:
            cells = [text for label, p in found for text in (printable(predictions.classes[label]), f"{100 * p:.1f} %")]
        rows.append([printable(name), *cells])
    columns = list(itertools.zip_longest(*rows, fillvalue=""))
    widths, lines = [max(map(len, column)) for column in columns], zip(*columns, strict=True)
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines) + "\n"


def print_whole(text: str) -> None:
    """Print text; a reader that leaves early (`| head`) is not a failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # a later flush at exit must not fail either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
