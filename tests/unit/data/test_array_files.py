"""Arrays by name: which files are meant, what they take, and one line for damaged ones."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.recipes.data.array_files import find_arrays, open_npy, read_npz
from hookline.trainer.errors import UserError

ONE = np.arange(12, dtype=np.uint16).reshape(4, 3)


def message_of(look, *arguments):
    with pytest.raises(UserError) as caught:
        look(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def folder(root, **arrays):
    root.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(root / f"{name}.npy", array)
    return root


def test_any_damage_to_the_header_of_an_npy_is_one_line_or_an_array(tmp_path):
    path = folder(tmp_path, a=ONE) / "a.npy"
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


@pytest.mark.filterwarnings("ignore:unclosed file")  # NumPy's, of an npz that it refuses
def test_a_damaged_directory_of_an_npz_is_one_line(tmp_path):
    np.savez(tmp_path / "own.npz", a=ONE)
    whole = (tmp_path / "own.npz").read_bytes()
    version = whole.index(b"PK\x01\x02") + 6  # that it takes to unpack it
    (tmp_path / "own.npz").write_bytes(whole[:version] + b"\xff" + whole[version + 1 :])
    assert "is no npz file (" in message_of(find_arrays, str(tmp_path / "own.npz"), None)
