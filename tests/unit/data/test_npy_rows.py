"""Rows of an npy file: the right ones, in the order asked for, and nothing else is read."""

from __future__ import annotations

import os

import numpy as np
import pytest

from recipes.data import npy_rows
from recipes.data.npy_rows import NpyRows, open_npy
from trainer.errors import UserError


def write(folder, array, name="rows.npy"):
    np.save(folder / name, array)
    return folder / name


@pytest.mark.parametrize("dtype", ["uint8", "<f4", ">f4", ">i2", "float64"])
@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 2, 3, 1)])
def test_rows_come_in_the_order_asked_for_also_twice(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    stored = NpyRows(write(tmp_path, array))
    rows = np.array([7, 8, 9, 3, 3, 49, 0, 10, 7], np.int64)
    found = stored.read(rows)
    np.testing.assert_array_equal(found, array[rows])
    assert found.dtype == stored.dtype == array.dtype.newbyteorder("=")
    assert found.dtype.isnative
    found[:] = 0  # the caller's own
    np.testing.assert_array_equal(stored.read(rows), array[rows])


def test_neighbours_come_in_one_read_in_the_order_of_the_file(tmp_path, monkeypatch):
    array = np.arange(40 * 8, dtype=np.uint8).reshape(40, 8)
    path = write(tmp_path, array)
    offset = open_npy(path).offset
    reads = []

    def preadv(file, buffers, start):
        reads.append(((start - offset) // 8, len(buffers)))
        return real(file, buffers, start)

    real = os.preadv
    monkeypatch.setattr(npy_rows.os, "preadv", preadv)
    monkeypatch.setattr(npy_rows, "MOST_ROWS_A_READ", 4)
    rows = np.array([30, 11, 10, 12, 5, 20, 21, 22, 23, 24, 25])
    np.testing.assert_array_equal(NpyRows(path).read(rows), array[rows])
    assert reads == [(5, 1), (10, 3), (20, 4), (24, 2), (30, 1)]


@pytest.mark.parametrize("most", [1, 5, 13])
def test_a_system_that_reads_less_than_asked_for_is_asked_again(tmp_path, monkeypatch, most):
    real = os.preadv

    def preadv(file, buffers, start):
        cut, left = [], most
        for buffer in buffers:
            cut.append(buffer[:left])
            left -= len(cut[-1])
        return real(file, cut, start)

    monkeypatch.setattr(npy_rows.os, "preadv", preadv)
    array = np.arange(60, dtype=np.int32).reshape(20, 3)
    rows = np.array([4, 5, 6, 1])
    np.testing.assert_array_equal(NpyRows(write(tmp_path, array)).read(rows), array[rows])


def test_a_file_far_larger_than_memory_is_read_at_once(tmp_path):
    path = tmp_path / "sparse.npy"
    size = 2**38  # 256 GiB of holes
    try:
        with path.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (size // 1024, 1024)}
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            file.seek(start + (size // 1024 - 1) * 1024)
            file.write(bytes(range(256)) * 4)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error}")
    found = NpyRows(path).read(np.array([size // 1024 - 1, 0, size // 2048]))
    np.testing.assert_array_equal(found[0], np.arange(1024) % 256)
    assert not found[1:].any()


def test_a_file_that_is_cut_or_written_to_meanwhile_ends_the_run(tmp_path):
    path = write(tmp_path, np.zeros([100, 8]))
    stored = NpyRows(path)
    os.truncate(path, 200)
    with pytest.raises(UserError, match="rows.npy' changed while the run read it"):
        stored.read(np.array([50]))
    stored = NpyRows(write(tmp_path, np.zeros([100, 8])))
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"12345678")
    os.utime(path, ns=(1, 1))
    with pytest.raises(UserError, match="changed while the run read it"):
        stored.read(np.array([50]))


def test_another_file_of_the_name_changes_nothing(tmp_path):
    stored = NpyRows(write(tmp_path, np.arange(10)))
    np.save(tmp_path / "new.npy", np.arange(10) + 100)
    (tmp_path / "new.npy").replace(tmp_path / "rows.npy")
    np.testing.assert_array_equal(stored.read(np.array([3, 1])), [3, 1])


def bad_files(folder):
    whole = write(folder, np.zeros([100, 8])).read_bytes()
    (folder / "cut.npy").write_bytes(whole[:400])
    (folder / "text.npy").write_text("hello")
    (folder / "nothing.npy").write_bytes(b"")
    write(folder, np.zeros([0, 8]), "empty.npy")
    write(folder, np.array(3), "scalar.npy")
    np.savez(folder / "zip.npz", a=np.zeros(3))
    (folder / "zip.npz").rename(folder / "zip.npy")
    np.save(folder / "objects.npy", np.array([{}], object), allow_pickle=True)
    return ["cut", "text", "nothing", "empty", "scalar", "zip", "objects"]


def test_what_is_no_npy_of_rows_is_refused_in_one_line(tmp_path):
    for name in bad_files(tmp_path):
        with pytest.raises(UserError, match=f"{name}.npy'") as caught:
            open_npy(tmp_path / f"{name}.npy")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="absent.npy' is no readable npy"):
        open_npy(tmp_path / "absent.npy")


def test_fortran_order_is_refused_with_the_way_out(tmp_path):
    path = write(tmp_path, np.asfortranarray(np.arange(12).reshape(4, 3)))
    with pytest.raises(UserError, match="Fortran order.*ascontiguousarray.*data.cache=memory"):
        NpyRows(path)
