"""Rows of an npy file of any size, read when they are asked for."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np

from trainer.damaged_arrays import ARRAY_FAULTS
from trainer.errors import UserError

MOST_ROWS_A_READ = 512  # systems take at most 1,024 buffers
MOST_BYTES_A_READ = 2**30  # systems read at most 2 GiB at a time


class NpyRows:
    """Read rows of an npy file at random, without holding or mapping the rest.

    Reading is used in place of a memory map: it gives the same rows from the same cache of the system, but a file
    that is cut while it is read raises an error, where a map would end the process by a signal, and pages that were
    read do not count as the process's memory. The file is held open, so that another of that name changes nothing.

    Attributes:
        path: of the file.
        shape: of the whole array.
        dtype: of its values in the machine's own byte order.
    """

    def __init__(self, path: Path) -> None:
        """Open a file; only its header is read.

        Args:
            path: an npy file of at least one axis, in C order.

        Raises:
            UserError: no readable npy of plain values, cut short, empty, or in Fortran order.
        """
        stored = open_npy(path)
        if not stored.flags.c_contiguous:
            raise UserError(
                f"'{path}' is in Fortran order, so that each row lies scattered; expected C order. Save it again with "
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
        """Return rows in the order in which they are asked for; they are read in the order in which they lie.

        Args:
            rows: int64 [n], in [0, size).

        Returns:
            A new array [n, ...].

        Raises:
            UserError: the file changed since it was opened, or cannot be read.
        """
        if self._now() != self._state:
            raise self._changed()
        found = np.empty([len(rows), self._row_bytes], np.uint8)
        order = np.argsort(rows, kind="stable")
        limit = max(1, min(MOST_ROWS_A_READ, MOST_BYTES_A_READ // self._row_bytes))
        start = 0
        while start < len(order):
            stop = start + 1  # rows that lie side by side come in one read
            while stop < len(order) and stop - start < limit and rows[order[stop]] == rows[order[stop - 1]] + 1:
                stop += 1
            buffers = [memoryview(found[position]) for position in order[start:stop]]
            self._fill(buffers, self._offset + int(rows[order[start]]) * self._row_bytes)
            start = stop
        values = found.view(self._stored_dtype).reshape(len(rows), *self.shape[1:])
        return values.astype(self.dtype, copy=False)

    def _fill(self, buffers: list[memoryview], offset: int) -> None:
        wanted = sum(len(buffer) for buffer in buffers)
        try:
            count = os.preadv(self._file, buffers, offset)
        except OSError as error:
            raise UserError(f"'{self.path}' cannot be read ({error.strerror}). Mend the disk or the file.") from error
        if count == wanted:
            return
        if not count:
            raise self._changed()
        if len(buffers) > 1:  # cut short, as a system may do: row by row, then
            for buffer in buffers:
                self._fill([buffer], offset)
                offset += len(buffer)
        else:
            self._fill([buffers[0][count:]], offset + count)

    def _now(self) -> tuple[int, int]:
        state = os.fstat(self._file)
        return state.st_size, state.st_mtime_ns

    def _changed(self) -> UserError:
        return UserError(f"'{self.path}' changed while the run read it; expected the same data to the end. Start anew.")


def open_npy(path: Path) -> np.memmap:
    """Return an npy file's array as a read-only memory map: no value is read.

    Args:
        path: the file.

    Raises:
        UserError: no readable npy of plain values, cut short, empty, or without an axis.
    """
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except ARRAY_FAULTS as error:
        raise UserError(
            f"'{path}' is no readable npy of plain values ({error}); expected what numpy.save writes. Write it again."
        ) from error
    if not isinstance(stored, np.memmap):
        stored.close()
        raise UserError(f"'{path}' is an npz, not an npy; expected one array. Name it .npz, or write it by numpy.save.")
    if not stored.ndim or stored.dtype.hasobject or not stored.nbytes:
        found = f"{stored.dtype} of shape {list(stored.shape)}"
        raise UserError(f"'{path}' holds {found}; expected an array with one row for each example.")
    return stored
