"""Find the images of a folder: which file belongs to which split and class."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.data.image_formats import FORMATS, SUFFIXES
from trainer.errors import UserError
from trainer.user_path import user_path

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
        skipped: files and folders that stand where an image should but are none; hidden ones are not counted.
    """

    folder: Path
    paths: tuple[str, ...]
    labels: np.ndarray
    parts: dict[str, np.ndarray]
    class_names: tuple[str, ...]
    skipped: tuple[str, ...]


def list_images(path: str) -> ImageListing:
    """Return the images of a folder that has a folder for each class, or for each split and in it for each class.

    A folder named "train" that holds folders makes it the second. Names of files may end in capital letters; names
    of splits may be "val" or "valid". Hidden files and folders are passed over.

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
    """Return the images in a class folder and note what else is there."""
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
