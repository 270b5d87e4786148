"""A folder of images, with a subfolder per class."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.recipes.data.image_source import EncodedImages, check_holding, file_stamp, image_data, report_faults
from hookline.recipes.data.images import FORMATS, SUFFIXES, UnreadableImage, check_beginning, decode_image, image_form
from hookline.recipes.data.input_form import map_in_chunks
from hookline.recipes.data.splits import SPELLINGS, check_split, complete
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, check_choice, check_number, user_path
from hookline.trainer.files import open_file
from hookline.trainer.input.data import Data
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.split import split_indices

THREADS = 8  # threads that mostly wait for a disk
LAYOUTS = "<class>/<image>, or train/<class>/<image>, beside it validation/ and test/ if you have them"
LITTER = ("thumbs.db", "desktop.ini", "__macosx")


def _check(**options: Any) -> None:
    """Check what can be checked without reading the images."""
    image_form(options["image_size"], options["fit"], options["channels"])
    check_holding(options)
    check_split(options["split"], group_pattern=("group", options["group_pattern"]))
    check_choice("data.duplicates", options["duplicates"], ("refuse", "drop"))
    check_number("data.train_share", options["train_share"], 0, 1, above_minimum=True)
    existing_folder(options["path"])


@prechecked(_check)
def image_folder(
    *,
    path: str,
    image_size: int | list[int] = 96,
    fit: str = "crop",
    channels: int = 3,
    cache: str = "memory",
    cache_dir: str | None = None,
    corrupt: str = "stop",
    train_share: float = 1.0,
    validation_share: float = 0.1,
    test_share: float = 0.2,
    split: str = "stratified",
    group_pattern: str | None = None,
    duplicates: str = "refuse",
    seed: int = 0,
) -> Data:
    """Return the images of a folder, all resized to one size."""
    options = dict(locals())
    form = image_form(image_size, fit, channels)
    listing = list_images(path)
    parts = _without_copies(listing, _split(listing, _intact(listing, corrupt), options), duplicates)
    train = parts["train"]
    if train_share != 1 and len(train):  # the start of a fixed order: a smaller share is part of a larger one
        kept = split_indices(len(train), {"kept": train_share}, seed, listing.labels[train])["kept"]
        parts["train"] = train[kept]
    folder, paths = listing.folder.resolve(), listing.paths
    return image_data(
        folder.name,
        EncodedImages(listing.labels, lambda row: _read(paths[row], form), lambda row: paths[row], form),
        parts,
        options,
        class_names=listing.class_names,
        classes=len(listing.class_names),
        remedy="Check the spelling of the folders, add images, or set data.train_share higher.",
        settings=[str(folder), {key: options[key] for key in options.keys() - {"cache", "cache_dir", "path"}}],
        stamps=lambda rows: [file_stamp(paths[row]) for row in rows],
        row_name=lambda row: os.path.relpath(paths[row], folder),
    )


def _read(path: str, form: Preparation) -> np.ndarray:
    try:
        with open_file(path, follow=True) as file:
            data = file.read()
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from error
    return decode_image(data, form)


@dataclass(frozen=True, eq=False)
class ImageListing:
    """The images of a folder."""

    folder: Path
    paths: tuple[str, ...]  # sorted within each class of each split
    labels: np.ndarray  # int64 [files], positions in `class_names`
    parts: dict[str, np.ndarray]  # rows of `paths` by split: "train", and the others that have a folder
    class_names: tuple[str, ...]  # the class folders of all splits, sorted
    skipped: tuple[str, ...]  # other files and folders found where images belong, without hidden ones


def list_images(path: str) -> ImageListing:
    """Return the images of a folder with a folder for each class or, if one is named "train", for each split."""
    folder = existing_folder(path)
    skipped: list[str] = []
    found: dict[str, dict[str, list[str]]] = {}
    for name, split_folder in _split_folders(folder, skipped).items():
        folders, files = _entries(split_folder)
        skipped += files
        found[name] = {}
        for each in folders:
            inner, files = _entries(each)
            skipped += [file for file in files if not file.lower().endswith(SUFFIXES)] + [str(one) for one in inner]
            found[name][each.name] = [file for file in files if file.lower().endswith(SUFFIXES)]
    class_names = tuple(sorted({name for classes in found.values() for name in classes}))
    if not any(files for classes in found.values() for files in classes.values()):
        example = f", but {len(skipped)} other files or folders, such as '{skipped[0]}'" if skipped else ""
        raise UserError(f"No {FORMATS} in the folders of '{folder}'{example}. Expected {LAYOUTS}.")
    if len(class_names) < 2:
        raise UserError(f"'{folder}' holds one class, '{class_names[0]}'; expected 2 or more. Expected {LAYOUTS}.")
    paths: list[str] = []
    labels: list[int] = []
    parts = {}
    for name, classes in found.items():
        start = len(paths)
        for label, class_name in enumerate(class_names):
            files = classes.get(class_name, [])
            paths += files
            labels += [label] * len(files)
        parts[name] = np.arange(start, len(paths), dtype=np.int64)
    return ImageListing(folder, tuple(paths), np.array(labels, np.int64), parts, class_names, tuple(skipped))


def existing_folder(path: str) -> Path:
    """Return the folder at a path; refuse a file or a missing path."""
    folder = user_path(str(path), "data.path")
    if folder.is_dir() and str(path).strip():
        return folder
    if not folder.is_file():
        raise UserError(f"data.path '{path}' does not exist; expected a folder. Working directory: {Path.cwd()}.")
    raise UserError(f"data.path '{folder}' is a file; expected a folder: {LAYOUTS}. Unpack it first.")


def _split_folders(folder: Path, skipped: list[str]) -> dict[str, Path]:
    """Return the folders of the splits; the folder itself as "train" if it holds class folders."""
    folders = {each.name: each for each in _entries(folder)[0]}
    if "train" not in folders or not _entries(folders["train"])[0]:
        if folders and folders.keys() <= {spelling for each in SPELLINGS.values() for spelling in each}:
            raise UserError(f"'{folder}' holds {', '.join(folders)}, but train holds no folders. Expected {LAYOUTS}.")
        return {"train": folder}
    found: dict[str, Path] = {}
    for name, spellings in SPELLINGS.items():
        if spelling := next((each for each in spellings if each in folders), None):
            found[name] = folders.pop(spelling)
    skipped += [str(each) for each in folders.values()]
    skipped += _entries(folder)[1]
    return found


def _entries(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the folders and the files in a folder, sorted, without the hidden ones."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted((entry.name, entry.path, entry.is_dir()) for entry in scan)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be read ({error.strerror}). Check its permissions.") from error
    seen = [each for each in entries if not each[0].startswith(".") and each[0].lower() not in LITTER]
    return [Path(path) for _, path, is_dir in seen if is_dir], [path for _, path, is_dir in seen if not is_dir]


def _intact(listing: ImageListing, corrupt: str) -> dict[str, np.ndarray]:
    """Return rows by split without files that do not begin like images, which are reported or refused."""
    if listing.skipped:
        warnings.warn(
            f"data.path: {len(listing.skipped)} files or folders are not read, such as '{listing.skipped[0]}': they "
            f"are not {FORMATS} in a class folder. Convert or move them, if they are part of the data.",
            stacklevel=2,
        )
    faults: dict[int, str] = {}

    def look(row: int) -> None:  # at the first bytes of a file, which takes no longer than opening it
        try:
            with open_file(listing.paths[row], follow=True) as file:
                check_beginning(file.read(8))
        except (OSError, UnreadableImage) as error:
            faults[row] = getattr(error, "strerror", None) or str(error)

    with ThreadPoolExecutor(THREADS) as pool:
        map_in_chunks(pool, look, range(len(listing.paths)))
    report_faults(faults, lambda row: listing.paths[row], corrupt)
    return {name: np.setdiff1d(rows, list(faults)).astype(np.int64) for name, rows in listing.parts.items()}


def _split(listing: ImageListing, parts: dict[str, np.ndarray], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return rows by split; splits without a folder are taken from the training images."""
    names = ["/".join(Path(path).parts[-2:]) for path in listing.paths]
    given, groups = options["group_pattern"], None
    if given is not None:
        try:
            pattern = re.compile(str(given))
        except re.error as error:
            raise UserError(f"data.group_pattern={given!r} is not a regular expression: {error}.") from error
        found = [match[1] if pattern.groups == 1 and (match := pattern.search(name)) else None for name in names]
        if lacking := [name for name, group in zip(names, found, strict=True) if group is None]:
            raise UserError(
                f"data.group_pattern={given!r} is not found in {len(lacking)} of {len(names)} images, such as "
                f"'{lacking[0]}'; expected a regular expression with one pair of brackets around what names the group "
                "in <class>/<image>, such as '/([^_]+)_' for what stands before the first _ of a name."
            )
        groups = np.array(found)
    parts = complete(parts, listing.labels, options, groups=groups, keys=np.array(names))
    for name, rows in parts.items():
        if not len(rows):
            raise UserError(f"No {FORMATS} in the {name} folder of '{listing.folder}'. Expected {LAYOUTS}.")
    return parts


