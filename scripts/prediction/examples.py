"""What is predicted on: image files, or the rows of an npz or npy file, batch by batch and in order."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.trainer.errors import ARRAY_FAULTS, UserError, unknown_name, user_path
from hookline.trainer.files import open_file
from hookline.trainer.input.preparation import Preparation

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
ARRAY_SUFFIXES = (".npz", ".npy")
STANDARD_INPUT = "-"
KEYS = ("inputs", "x_test")
"""Arrays that are taken where an npz file holds several; `recipes/data/arrays.py` calls them so."""


@dataclass(frozen=True)
class Examples:
    """What to predict on."""

    size: int  # how many there are, unreadable ones included
    # returns batches: what each example is called, and inputs float32 [n, *shape] as the network takes them, several in
    # a dict
    batches: Callable[[int], Iterator[tuple[list[str], Any]]]
    skipped: list[str]  # reasons, filled while batches are made: a line for each example that cannot be read


def find_examples(paths: Sequence[str], preparation: Preparation, *, array: str | None = None) -> Examples:
    """Return the examples of image files, or of one npz or npy file."""
    arrays = [path for path in paths if path.lower().endswith(ARRAY_SUFFIXES)]
    if arrays and len(paths) > 1:
        raise UserError(f"Received {arrays[0]} beside other images. Expected one npz or npy file, or images.")
    if array is not None and not (arrays and arrays[0].lower().endswith(".npz")):
        raise UserError(f"array={array} received without an npz file. Expected images=<file>.npz, or no array.")
    if arrays:
        return _of_rows(_read_rows(user_path(arrays[0], "images"), array), preparation)
    if not preparation.takes_images:
        raise UserError(
            f"This network takes inputs of shape {list(preparation.shape)} that are not known to be made of pixels. "
            "Expected an npz or npy file of examples in place of images."
        )
    return _of_files(paths, preparation)


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


def _of_files(files: Sequence[str], preparation: Preparation) -> Examples:
    from hookline.recipes.data.images import UnreadableImage, decode_image, described

    skipped: list[str] = []

    def read(name: str) -> np.ndarray | str:
        try:
            with open_file(os.path.expanduser(name), follow=True) as file:
                return decode_image(file.read(), preparation)
        except (OSError, UnreadableImage) as error:
            return described(name, getattr(error, "strerror", None) or error)

    def batches(size: int) -> Iterator[tuple[list[str], np.ndarray]]:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for start in range(0, len(files), size):
                names = files[start : start + size]
                read_in = dict(zip(names, pool.map(read, names), strict=False))
                skipped.extend(each for each in read_in.values() if isinstance(each, str))
                whole = [name for name in names if not isinstance(read_in[name], str)]
                if whole:
                    yield whole, preparation.of_images(np.stack([read_in[name] for name in whole]))

    return Examples(len(files), batches, skipped)


def _of_rows(rows: np.ndarray, preparation: Preparation) -> Examples:
    def batches(size: int) -> Iterator[tuple[list[str], np.ndarray]]:
        for start in range(0, len(rows), size):
            part = np.asarray(rows[start : start + size])
            yield [str(start + row) for row in range(len(part))], preparation.of_arrays(part)

    return Examples(len(rows), batches, [])


def find_several(paths: Sequence[str], inputs: Mapping[str, Preparation]) -> Examples:
    """Return the examples of an npz file for a network with several inputs: x_test_<name>, or <name>."""
    if len(paths) != 1 or not paths[0].lower().endswith(".npz"):
        raise UserError(f"This network takes the inputs {', '.join(inputs)}. Expected images=<file>.npz with them.")
    path = user_path(paths[0], "images")
    found: dict[str, Examples] = {}
    for name, preparation in inputs.items():
        found[name] = _of_rows(_read_rows(path, None, (f"x_test_{name}", name)), preparation)
    sizes = {each.size for each in found.values()}
    if len(sizes) > 1:
        raise UserError(f"'{path}' holds inputs of {sorted(sizes)} examples. Expected as many of each.")

    def batches(size: int) -> Iterator[tuple[list[str], dict[str, np.ndarray]]]:
        for parts in zip(*(each.batches(size) for each in found.values()), strict=True):
            yield parts[0][0], {name: part for name, (_, part) in zip(found, parts, strict=True)}

    return Examples(sizes.pop(), batches, [])


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
