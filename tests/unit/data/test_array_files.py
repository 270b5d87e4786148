"""Arrays by name: which files are meant, what they take, and one line for damaged ones."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from recipes.data.array_files import find_arrays
from recipes.data.npy_rows import open_npy
from recipes.data.npz import read_npz
from trainer.errors import UserError

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


def test_sizes_are_those_of_the_arrays_and_labels_say_where_they_are(tmp_path):
    np.savez_compressed(tmp_path / "own.npz", a=ONE, b=np.zeros(1000))
    packed = find_arrays(str(tmp_path / "own.npz"), None)
    assert packed.is_npz
    assert packed.label("a") == "own.npz, a"
    assert packed.sizes["b"] >= 8000  # what it takes in memory, not in the file
    files = find_arrays(str(folder(tmp_path / "own", b=np.zeros(5), a=ONE)), None)
    assert not files.is_npz
    assert files.sizes == {"a": 24, "b": 40}
    assert files.label("a") == f"'{tmp_path}/own/a.npy'"
    for each in (packed, files):
        np.testing.assert_array_equal(each.load("a"), ONE)


def test_a_loaded_array_is_the_callers_own(tmp_path):
    files = find_arrays(str(folder(tmp_path / "own", a=ONE)), None)
    loaded = files.load("a")
    assert type(loaded) is np.ndarray
    loaded[:] = 0
    np.testing.assert_array_equal(files.load("a"), ONE)


def test_an_option_names_an_array_or_beside_npy_files_the_path_of_another(tmp_path, monkeypatch):
    root = folder(tmp_path / "own", inputs=ONE, a=ONE + 1)
    beside = folder(tmp_path, a=ONE + 2) / "a.npy"
    np.savez(tmp_path / "own.npz", inputs=ONE)
    files, packed = find_arrays(str(root), None), find_arrays(str(tmp_path / "own.npz"), None)
    monkeypatch.setenv("HOME", str(tmp_path))
    np.testing.assert_array_equal(files.named("a", "data.groups"), ONE + 1)  # its own come first
    np.testing.assert_array_equal(files.named(str(beside), "data.groups"), ONE + 2)
    np.testing.assert_array_equal(files.named("~/a.npy", "data.groups"), ONE + 2)
    assert "data.keys=b names no array" in message_of(files.named, "b", "data.keys")
    assert "names no array" in message_of(packed.named, str(beside), "data.groups")


def test_only_npy_files_of_a_folder_count(tmp_path):
    root = folder(tmp_path / "own.npy", a=ONE)  # a folder may be called so
    (root / "b.npy").mkdir()
    (root / "c.txt").write_text("c")
    assert list(find_arrays(str(root), None).sizes) == ["a"]
    with zipfile.ZipFile(tmp_path / "mixed.npz", "w") as archive:
        archive.write(root / "a.npy", "a.npy")
        archive.writestr("notes.txt", "c")
    assert list(find_arrays(str(tmp_path / "mixed.npz"), None).sizes) == ["a"]


def test_a_pair_needs_both_files_and_labels_of_its_own(tmp_path):
    root = folder(tmp_path / "own", x=ONE, y=ONE[:, 0])
    pair = find_arrays(str(root / "x.npy"), str(root / "y.npy"))
    assert list(pair.sizes) == ["inputs", "targets"]
    np.testing.assert_array_equal(pair.load("targets"), ONE[:, 0])
    for targets in (None, " "):
        assert "Set data.targets=<labels.npy>" in message_of(find_arrays, str(root / "x.npy"), targets)
    assert "data.targets" in message_of(find_arrays, str(root / "x.npy"), str(root))  # a folder is no file


@pytest.mark.parametrize("place", range(0, 80, 5))
def test_any_damage_to_the_header_of_an_npy_is_one_line_or_an_array(tmp_path, place):
    path = folder(tmp_path, a=ONE) / "a.npy"
    whole = path.read_bytes()
    np.savez(tmp_path / "own.npz", a=np.zeros(4000))  # longer than what is read before its checksum
    packed = (tmp_path / "own.npz").read_bytes()
    start = packed.index(b"\x93NUMPY")
    for value in b"\x00\n\"'(,\\{}\xff":
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
    assert "is no npz file (zip file version" in message_of(find_arrays, str(tmp_path / "own.npz"), None)
