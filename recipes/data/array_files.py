"""Arrays by name: those of an npz file, of a folder of npy files, or of a pair of npy files."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.data.machine_memory import check_fits
from recipes.data.npy_rows import open_npy
from recipes.data.npz import read_npz
from trainer.damaged_arrays import ARRAY_FAULTS
from trainer.errors import UserError, did_you_mean
from trainer.user_path import user_path

INPUTS, TARGETS = "inputs", "targets"
KNOWN = [f"{kind}_{part}" for kind in ("x", "y", "sample_weight") for part in ("train", "validation", "test")]
"""Names that arrays may have, to suggest one."""


@dataclass(frozen=True)
class ArrayFiles:
    """Name arrays on disk.

    Attributes:
        path: what the user gave.
        files: npy files by the name of their array; empty for an npz.
        sizes: bytes of each array by name.
    """

    path: Path
    files: dict[str, Path]
    sizes: dict[str, int]

    @property
    def is_npz(self) -> bool:
        """Return whether the arrays are those of one npz file, which is read as a whole."""
        return not self.files

    def label(self, name: str) -> str:
        """Return what messages call an array.

        Args:
            name: of the array.
        """
        return f"{self.path.name}, {name}" if self.is_npz else f"'{self.files[name]}'"

    def load(self, name: str) -> np.ndarray:
        """Return an array, read into memory.

        Args:
            name: of the array, one of `sizes`.

        Raises:
            UserError: it cannot be read, or takes more than half of the machine's memory.
        """
        mend = "Set data.cache=none."
        if self.is_npz:
            mend = f"Write its arrays as npy files into a folder, {name}.npy and so on, and give the folder."
        check_fits(self.sizes[name], self.label(name), mend)
        if self.is_npz:
            return read_npz(str(self.path), [name])[name]
        return np.array(open_npy(self.files[name]))

    def named(self, name: str, option: str) -> np.ndarray:
        """Return an array that an option names; beside a pair of npy files it is the path of another.

        Args:
            name: of the array, or a path.
            option: that named it, such as "data.groups".

        Raises:
            UserError: there is no such array.
        """
        if name in self.sizes:
            return self.load(name)
        if not self.is_npz and (beside := user_path(name, option)).is_file():
            return np.array(open_npy(beside))
        raise UserError(
            f"{option}={name} names no array of '{self.path}', which holds {', '.join(self.sizes)}; expected one of "
            "them, or beside npy files the path of another."
        )


def find_arrays(path: str, targets: str | None) -> ArrayFiles:
    """Return the arrays that a user names; of npy files nothing but the header is read.

    Args:
        path: an npz file; a folder of npy files; or an npy file of the inputs. "~" is the home directory.
        targets: the npy file of the labels beside an npy file of inputs; None for the others.

    Raises:
        UserError: no such file or folder, one of another kind, or `targets` missing or out of place.
    """
    if not str(path).strip():
        raise UserError("data.path is empty; expected an npz file, an npy file, or a folder of npy files. Give one.")
    given = user_path(str(path), "data.path")
    if not given.exists():
        raise UserError(
            f"data.path '{given}' does not exist; expected an npz file, an npy file, or a folder of npy files. "
            f"Working directory: {Path.cwd()}."
        )
    if given.suffix.lower() == ".npy" and not given.is_dir():
        return _pair(given, targets)
    if targets is not None:
        raise UserError(
            f"data.targets={targets} received beside '{given}', which has its own labels; expected it beside an npy "
            "file of inputs only. Set data.targets=null."
        )
    return _folder(given) if given.is_dir() else _npz(given)


def warn_of_unread(files: ArrayFiles, read: Iterable[str | None]) -> None:
    """Name the arrays that nothing reads, in one line.

    Args:
        files: what there is.
        read: names of arrays that something reads, of `files` or not.
    """
    if unread := sorted(files.sizes.keys() - set(read)):
        known = [name for name in KNOWN if name not in files.sizes]
        near = next((found for name in unread if (found := did_you_mean(name, known))), "")
        warnings.warn(f"'{files.path}' holds arrays that nothing reads: {', '.join(unread)}.{near}", stacklevel=3)


def _pair(inputs: Path, targets: str | None) -> ArrayFiles:
    if targets is None or not str(targets).strip():
        raise UserError(f"'{inputs}' holds inputs alone; expected their labels, too. Set data.targets=<labels.npy>.")
    labels = user_path(str(targets), "data.targets")
    if not labels.is_file():
        raise UserError(f"data.targets '{labels}' does not exist; expected an npy file with the label of each input.")
    return _measured(inputs, {INPUTS: inputs, TARGETS: labels})


def _folder(folder: Path) -> ArrayFiles:
    files = {file.stem: file for file in sorted(folder.glob("*.npy")) if file.is_file()}
    if not files:
        raise UserError(
            f"data.path '{folder}' holds no npy file; expected x_train.npy, y_train.npy and so on, or inputs.npy and "
            "targets.npy. For a folder of images, set data=image_folder."
        )
    return _measured(folder, files)


def _measured(path: Path, files: dict[str, Path]) -> ArrayFiles:
    return ArrayFiles(path, files, {name: open_npy(file).nbytes for name, file in files.items()})


def _npz(file: Path) -> ArrayFiles:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except ARRAY_FAULTS as error:
        raise UserError(
            f"data.path '{file}' is no npz file ({error}); expected an npz, an npy, or a folder of npy files. Write it "
            "by numpy.savez or numpy.save."
        ) from error
    sizes = {each.filename.removesuffix(".npy"): each.file_size for each in members if each.filename.endswith(".npy")}
    return ArrayFiles(file, {}, sizes)
