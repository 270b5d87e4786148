"""What is predicted on: files, folders, rows; their order; what cannot be read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scripts.prediction.examples import check_paths, find_examples, list_files, natural_order
from trainer.errors import UserError
from trainer.inference.preparation import Preparation

PIXELS = Preparation((4, 4, 1), 2 / 255, -1.0, peak=255, axes="new")


def save(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(path)
    return path


def values(examples, size: int = 3) -> list[tuple[str, int]]:
    """Return the names and grey values of all examples."""
    found = []
    for names, inputs in examples.batches(size):
        assert inputs.dtype == np.float32
        assert len(names) == len(inputs) <= size
        grey = np.rint((inputs.mean(axis=(1, 2, 3)) + 1) * 255 / 2).astype(int)
        found += zip((Path(name).name for name in names), grey.tolist(), strict=True)
    return found


def test_a_folder_is_read_to_its_end_in_natural_order(tmp_path):
    for number in (10, 2, 1, 33):
        save(tmp_path / f"{number}.png", number)
    save(tmp_path / "deep" / "5.PNG", 5)
    save(tmp_path / ".hidden" / "6.png", 6)
    (tmp_path / "notes.txt").write_text("x")
    found = values(find_examples([str(tmp_path)], PIXELS))
    assert found == [("1.png", 1), ("2.png", 2), ("10.png", 10), ("33.png", 33), ("5.PNG", 5)]


def test_files_keep_the_order_in_which_they_are_given(tmp_path):
    paths = [str(save(tmp_path / f"{name}.png", value)) for name, value in (("b", 7), ("a", 9), ("c", 200))]
    assert values(find_examples(paths, PIXELS), size=2) == [("b.png", 7), ("a.png", 9), ("c.png", 200)]
    pattern = str(tmp_path / "*.png")
    assert values(find_examples([pattern], PIXELS)) == [("a.png", 9), ("b.png", 7), ("c.png", 200)]
    assert [name for name, _ in values(find_examples([paths[0]] * 4, PIXELS))] == ["b.png"] * 4


def test_what_cannot_be_read_is_named_and_left_out_and_the_others_keep_their_order(tmp_path):
    for number in range(6):
        save(tmp_path / f"{number}.png", 10 * number)
    (tmp_path / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    (tmp_path / "4.png").write_bytes(b"")
    examples = find_examples([str(tmp_path)], PIXELS)
    assert values(examples, size=2) == [("0.png", 0), ("2.png", 20), ("3.png", 30), ("5.png", 50)]
    assert examples.size == 6
    assert ["1.png" in examples.skipped[0], "4.png" in examples.skipped[1]] == [True, True]
    assert "it is empty" in examples.skipped[1]
    assert "0x" not in examples.skipped[0]


def test_names_come_from_the_standard_input(tmp_path, monkeypatch):
    paths = [save(tmp_path / f"{name}.png", value) for name, value in (("b", 7), ("a", 9))]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{paths[0]}\n\n{paths[1]}\n"))
    assert values(find_examples(["-"], PIXELS)) == [("b.png", 7), ("a.png", 9)]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UserError, match="names no file"):
        list_files("-")


def grey_rows(count: int) -> np.ndarray:
    return np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 4, 4))


@pytest.mark.parametrize("batch", [1, 3, 7, 100])
def test_rows_of_files_of_arrays_come_in_order(tmp_path, batch):
    np.save(tmp_path / "rows.npy", grey_rows(7))
    np.savez(tmp_path / "rows.npz", x_test=grey_rows(7), y_test=np.zeros(7))
    np.savez(tmp_path / "named.npz", mine=grey_rows(7), other=np.zeros(7))
    expected = [(str(row), row) for row in range(7)]
    assert values(find_examples([str(tmp_path / "rows.npy")], PIXELS), batch) == expected
    assert values(find_examples([str(tmp_path / "rows.npz")], PIXELS), batch) == expected
    assert values(find_examples([str(tmp_path / "named.npz")], PIXELS, array="mine"), batch) == expected


def test_files_of_arrays_that_do_not_serve_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", mine=grey_rows(2), other=np.zeros(2))
    np.save(tmp_path / "objects.npy", np.array([{}, {}], object), allow_pickle=True)
    np.save(tmp_path / "empty.npy", np.zeros((0, 4, 4)))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    for name, array, message in [
        ("two.npz", None, "holds mine, other. Expected array=<name>"),
        ("two.npz", "minee", "Did you mean 'mine'"),
        ("objects.npy", None, "no readable file of plain arrays"),
        ("broken.npz", None, "no readable file of plain arrays"),
        ("empty.npy", None, "holds no example"),
    ]:
        with pytest.raises(UserError, match=message):
            find_examples([str(tmp_path / name)], PIXELS, array=array)


def test_paths_that_stand_for_nothing_are_refused(tmp_path):
    with pytest.raises(UserError, match="nothing.png does not exist"):
        check_paths([str(tmp_path / "nothing.png")])
    with pytest.raises(UserError, match="does not exist"):
        check_paths([str(tmp_path / "*.png")])
    check_paths(["-", str(tmp_path)])
    with pytest.raises(UserError, match="holds no .jpg"):
        find_examples([str(tmp_path)], PIXELS)
    save(tmp_path / "a.png", 1)
    np.save(tmp_path / "rows.npy", grey_rows(2))
    with pytest.raises(UserError, match="beside other images"):
        find_examples([str(tmp_path / "a.png"), str(tmp_path / "rows.npy")], PIXELS)
    with pytest.raises(UserError, match="array=x received without an npz"):
        find_examples([str(tmp_path / "a.png")], PIXELS, array="x")
    with pytest.raises(UserError, match="not known to be made of pixels"):
        find_examples([str(tmp_path / "a.png")], Preparation((4, 4, 1)))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_numbers_in_names_count_as_numbers(numbers):
    names = [f"img{number}.png" for number in numbers]
    assert sorted(names, key=natural_order) == [f"img{number}.png" for number in sorted(numbers)]


@given(st.lists(st.text(alphabet="a1.²٣/", max_size=6)))
def test_any_names_can_be_ordered(names):
    sorted(names, key=natural_order)
