"""The predict command: its inputs, tables and files in order, or a one-line error."""

import csv
import io
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hookline.deploy.inference.card import Card, write_card
from hookline.scripts.predict import find_examples, list_files, main, name_classes, natural_order, rank
from hookline.trainer.input.preparation import Preparation
from tests.support.refusals import assert_one_line, assert_refused

PIXELS = Preparation((2, 2, 1), 2 / 255, -1.0, peak=255, axes="new")
CLASSES = ("dark", "grey", "bright")
TONES = {"dark": 0, "grey": 128, "bright": 255}


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    """Return a network that classifies the brightness of an image: its logits peak at -1, 0 and 1."""
    path = tmp_path_factory.mktemp("export") / "model.keras"
    dense = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((2, 2, 1)), keras.layers.Flatten(), dense])
    slope = np.array([-8.0, 0.0, 8.0], np.float32)
    dense.set_weights([np.tile(slope / 4, (4, 1)), np.array([-4.0, 0.0, -4.0], np.float32)])
    model.save(path)
    write_card(path, Card("model", "best", 1, (2, 2, 1), CLASSES, PIXELS))
    return path


def save(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((5, 9), value, np.uint8)).save(path)
    return path


@pytest.fixture
def images(tmp_path) -> Path:
    for number, tone in enumerate(["bright", "dark", "grey"] * 4):
        save(tmp_path / "images" / f"{number}_{tone}.png", TONES[tone])
    return tmp_path / "images"


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_images_get_their_classes_in_order(export, images, tmp_path, capsys):
    output = tmp_path / "found.csv"
    assert main([f"model={export}", f"images={images}", f"output={output}", "batch_size=5"]) == 0
    rows = read_csv(output.read_text())
    names = [Path(row["example"]).stem.split("_") for row in rows]
    assert names == [[str(number), row["class_1"]] for number, row in enumerate(rows)]
    assert list(rows[0]) == ["example", *(f"{what}_{k}" for k in (1, 2, 3) for what in ("class", "probability"))]
    expected = np.exp(4) / np.exp([-12.0, 0.0, 4.0]).sum()
    assert float(rows[0]["probability_1"]) == pytest.approx(expected, abs=1e-6)
    output = tmp_path / "found.json"
    assert main([f"model={export}", str(images / "1_dark.png"), "top=2", f"output={output}"]) == 0
    (entry,) = json.loads(output.read_text())
    assert [(each["class"], each["label"]) for each in entry["predictions"]] == [("dark", 0), ("grey", 1)]
    capsys.readouterr()
    assert main([f"model={export}", f"images={images / '2_grey.png'}", "top=1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [str(images / "2_grey.png"), "grey", "96.5", "%"]
    assert main([f"model={export}", f"images={images / '0_bright.png'}", "outputs=true", "output=-"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert [float(each) for each in row.split(",")[1:]] == pytest.approx([-12.0, 0.0, 4.0])


def test_unreadable_images_are_reported_and_left_out(export, images, tmp_path, capsys):
    (images / "1_dark.png").write_bytes(b"no image")
    output = tmp_path / "found.csv"
    assert main([f"model={export}", f"images={images}", f"output={output}"]) == 1
    assert len(read_csv(output.read_text())) == 11
    error = capsys.readouterr().err
    assert error.startswith("Left out: ")
    assert "1_dark.png" in error
    for path in images.iterdir():
        path.write_bytes(b"no image")
    assert main([f"model={export}", f"images={images}", f"output={tmp_path / 'other.csv'}"]) == 2
    assert not (tmp_path / "other.csv").exists()


def test_given_class_names_replace_those_of_the_export(export, images, tmp_path, capsys):
    (tmp_path / "names.txt").write_text("night\n\nfog\nday\n")
    given = [f"images={images / '0_bright.png'}", "top=1"]
    assert main([f"model={export}", *given, f"class_names={tmp_path / 'names.txt'}"]) == 0
    assert "day" in capsys.readouterr().out
    bare = tmp_path / "bare.keras"
    bare.write_bytes(export.read_bytes())
    write_card(bare, Card("model", "best", 1, (2, 2, 1), (), PIXELS))
    assert main([f"model={bare}", *given]) == 2  # outputs without classes are not presented as classes
    assert main([f"model={bare}", *given, "class_names=[a,b,c]"]) == 2  # nor as probabilities of classes
    assert main([f"model={bare}", *given, "class_names=[a,b,c]", "outputs=true", "output=-"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split(",")[-3:] == ["a", "b", "c"]
    (tmp_path / "bare.keras.json").unlink()
    assert main([f"model={bare}", *given]) == 2
    assert "bare.keras.json" in capsys.readouterr().err
    assert name_classes(3, (), ()) == ("0", "1", "2")


def test_mistake_is_reported_in_one_line_and_nothing_is_written(export, images, tmp_path, capsys):
    np.save(f"{images}.npy", np.zeros((2, 3, 3), np.uint8))
    Path(f"{images}.csv").write_text("mine")
    before, model, given = sorted(tmp_path.rglob("*")), f"model={export}", f"images={images}"
    for arguments, word in (
        ([], "No model"),
        ([model], "No images"),
        ([f"model={images}/0_bright.png", given], "has an unknown format"),
        ([f"model={images}", given], "saved_model.pb"),
        ([model, given, "output=found.txt"], ".csv or .json"),
        ([model, given, f"output={images}.csv"], "exists already"),
        ([model, given, "class_names=[a,b]"], "2 class names for 3"),
        ([model, given, "class_names=[a,b,a]"], "'a' more than once"),
        ([model, given, "checkpoint=best"], "is an export"),
        ([model, f"{given}.npy"], "[3, 3]"),
    ):
        assert_one_line(main, arguments, word, capsys)
        assert sorted(tmp_path.rglob("*")) == before
    assert Path(f"{images}.csv").read_text() == "mine"


def test_equally_likely_classes_are_ordered_by_label():
    labels, values = rank(np.array([[1.0, 3.0, 3.0, 1.0]]), top=9)
    assert (labels.tolist(), values.sum()) == ([[1, 2, 0, 3]], pytest.approx(1.0))
    assert rank(np.arange(60)[None] % 2 == 1, top=60)[0].tolist() == [[*range(1, 60, 2), *range(0, 60, 2)]]


@pytest.mark.full
def test_predictions_of_run_reproduce_its_test_accuracy(small_bnn, tmp_path, capsys):
    from sklearn.datasets import load_digits

    from hookline.recipes.data.digits import digits

    summary, test = json.loads((small_bnn / "summary.json").read_text()), digits(seed=0).test
    np.save(tmp_path / "test.npy", load_digits().images[test.indices])
    assert main([f"model={small_bnn}", f"images={tmp_path / 'test.npy'}", "top=1", "output=-"]) == 0
    rows = read_csv(capsys.readouterr().out)
    right = np.mean([int(row["class_1"]) == label for row, label in zip(rows, test.labels, strict=True)])
    assert right == pytest.approx(summary["test"]["metric/accuracy"], abs=1e-6)


def values(paths, size: int = 3, array: str | None = None) -> list[tuple[str, int]]:
    """Return the names and grey values of all examples, and the number of unreadable ones under the name "skipped"."""
    found, skipped = [], []
    for names, inputs in find_examples([*map(str, paths)], PIXELS, size, skipped, array=array):
        assert inputs.dtype == np.float32
        assert len(names) == len(inputs) <= size
        grey = np.rint((inputs.mean(axis=(1, 2, 3)) + 1) * 255 / 2).astype(int)
        found += zip((Path(name).name for name in names), grey.tolist(), strict=True)
    return found + [("skipped", len(skipped))] * bool(skipped)


def test_files_are_read_in_natural_order_or_in_the_given_order(tmp_path, monkeypatch):
    for number in (10, 2, 1, 33):
        save(tmp_path / "folder" / f"{number}.png", number)
    save(tmp_path / "folder" / "deep" / "5.PNG", 5)
    save(tmp_path / "folder" / ".hidden" / "6.png", 6)
    (tmp_path / "folder" / "1a.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    (tmp_path / "folder" / "4.png").write_bytes(b"")
    found = values(list_files(str(tmp_path / "folder")))
    assert found == [("1.png", 1), ("2.png", 2), ("10.png", 10), ("33.png", 33), ("5.PNG", 5), ("skipped", 2)]
    given = [save(tmp_path / f"{name}.png", value) for name, value in (("b", 7), ("a", 9), ("c", 200))]
    assert values(given, size=2) == [("b.png", 7), ("a.png", 9), ("c.png", 200)]
    assert values(list_files(f"{tmp_path}/*.png")) == [("a.png", 9), ("b.png", 7), ("c.png", 200)]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{given[0]}\n\n{given[1]}\n"))
    assert values(list_files("-")) == [("b.png", 7), ("a.png", 9)]


class Payload:
    """Create a directory when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


def test_array_rows_are_read_in_order_and_pickles_are_not_loaded(tmp_path):
    rows = np.broadcast_to(np.arange(7, dtype=np.uint8)[:, None, None], (7, 2, 2))
    np.save(tmp_path / "rows.npy", rows)
    np.savez(tmp_path / "rows.npz", x_test=rows, y_test=np.zeros(7))
    np.savez(tmp_path / "two.npz", mine=rows, other=np.zeros(7))
    for name, array in (("rows.npy", None), ("rows.npz", None), ("two.npz", "mine")):
        for batch in (3, 100):
            assert values([tmp_path / name], batch, array) == [(str(row), row) for row in range(7)]
    objects = np.array([Payload(tmp_path / "executed")] * 2, object)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "objects.npz", x_test=objects)
    np.save(tmp_path / "empty.npy", np.zeros((0, 2, 2)))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    for name, array, word in (
        ("two.npz", "minee", "'mine'"),
        ("objects.npy", None, "plain arrays"),
        ("objects.npz", None, "plain arrays"),
        ("broken.npz", None, "plain arrays"),
        ("empty.npy", None, "no example"),
    ):
        assert_refused(word, values, [tmp_path / name], array=array)
    assert not (tmp_path / "executed").exists()
    image = str(save(tmp_path / "a.png", 1))
    assert_refused("together with other images", values, [image, tmp_path / "rows.npy"])
    assert_refused("made of pixels", find_examples, [image], Preparation((2, 2, 1)), 1, [])


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.lists(st.text(alphabet="a1.²٣/", max_size=6)))
def test_natural_order_sorts_by_number_and_accepts_any_names(numbers, others):
    names = [f"img{number}.png" for number in numbers]
    assert sorted(names, key=natural_order) == [f"img{number}.png" for number in sorted(numbers)]
    sorted(others, key=natural_order)
