"""Files of arrays: npy and npz, rows in any order, and one clear line for damaged files."""

import os

import numpy as np
import pytest

from hookline.recipes.data.array_files import NpyRows, find_arrays, open_npy, read_npz
from hookline.trainer.errors import UserError
from tests.support.refusals import assert_refused, refusal

ONE = np.arange(12, dtype=np.uint16).reshape(4, 3)


def write(folder, array, name="rows.npy"):
    np.save(folder / name, array)
    return folder / name


def test_damaged_npy_header_gives_an_array_or_a_one_line_error(tmp_path):
    path = write(tmp_path, ONE)
    whole = path.read_bytes()
    np.savez(tmp_path / "own.npz", a=np.zeros(4000))  # longer than what is read before its checksum
    packed = (tmp_path / "own.npz").read_bytes()
    start = packed.index(b"\x93NUMPY")
    for place, value in ((place, value) for place in range(0, 80, 5) for value in b"\x00\n\"'(,\\{}\xff"):
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        (tmp_path / "own.npz").write_bytes(packed[: start + place] + bytes([value]) + packed[start + place + 1 :])
        for look in (lambda: open_npy(path), lambda: read_npz(str(tmp_path / "own.npz"), ["a"])):
            try:
                look()
            except UserError as error:
                assert "\n" not in str(error)  # noqa: PT017 - some damage leaves an array


@pytest.mark.filterwarnings("ignore:unclosed file")  # left open by NumPy for an npz that it refuses
def test_damaged_npz_directory_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", a=ONE)
    whole = (tmp_path / "own.npz").read_bytes()
    version = whole.index(b"PK\x01\x02") + 6  # the version needed to extract it
    (tmp_path / "own.npz").write_bytes(whole[:version] + b"\xff" + whole[version + 1 :])
    assert "is not an npz file (" in refusal(find_arrays, str(tmp_path / "own.npz"), None)


@pytest.mark.parametrize(("dtype", "shape"), [("uint8", (50,)), (">f4", (50, 3)), ("float64", (50, 2, 3, 1))])
def test_rows_are_read_in_requested_order_with_repeats(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    stored = NpyRows(write(tmp_path, array))
    rows = np.array([7, 8, 9, 3, 3, 49, 0, 10, 7], np.int64)
    found = stored.read(rows)
    np.testing.assert_array_equal(found, array[rows])
    assert found.dtype == stored.dtype == array.dtype.newbyteorder("=")
    assert found.dtype.isnative
    found[:] = 0  # a copy that the caller owns
    np.testing.assert_array_equal(stored.read(rows), array[rows])


def test_file_truncated_or_written_while_in_use_is_refused(tmp_path):
    path = write(tmp_path, np.zeros([100, 8]))
    stored = NpyRows(path)
    os.truncate(path, 200)
    assert_refused("rows.npy' changed while the run read it", stored.read, np.array([50]))
    stored = NpyRows(write(tmp_path, np.zeros([100, 8])))
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"12345678")
    os.utime(path, ns=(1, 1))
    assert_refused("changed while the run read it", stored.read, np.array([50]))


def test_invalid_npy_files_are_refused(tmp_path):
    whole = write(tmp_path, np.zeros([100, 8])).read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:400])
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "nothing.npy").write_bytes(b"")
    np.savez(tmp_path / "zip.npz", a=np.zeros(3))
    (tmp_path / "zip.npz").rename(tmp_path / "zip.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    for name in ("cut", "text", "nothing", "zip", "objects", "absent"):
        assert_refused(f"{name}.npy'", open_npy, tmp_path / f"{name}.npy")
    path = write(tmp_path, np.asfortranarray(np.arange(12).reshape(4, 3)))
    assert_refused("Fortran order", NpyRows, path)
