"""A folder of images, with a subfolder per class."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hookline.recipes.data.digits import pixel_preparation
from hookline.recipes.data.hold_out import check_group_option, check_groups, check_split, hold_out
from hookline.recipes.data.image_formats import FORMATS, SUFFIXES, UnreadableImage
from hookline.recipes.data.image_source import PEAK, EncodedImages, Holding, file_stamp, open_images, report_faults
from hookline.recipes.data.images import ImageForm, decode_image, image_form
from hookline.recipes.data.input_form import find_unreadable, read_files
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, unknown_name, user_path
from hookline.trainer.files import open_file
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.split import split_indices


def find_copies(paths: Sequence[str], parts: Mapping[str, np.ndarray]) -> dict[int, int]:
    """Return the files that have the same content, byte for byte, as one of a later part.

    Only files of a size that occurs in two parts are read.

    Args:
        paths: files.
        parts: rows of `paths` by split, the ones to keep whole last, such as train, validation, test.

    Returns:
        The row of each copy, and the row in the last part that holds the same.

    Raises:
        UserError: a file that cannot be read.
    """
    ranks = np.full(len(paths), -1)
    for rank, rows in enumerate(parts.values()):
        ranks[rows] = rank
    sizes = read_files(paths, lambda file: os.fstat(file.fileno()).st_size)
    shared = _across(sizes, ranks)
    content: list[object] = [None] * len(paths)
    for row, digest in zip(shared, read_files([paths[row] for row in shared], _digest), strict=True):
        content[row] = digest
    last: dict[object, int] = {}
    copies = _across(content, ranks)
    for row in copies:
        if content[row] not in last or ranks[row] > ranks[last[content[row]]]:
            last[content[row]] = row
    return {row: last[content[row]] for row in copies if ranks[row] < ranks[last[content[row]]]}


def _across(values: Sequence[object], ranks: np.ndarray) -> list[int]:
    """Return the rows whose value occurs in two parts; None and rows of no part do not count."""
    seen: dict[object, set[int]] = {}
    for value, rank in zip(values, ranks.tolist(), strict=True):
        if value is not None and rank >= 0:
            seen.setdefault(value, set()).add(rank)
    return [row for row, value in enumerate(values) if ranks[row] >= 0 and len(seen.get(value, ())) > 1]


def _digest(file: BinaryIO) -> bytes:
    return hashlib.sha256(file.read()).digest()


SPLIT_FOLDERS = {"train": ("train",), "validation": ("validation", "val", "valid"), "test": ("test",)}
LAYOUTS = "<class>/<image>, or train/<class>/<image>, beside it validation/ and test/ if you have them"
LITTER = ("thumbs.db", "desktop.ini", "__macosx")


@dataclass(frozen=True, eq=False)
class ImageListing:
    """Name the images of a folder.

    Attributes:
        folder: that was searched.
        paths: files, sorted within each class of each split.
        labels: int64 [files], positions in `class_names`.
        parts: rows of `paths` by split, int64: "train", which is all where no folder is named so, and those of
            "validation" and "test" that have a folder.
        class_names: the class folders of all splits, sorted.
        skipped: files and folders in place of an image that are none; hidden ones are not counted.
    """

    folder: Path
    paths: tuple[str, ...]
    labels: np.ndarray
    parts: dict[str, np.ndarray]
    class_names: tuple[str, ...]
    skipped: tuple[str, ...]


def list_images(path: str) -> ImageListing:
    """Return the images of a folder that has a folder for each class, or for each split and in it for each class.

    A folder named "train" that holds folders indicates the second. File extensions may be in capital letters; splits
    may be named "val" or "valid". Hidden files and folders are ignored.

    Args:
        path: the folder; "~" is the home directory, and a relative path starts at the working directory.

    Raises:
        UserError: no such folder, an archive in its place, no images, or two folders for one split.
    """
    folder = existing_folder(path)
    skipped: list[str] = []
    found: dict[str, dict[str, list[str]]] = {}
    for name, split_folder in _split_folders(folder, skipped).items():
        folders, files = _entries(split_folder)
        skipped += files
        found[name] = {each.name: _images(each, skipped) for each in folders}
    class_names = tuple(sorted({name for classes in found.values() for name in classes}))
    _check_not_splits(folder, class_names)
    if not any(files for classes in found.values() for files in classes.values()):
        raise UserError(_no_images(folder, class_names, skipped))
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
    """Return the folder that a path names.

    Args:
        path: as for `list_images`.

    Raises:
        UserError: no such folder, or a file in its place.
    """
    if not str(path).strip():
        raise UserError("data.path is empty; expected the path of a folder of images. Give data.path=<folder>.")
    folder = user_path(str(path), "data.path")
    if folder.is_dir():
        return folder
    if not folder.exists():
        raise UserError(f"data.path '{folder}' does not exist; expected a folder. Working directory: {Path.cwd()}.")
    if zipfile.is_zipfile(folder):
        target = folder.with_suffix("")
        raise UserError(
            f"data.path '{folder}' is a zip file; expected a folder. Unzip it first: "
            f"python -m zipfile -e {folder} {target}, then data.path={target}."
        )
    raise UserError(f"data.path '{folder}' is a file; expected a folder of images: {LAYOUTS}.")


def _split_folders(folder: Path, skipped: list[str]) -> dict[str, Path]:
    """Return the folders of the splits; the folder itself as "train" where it holds class folders."""
    folders = {each.name: each for each in _entries(folder)[0]}
    if "train" not in folders or not _entries(folders["train"])[0]:
        return {"train": folder}
    found: dict[str, Path] = {}
    for name, spellings in SPLIT_FOLDERS.items():
        present = [spelling for spelling in spellings if spelling in folders]
        if len(present) > 1:
            raise UserError(
                f"'{folder}' holds {' and '.join(present)}; expected one folder for the {name} split. Remove or "
                "rename the rest."
            )
        for spelling in present:
            found[name] = folders.pop(spelling)
    skipped += [str(each) for each in folders.values()]
    skipped += _entries(folder)[1]
    return found


def _check_not_splits(folder: Path, class_names: tuple[str, ...]) -> None:
    spellings = {spelling for each in SPLIT_FOLDERS.values() for spelling in each}
    if class_names and set(class_names) <= spellings:
        raise UserError(
            f"'{folder}' holds the splits {', '.join(class_names)}, but train holds no class folders; expected "
            "train/<class>/<image>. Sort the images into a folder for each class."
        )


def _entries(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the folders and the files in a folder, sorted, without the hidden ones."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted((entry.name, entry.path, entry.is_dir()) for entry in scan)
    except OSError as error:
        raise UserError(
            f"'{folder}' cannot be read ({error.strerror}); expected a folder. Check who may read it."
        ) from error
    seen = [each for each in entries if not each[0].startswith(".") and each[0].lower() not in LITTER]
    return [Path(path) for _, path, is_dir in seen if is_dir], [path for _, path, is_dir in seen if not is_dir]


def _images(folder: Path, skipped: list[str]) -> list[str]:
    """Return the images in a class folder, and note what else it holds."""
    folders, files = _entries(folder)
    images = [file for file in files if file.lower().endswith(SUFFIXES)]
    skipped += [file for file in files if not file.lower().endswith(SUFFIXES)]
    skipped += [str(each) for each in folders]
    return images


def _no_images(folder: Path, class_names: tuple[str, ...], skipped: list[str]) -> str:
    names = ", ".join(class_names[:5]) + (", ..." if len(class_names) > 5 else "")
    held = f"folders ({names})" if class_names else "no folder"
    example = f" and {len(skipped)} other files or folders, such as '{skipped[0]}'" if skipped else ""
    deeper = f" Perhaps data.path={folder / class_names[0]} is meant." if len(class_names) == 1 and skipped else ""
    return f"No {FORMATS} in '{folder}': it holds {held}{example}. Expected {LAYOUTS}.{deeper}"


DUPLICATES = ("refuse", "drop")


def _check(
    path: str,
    image_size: Any,
    fit: Any,
    channels: Any,
    cache: str,
    cache_dir: str | None,
    corrupt: str,
    duplicates: str,
    train_share: Any,
    split: str,
    group_pattern: Any,
) -> None:
    """Check what can be checked without reading the images."""
    image_form(image_size, fit, channels)
    Holding(cache, cache_dir, corrupt)
    _check_choices(duplicates, train_share, split, group_pattern)
    existing_folder(path)


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
    """Return the images of a folder, all brought to one size.

    Args:
        path: the folder.
        image_size: height and width in pixels, or one number for both.
        fit: "crop" resizes the shorter side and cuts the middle out; "stretch" changes the proportions.
        channels: 3 for colour, 1 for grey.
        cache: "memory" decodes all images once, before training; "disk" once into a file; "none" for every batch.
        cache_dir: folder of that file; null for `hookline` in the user's cache folder.
        corrupt: images that cannot be decoded: "stop", or "skip" them with a warning that names them.
        train_share: share of the training images to use, in (0, 1], the same of every class. A smaller share is part
            of a larger one; validation and test do not change with it.
        validation_share: share, or number, of the training images held out where there is no such folder.
        test_share: likewise for the test.
        split: how they are held out: "stratified", "random", "group" or "hash" (of <class>/<image>); see `hold_out`.
        group_pattern: regular expression searched in <class>/<image>; its one pair of brackets holds the group.
        duplicates: files with the same content in two splits: "refuse", or "drop" them from all but the last of
            train, validation, test.
        seed: of the shares, 0 or more. It is not the run's seed, so runs with other seeds compare on one split.

    Returns:
        Data with "inputs" float32 [n, height, width, channels] in [-1, 1] and "targets" int64 [n].

    Raises:
        UserError: no such folder, no images, fewer than 2 classes, a class without an image to train on, a file that
            cannot be decoded, the same file or group in two splits, too little room, or a setting out of range.
    """
    options = {key: value for key, value in locals().items() if key not in ("cache", "cache_dir", "path")}
    form, holding = image_form(image_size, fit, channels), Holding(cache, cache_dir, corrupt)
    _check_choices(duplicates, train_share, split, group_pattern)
    listing = _list(path, corrupt)
    parts = _split(listing, {"validation": validation_share, "test": test_share}, seed, split, group_pattern)
    parts = _without_copies(listing, parts, duplicates)
    parts["train"] = _share_of(parts["train"], listing.labels, train_share, seed)
    _check_classes(listing, parts)
    return _data(listing, parts, form, holding, options)


def _data(listing: ImageListing, parts: dict[str, np.ndarray], form: ImageForm, holding: Holding, options: Any) -> Data:
    """Return the images of all parts from one source, without those that cannot be decoded."""
    rows = np.sort(np.concatenate(list(parts.values())))
    paths, labels = [listing.paths[row] for row in rows], listing.labels[rows]
    images = EncodedImages(labels, lambda row: _read(paths[row], form), lambda row: paths[row], form)
    folder = listing.folder.resolve()
    source, kept = open_images(
        images, holding, folder.name, [str(folder), options], lambda: [file_stamp(path) for path in paths]
    )
    if len(kept) < len(rows):
        rows = rows[kept]
        parts = {name: np.intersect1d(part, rows) for name, part in parts.items()}
        _check_classes(listing, parts)
    named = partial(_path_within, folder, [listing.paths[row] for row in rows])
    return Data(
        folder.name,
        **{name: Split(name, source, np.searchsorted(rows, part), named) for name, part in parts.items()},
        input_shape=form.shape,
        classes=len(listing.class_names),
        class_names=listing.class_names,
        preparation=pixel_preparation(form.shape, PEAK, fit=form.fit),
    )


def _path_within(folder: Path, paths: list[str], row: int) -> str:
    return os.path.relpath(paths[row], folder)


def _read(path: str, form: ImageForm) -> np.ndarray:
    try:
        with open_file(path, follow=True) as file:
            data = file.read()
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from error
    return decode_image(data, form)


def _check_choices(duplicates: str, train_share: Any, split: str, group_pattern: Any) -> None:
    check_split(split)
    check_group_option(split, "group_pattern", group_pattern)
    if duplicates not in DUPLICATES:
        raise unknown_name("data.duplicates", duplicates, DUPLICATES)
    if isinstance(train_share, bool) or not isinstance(train_share, int | float) or not 0 < train_share <= 1:
        raise UserError(f"Received data.train_share={train_share!r}; expected a number above 0, at most 1.")


def _warn_of_skipped(listing: ImageListing) -> None:
    if listing.skipped:
        warnings.warn(
            f"data.path: {len(listing.skipped)} files or folders are not read, such as '{listing.skipped[0]}': they "
            f"are no {FORMATS} in a class folder. Convert or move them, if they are part of the data.",
            stacklevel=3,
        )


def _list(path: str, corrupt: str) -> ImageListing:
    """Return the listing without files that do not begin as images do, or refuse them."""
    listing = list_images(path)
    _warn_of_skipped(listing)
    faults = find_unreadable(listing.paths)
    report_faults(faults, lambda row: listing.paths[row], corrupt)
    gone = np.fromiter(faults, np.int64, len(faults))
    return replace(listing, parts={name: rows[~np.isin(rows, gone)] for name, rows in listing.parts.items()})


def _names(listing: ImageListing) -> list[str]:
    """Return <class>/<image> of every row."""
    return ["/".join(Path(path).parts[-2:]) for path in listing.paths]


def _groups(listing: ImageListing, group_pattern: Any) -> np.ndarray:
    """Return the group of every row, as the pattern finds it."""
    try:
        pattern = re.compile(str(group_pattern))
    except re.error as error:
        raise UserError(
            f"Received data.group_pattern={group_pattern!r} ({error}); expected a regular expression such as "
            "'/([^_]+)_', which takes what stands before the first _ of a file's name."
        ) from error
    if pattern.groups != 1:
        raise UserError(
            f"Received data.group_pattern={group_pattern!r} with {pattern.groups} pairs of round brackets; expected "
            "one, around what names the group. Others may begin with (?:."
        )
    names = _names(listing)
    found = [pattern.search(name) for name in names]
    lacking = [name for name, match in zip(names, found, strict=True) if match is None or match[1] is None]
    if lacking:
        raise UserError(
            f"data.group_pattern={group_pattern!r} is not found in {len(lacking)} of {len(names)} images, such as "
            f"'{lacking[0]}'; expected it in <class>/<image> of each."
        )
    return np.array([match[1] for match in found if match is not None])


def _split(
    listing: ImageListing, shares: dict[str, float], seed: int, split: str, group_pattern: Any
) -> dict[str, np.ndarray]:
    """Return rows by split; splits without a folder are taken from the training images."""
    groups = None if group_pattern is None else _groups(listing, group_pattern)
    train = listing.parts["train"]
    held_out = hold_out(
        listing.labels[train],
        {name: share for name, share in shares.items() if name not in listing.parts},
        split=split,
        seed=seed,
        groups=lambda: None if groups is None else groups[train],
        keys=lambda: np.array(_names(listing))[train],
        mend="set data.group_pattern.",
    )
    taken = {name: train[rows] for name, rows in held_out.items()}
    parts = {name: taken[name] if name in taken else listing.parts[name] for name in ("train", *shares)}
    for name, rows in parts.items():
        if not len(rows):
            raise UserError(f"No {FORMATS} in the {name} folder of '{listing.folder}'. Expected {LAYOUTS}.")
    if groups is not None:
        check_groups(parts, groups)
    return parts


def _without_copies(listing: ImageListing, parts: dict[str, np.ndarray], duplicates: str) -> dict[str, np.ndarray]:
    """Return rows by split without files that a later split holds, too, or refuse them."""
    copies = find_copies(listing.paths, parts)
    if not copies:
        return parts
    row, same = next(iter(copies.items()))
    found = f"{len(copies)} images of '{listing.folder}' are in two splits"
    example = f"such as '{listing.paths[row]}' and '{listing.paths[same]}'"
    if duplicates == "refuse":
        raise UserError(
            f"{found}, {example}; expected none, because a test on training images says nothing. Remove one of "
            "each, or set data.duplicates=drop to leave them out of training."
        )
    warnings.warn(f"{found}, {example}. They stay only in the last of train, validation, test.", stacklevel=3)
    gone = np.fromiter(copies, np.int64)
    return {name: rows[~np.isin(rows, gone)] for name, rows in parts.items()}


def _share_of(rows: np.ndarray, labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    if share == 1 or not len(rows):
        return rows
    # A part is the beginning of one fixed order: the quarter is contained in the half.
    return rows[split_indices(len(rows), {"kept": share}, seed, labels[rows])["kept"]]


def _check_classes(listing: ImageListing, parts: dict[str, np.ndarray]) -> None:
    names = listing.class_names
    if len(names) < 2:
        raise UserError(f"'{listing.folder}' holds one class, '{names[0]}'; expected 2 or more. Expected {LAYOUTS}.")
    for split, rows in parts.items():
        counts = np.bincount(listing.labels[rows], minlength=len(names))
        lacking = [name for name, count in zip(names, counts, strict=True) if not count]
        if not lacking:
            continue
        message = f"{len(lacking)} of {len(names)} classes have no {split} image, the first is '{lacking[0]}'"
        if split == "train":
            raise UserError(
                f"{message}; expected one or more of each. Check the spelling of the folders, add images, or set "
                "data.train_share higher."
            )
        warnings.warn(f"{message}: the {split} metrics say nothing about it.", stacklevel=3)
