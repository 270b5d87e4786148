"""Images from a folder with one folder for each class: anybody's own pictures.

The folder holds <class>/<image>, or train/<class>/<image> and beside it test/ and validation/ (or val/, valid/), as
JPEG, PNG, BMP or GIF. The classes are the sorted names of the class folders of all splits. A class without an image to
train on is an error, because a network cannot learn it and it is mostly a misspelled folder; one that only validation
or test lacks is a warning, because a rare class may well be missing there. How files become pixels is said in
`recipes/data/image_decoding.py`.

With cache "disk", later runs find the decoded images as long as options, names, sizes and times of the images are the
same. With cache "none" and corrupt "stop", damage beyond a file's beginning shows when its batch is made; to skip it,
all images are decoded once before training.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recipes.data.cache_folder import file_stamp
from recipes.data.duplicates import find_copies
from recipes.data.group_option import check_group_option, check_groups
from recipes.data.hold_out import check_split, hold_out
from recipes.data.image_decoding import decode_image
from recipes.data.image_form import ImageForm, image_form
from recipes.data.image_formats import FORMATS, UnreadableImage
from recipes.data.image_listing import LAYOUTS, ImageListing, existing_folder, list_images
from recipes.data.image_source import PEAK, EncodedImages, Holding, open_images, report_faults
from recipes.data.pixels import pixel_preparation
from recipes.data.read_files import find_unreadable
from trainer.errors import UserError, unknown_name
from trainer.files import open_file
from trainer.input.data import Data, Split
from trainer.input.split import split_indices
from trainer.precheck import prechecked

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
    """Check what shows without a look at the images."""
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
    """Return rows by split; what has no folder is taken from the training images."""
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
            f"{found}, {example}; expected none, because a test on what was trained on says nothing. Remove one of "
            "each, or set data.duplicates=drop to leave them out of training."
        )
    warnings.warn(f"{found}, {example}. They stay only in the last of train, validation, test.", stacklevel=3)
    gone = np.fromiter(copies, np.int64)
    return {name: rows[~np.isin(rows, gone)] for name, rows in parts.items()}


def _share_of(rows: np.ndarray, labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    if share == 1 or not len(rows):
        return rows
    # A part is the beginning of one fixed order: the quarter lies within the half.
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