def _without_copies(listing: ImageListing, parts: dict[str, np.ndarray], duplicates: str) -> dict[str, np.ndarray]:
    """Return rows by split without files that have a copy in a later split, or refuse such files."""
    copies = _copies(listing.paths, parts)
    if not copies:
        return parts
    row, same = next(iter(copies.items()))
    found = f"{len(copies)} images of '{listing.folder}' are in two splits"
    example = f"such as '{listing.paths[row]}' and '{listing.paths[same]}'"
    if duplicates == "refuse":
        raise UserError(
            f"{found}, {example}; expected none, because a test on training images is meaningless. Remove one of "
            "each, or set data.duplicates=drop to leave them out of training."
        )
    warnings.warn(f"{found}, {example}. They stay only in the last of train, validation, test.", stacklevel=3)
    return {name: np.setdiff1d(rows, list(copies)).astype(np.int64) for name, rows in parts.items()}


def _copies(paths: Sequence[str], parts: Mapping[str, np.ndarray]) -> dict[int, int]:
    """Return the row of each file with a copy in a later part, and the row of its copy in the last such part."""
    rank = {row: rank for rank, rows in enumerate(parts.values()) for row in rows.tolist()}
    sizes = {row: os.path.getsize(paths[row]) for row in sorted(rank)}
    occurrences = Counter(sizes.values())
    rows = [row for row, size in sizes.items() if occurrences[size] > 1]  # only these are read

    def digest(row: int) -> bytes:
        with open_file(paths[row], follow=True) as file:
            return hashlib.sha256(file.read()).digest()

    with ThreadPoolExecutor(THREADS) as pool:
        digests = dict(zip(rows, map_in_chunks(pool, digest, rows), strict=True))
    last: dict[bytes, int] = {}
    for row, content in digests.items():
        if content not in last or rank[row] > rank[last[content]]:
            last[content] = row
    return {row: last[content] for row, content in digests.items() if rank[row] < rank[last[content]]}
