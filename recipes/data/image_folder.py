"""Images from a folder with one folder for each class: anybody's own pictures."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from recipes.data.duplicates import find_copies
from recipes.data.image_decoding import FITS, ImageForm, decode_images
from recipes.data.image_files import ImageFiles
from recipes.data.image_formats import FORMATS
from recipes.data.image_listing import LAYOUTS, ImageListing, list_images
from recipes.data.pixels import centered_pixels
from recipes.data.read_files import check_contents
from trainer.errors import UserError, unknown_name
from trainer.input.checks import is_whole_number
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource, Source
from trainer.input.split import split_indices

CACHES = ("memory", "none")
DUPLICATES = ("refuse", "drop")
PEAK = 255
MEMORY_SHARE = 0.5
"""How much of the machine's memory the decoded images may take; TensorFlow copies them once."""


def image_folder(
    *,
    path: str,
    image_size: int | list[int] = 96,
    fit: str = "crop",
    channels: int = 3,
    cache: str = "memory",
    train_share: float = 1.0,
    validation_share: float = 0.1,
    test_share: float = 0.2,
    duplicates: str = "refuse",
    seed: int = 0,
) -> Data:
    """Return the images of a folder, all brought to one size.

    The folder holds <class>/<image>, or train/<class>/<image> and beside it test/ and validation/ (or val/, valid/),
    as JPEG, PNG, BMP or GIF. The classes are the sorted names of the class folders of all splits. A class without an
    image to train on is an error, because a network cannot learn it and it is mostly a misspelled folder; one that
    only validation or test lacks is a warning, because a rare class may well be missing there.

    Args:
        path: the folder.
        image_size: height and width in pixels, or one number for both.
        fit: "crop" resizes the shorter side and cuts the middle out; "stretch" changes the proportions.
        channels: 3 for colour, 1 for grey.
        cache: "memory" decodes all images once, before training; "none" decodes each batch from its files.
        train_share: share of the training images to use, in (0, 1], the same of every class. A smaller share is part
            of a larger one; validation and test do not change with it.
        validation_share: share of the training images held out for validation where there is no such folder.
        test_share: likewise for the test.
        duplicates: files with the same content in two splits: "refuse", or "drop" them from all but the last of
            train, validation, test.
        seed: of the shares, 0 or more. It is not the run's seed, so runs with other seeds compare on one split.

    Returns:
        Data with "inputs" float32 [n, height, width, channels] in [-1, 1] and "targets" int64 [n].

    Raises:
        UserError: no such folder, no images, fewer than 2 classes, a class without an image to train on, a file that
            cannot be decoded, the same file in two splits, more images than memory holds, or a setting out of range.
    """
    form = _form(image_size, fit, channels)
    _check_choices(cache, duplicates, train_share)
    listing = list_images(path)
    _warn_of_skipped(listing)
    parts = _split(listing, {"validation": validation_share, "test": test_share}, seed)
    parts = _without_copies(listing, parts, duplicates)
    parts["train"] = _share_of(parts["train"], listing.labels, train_share, seed)
    _check_classes(listing, parts)
    kept = np.sort(np.concatenate(list(parts.values())))
    source = _source([listing.paths[row] for row in kept], listing.labels[kept], form, cache)
    splits = {name: Split(name, source, np.searchsorted(kept, rows)) for name, rows in parts.items()}
    return Data(
        listing.folder.resolve().name,
        **splits,
        input_shape=form.shape,
        classes=len(listing.class_names),
        class_names=listing.class_names,
    )


def _form(image_size: Any, fit: str, channels: Any) -> ImageForm:
    sides = list(image_size) if isinstance(image_size, list | tuple) else [image_size] * 2
    if len(sides) != 2 or not all(is_whole_number(side) and side > 0 for side in sides):
        raise UserError(
            f"Received data.image_size={image_size!r}; expected a number of pixels, or [height, width], such as 96."
        )
    if fit not in FITS:
        raise unknown_name("data.fit", fit, FITS)
    if not is_whole_number(channels) or channels not in (1, 3):
        raise UserError(f"Received data.channels={channels!r}; expected 3 for colour or 1 for grey.")
    return ImageForm(int(sides[0]), int(sides[1]), int(channels), fit)


def _check_choices(cache: str, duplicates: str, train_share: Any) -> None:
    if cache not in CACHES:
        raise unknown_name("data.cache", cache, CACHES)
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


def _split(listing: ImageListing, shares: dict[str, float], seed: int) -> dict[str, np.ndarray]:
    """Return rows by split; what has no folder is taken from the training images."""
    train = listing.parts["train"]
    lacking = {name: share for name, share in shares.items() if name not in listing.parts}
    taken = split_indices(len(train), lacking, seed, listing.labels[train])
    parts = {name: train[rows] for name, rows in taken.items()}
    parts = {name: parts.get(name, listing.parts.get(name)) for name in ("train", *shares)}
    for name, rows in parts.items():
        if not len(rows):
            raise UserError(f"No {FORMATS} in the {name} folder of '{listing.folder}'. Expected {LAYOUTS}.")
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


def _source(paths: list[str], labels: np.ndarray, form: ImageForm, cache: str) -> Source:
    check_contents(paths)
    transform = centered_pixels(PEAK)
    if cache == "none":
        return ImageFiles(paths, labels, form, transform)
    needed, held = len(paths) * int(np.prod(form.shape)), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > MEMORY_SHARE * held:
        raise UserError(
            f"{len(paths)} images of {form.height} x {form.width} pixels take {needed / 2**30:.1f} GiB, and this "
            f"machine has {held / 2**30:.1f} GiB; expected at most half. Set data.cache=none, or a smaller "
            "data.image_size."
        )
    return ArraySource({"inputs": decode_images(paths, form), "targets": labels}, transform)
