"""Named arrays from npz and npy files."""

from __future__ import annotations

import os
import warnings
import weakref
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hookline.recipes.data.example_rows import INPUTS, TARGETS
from hookline.trainer.errors import ARRAY_FAULTS, UserError, did_you_mean, user_path


class NpyRows:
    """Read rows of an npy file with random access, without loading or mapping the rest.

    A truncated file raises an error here, whereas a memory map would end the process with a signal.
    """

    def __init__(self, path: Path) -> None:
        stored = open_npy(path)
        if not stored.flags.c_contiguous:
            raise UserError(
                f"'{path}' is in Fortran order, which scatters each row. Save it again with "
                "numpy.save(path, numpy.ascontiguousarray(array)), or set data.cache=memory."
            )
        self.path, self.shape = path, stored.shape
        self.dtype = stored.dtype.newbyteorder("=")
        self._stored_dtype, self._offset = stored.dtype, stored.offset
        self._row_bytes = stored.dtype.itemsize * int(np.prod(stored.shape[1:]))
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._state = self._now()

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return rows in the requested order; they are read in the order of the file."""
        if self._now() != self._state:
            raise self._changed()
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        found = np.empty([len(rows), self._row_bytes], np.uint8)
        stretches = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(ordered) != 1) + 1)
        for stretch in stretches:  # adjacent rows are read at once
            first = stretch[0]
            self._fill(found[first : first + len(stretch)].reshape(-1).data, int(ordered[first]))
        values = np.empty_like(found)
        values[order] = found
        return values.view(self._stored_dtype).reshape(len(rows), *self.shape[1:]).astype(self.dtype, copy=False)

    def _fill(self, buffer: memoryview, row: int) -> None:
        offset = self._offset + row * self._row_bytes
        try:
            while buffer:  # systems read at most 2 GiB at a time
                count = os.preadv(self._file, [buffer], offset)
                if not count:
                    raise self._changed()
                buffer, offset = buffer[count:], offset + count
        except OSError as error:
            raise UserError(f"'{self.path}' cannot be read ({error.strerror}). Fix the disk or the file.") from error

    def _now(self) -> tuple[int, int]:
        state = os.fstat(self._file)
        return state.st_size, state.st_mtime_ns

    def _changed(self) -> UserError:
        return UserError(f"'{self.path}' changed while the run read it; expected the same data to the end. Restart.")


def open_npy(path: Path) -> np.memmap:
    """Return an npy file's array as a read-only memory map, without reading values."""
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except ARRAY_FAULTS as error:
        raise UserError(f"'{path}' is not a readable npy of plain values ({error}). Write it by numpy.save.") from error
    if not isinstance(stored, np.memmap):
        stored.close()
        raise UserError(f"'{path}' is an npz, not an npy; expected one array. Name it .npz, or write it by numpy.save.")
    return stored


def read_npz(path: str, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Return arrays of an npz file by key. Nothing in the file is ever executed: pickled objects are refused."""
    file = user_path(str(path), "data.path")
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = list(archive)
            arrays = {key: archive[key] for key in keys if key in found}
    except ARRAY_FAULTS as error:
        raise UserError(f"'{file}' is not a readable npz of numbers ({error}). Number the classes too.") from error
    missing = [key for key in keys if key not in found]
    if missing:
        raise UserError(f"'{file}' holds {', '.join(found) or 'no array'}. Add {', '.join(missing)}.")
    return arrays


KNOWN = [f"{kind}_{part}" for kind in ("x", "y", "sample_weight") for part in ("train", "validation", "test")]
"""Known names of arrays, for suggestions."""


@dataclass(frozen=True)
class ArrayFiles:
    """Arrays on disk."""

    path: Path  # as given by the user
    files: dict[str, Path]  # npy files by name of the array; empty for an npz
    sizes: dict[str, int]  # bytes of each array by name

    @property
    def is_npz(self) -> bool:
        """Return whether the arrays are in one npz file, of which no single rows can be read."""
        return not self.files

    def label(self, name: str) -> str:
        """Return the name of an array for messages."""
        return f"{self.path.name}, {name}" if self.is_npz else f"'{self.files[name]}'"

    def load(self, name: str) -> np.ndarray:
        """Return an array, read into memory."""
        from hookline.recipes.data.input_form import check_fits  # imports TensorFlow; `read_npz` works without it

        remedy = f"Give a folder of {name}.npy and the others." if self.is_npz else "Set data.cache=none."
        check_fits(self.sizes[name], self.label(name), remedy)
        return read_npz(str(self.path), [name])[name] if self.is_npz else np.array(open_npy(self.files[name]))

    def named(self, name: str, option: str) -> np.ndarray:
        """Return the array that an option names; with npy files, it may also be the path of another one."""
        if name in self.sizes:
            return self.load(name)
        if not self.is_npz and (beside := user_path(name, option)).is_file():
            return np.array(open_npy(beside))
        raise UserError(
            f"{option}={name} is not an array of '{self.path}', which holds {', '.join(self.sizes)}; expected one "
            "of these or, with npy files, the path of another."
        )


def find_arrays(path: str, targets: str | None) -> ArrayFiles:
    """Return the arrays at a path given by the user; only the headers of npy files are read."""
    given = user_path(str(path), "data.path")
    if not str(path).strip() or not given.exists():
        raise UserError(
            f"data.path '{path}' does not exist; expected an npz file, an npy file, or a folder of npy files. "
            f"Working directory: {Path.cwd()}."
        )
    if given.suffix.lower() == ".npy" and not given.is_dir():
        if not targets:
            raise UserError(f"'{given}' holds only inputs. Set data.targets=<labels.npy>.")
        labels = user_path(str(targets), "data.targets")
        if not labels.is_file():
            raise UserError(f"data.targets '{labels}' does not exist; expected an npy file, the label of each input.")
        return _of_npy(given, {INPUTS: given, TARGETS: labels})
    if targets is not None:
        raise UserError(f"data.targets={targets} received, but '{given}' has its own labels. Set it to null.")
    if not given.is_dir():
        try:
            with zipfile.ZipFile(given) as archive:
                members = [each for each in archive.infolist() if each.filename.endswith(".npy")]
        except ARRAY_FAULTS as error:
            raise UserError(f"data.path '{given}' is not an npz file ({error}). Write it by numpy.savez.") from error
        return ArrayFiles(given, {}, {each.filename.removesuffix(".npy"): each.file_size for each in members})
    files = {file.stem: file for file in sorted(given.glob("*.npy")) if file.is_file()}
    if not files:
        raise UserError(
            f"data.path '{given}' holds no npy file; expected x_train.npy, y_train.npy and so on. For a "
            "folder of images, set data=image_folder."
        )
    return _of_npy(given, files)


def _of_npy(path: Path, files: dict[str, Path]) -> ArrayFiles:
    return ArrayFiles(path, files, {name: open_npy(file).nbytes for name, file in files.items()})


def warn_of_unread(files: ArrayFiles, read: Iterable[str | None]) -> None:
    """Warn about arrays that nothing reads."""
    if unread := sorted(files.sizes.keys() - set(read)):
        known = [name for name in KNOWN if name not in files.sizes]
        wrong = [name for name in unread if name not in KNOWN]
        near = next((found for name in wrong if (found := did_you_mean(name, known))), "")
        warnings.warn(f"'{files.path}' holds arrays that nothing reads: {', '.join(unread)}.{near}", stacklevel=3)
