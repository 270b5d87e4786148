"""The predict command: tables and files in order, or one clear line."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from scripts.predict import main
from scripts.prediction.ranking import name_classes, rank
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.inference.card import Card, write_card
from trainer.inference.preparation import Preparation

PIXELS = Preparation((2, 2, 1), 2 / 255, -1.0, peak=255, axes="new")
CLASSES = ("dark", "grey", "bright")
TONES = {"dark": 0, "grey": 128, "bright": 255}


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    """Return a network that tells how bright an image is: its logits peak at -1, 0 and 1."""
    path = tmp_path_factory.mktemp("export") / "model.keras"
    dense = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((2, 2, 1)), keras.layers.Flatten(), dense])
    slope = np.array([-8.0, 0.0, 8.0], np.float32)
    dense.set_weights([np.tile(slope / 4, (4, 1)), np.array([-4.0, 0.0, -4.0], np.float32)])
    model.save(path)
    write_card(path, Card("model", "best", 1, (2, 2, 1), CLASSES, PIXELS))
    return path


@pytest.fixture
def images(tmp_path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, tone in enumerate(["bright", "dark", "grey"] * 4):
        Image.fromarray(np.full((5, 9), TONES[tone], np.uint8)).save(folder / f"{number}_{tone}.png")
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_images_get_their_classes_in_order(export, images, tmp_path, capsys):
    output = tmp_path / "found.csv"
    assert main([f"model={export}", f"images={images}", f"output={output}", "batch_size=5"]) == 0
    rows = read_csv(output)
    assert [Path(row["example"]).stem.split("_") for row in rows] == [
        [str(number), row["class_1"]] for number, row in enumerate(rows)
    ]
    assert list(rows[0]) == ["example", *(f"{what}_{k}" for k in (1, 2, 3) for what in ("class", "probability"))]
    assert capsys.readouterr().out == f"{output}: 12 examples\n"
    logits = np.array([-12.0, 0.0, 4.0])
    assert float(rows[0]["probability_1"]) == pytest.approx(np.exp(4) / np.exp(logits).sum(), abs=1e-6)


def test_json_holds_labels_and_top(export, images, tmp_path):
    output = tmp_path / "found.json"
    assert main([f"model={export}", str(images / "1_dark.png"), "top=2", f"output={output}"]) == 0
    (entry,) = json.loads(output.read_text())
    assert entry["example"] == str(images / "1_dark.png")
    assert [each["class"] for each in entry["predictions"]] == ["dark", "grey"]
    assert [each["label"] for each in entry["predictions"]] == [0, 1]


def test_a_table_is_printed_and_dash_prints_csv(export, images, capsys):
    assert main([f"model={export}", f"images={images / '2_grey.png'}", "top=1"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["example", "prediction"]
    assert row.split() == [str(images / "2_grey.png"), "grey", "96.5", "%"]
    assert main([f"model={export}", f"images={images}", "top=1", "output=-"]) == 0
    assert capsys.readouterr().out.startswith("example,class_1,probability_1\n")


def test_images_that_cannot_be_read_are_named_and_left_out(export, images, tmp_path, capsys):
    (images / "1_dark.png").write_bytes(b"no image")
    output = tmp_path / "found.csv"
    assert main([f"model={export}", f"images={images}", f"output={output}"]) == 1
    assert len(read_csv(output)) == 11
    error = capsys.readouterr().err
    assert error.startswith("Left out: ")
    assert "1_dark.png" in error
    assert error.count("\n") == 1
    for path in images.iterdir():
        path.write_bytes(b"no image")
    assert main([f"model={export}", f"images={images}", f"output={tmp_path / 'other.csv'}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "Error: None of 12 images can be read. Give others."
    assert not (tmp_path / "other.csv").exists()


def test_rows_of_arrays_are_prepared_as_pixels(export, tmp_path, capsys):
    path = tmp_path / "rows.npz"
    np.savez(path, x_test=np.array([255, 0, 128], np.uint8).repeat(4).reshape(3, 2, 2), y_test=[2, 0, 1])
    assert main([f"model={export}", f"images={path}", "top=1", "output=-"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["example"], row["class_1"]) for row in rows] == [("0", "bright"), ("1", "dark"), ("2", "grey")]


def test_outputs_are_listed_as_they_are(export, images, capsys):
    assert main([f"model={export}", f"images={images / '0_bright.png'}", "outputs=true", "output=-"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "example,output_0,output_1,output_2"
    assert [float(each) for each in row.split(",")[1:]] == pytest.approx([-12.0, 0.0, 4.0])


def test_class_names_of_the_user_stand_in_place_of_those_of_the_export(export, images, tmp_path, capsys):
    names = tmp_path / "names.txt"
    names.write_text("night\n\nfog\nday\n")
    for given in (str(names), "[night,fog,day]"):
        assert main([f"model={export}", f"images={images / '0_bright.png'}", f"class_names={given}", "top=1"]) == 0
        assert "day" in capsys.readouterr().out


def test_outputs_without_classes_are_not_called_classes(tmp_path, images, capsys, export):
    bare = tmp_path / "bare.keras"
    bare.write_bytes(export.read_bytes())
    write_card(bare, Card("model", "best", 1, (2, 2, 1), (), PIXELS))
    assert main([f"model={bare}", f"images={images}"]) == 2
    assert "are no classes. Expected outputs=true" in capsys.readouterr().err
    assert main([f"model={bare}", f"images={images}", "class_names=[a,b,c]"]) == 0
    (tmp_path / "bare.keras.json").unlink()
    assert main([f"model={bare}", f"images={images}"]) == 2
    assert "bare.keras.json is not beside it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No model was given"),
        (["model={export}"], "No images were given"),
        (["model={export}", "images=nothing"], "images=nothing does not exist"),
        (["model=nothing.keras", "images={images}"], "model=nothing.keras does not exist"),
        (["model={images}/0_bright.png", "images={images}"], "is of no format that is known"),
        (["model={images}", "images={images}"], "is a directory without saved_model.pb"),
        (["model={export}", "imags={images}"], "Did you mean 'images'?"),
        (["model={export}", "images={images}", "top=0"], "Invalid top: 0"),
        (["model={export}", "images={images}", "batch_size=many"], "Invalid batch_size"),
        (["model={export}", "images={images}", "overwrite=perhaps"], "Invalid overwrite"),
        (["model={export}", "images={images}", "output=found.txt"], "ends with .csv or .json"),
        (["model={export}", "images={images}", "output=no/found.csv"], "is no directory"),
        (["model={export}", "images={images}", "output={images}.csv"], "exists already"),
        (["model={export}", "images={images}", "class_names=[a,b]"], "2 class names for 3 outputs"),
        (["model={export}", "images={images}", "class_names=[a,b,a]"], "'a' more than once"),
        (["model={export}", "images={images}", "class_names=none.txt"], "class_names=none.txt cannot be read"),
        (["model={export}", "images={images}", "checkpoint=bst"], "Did you mean 'best'?"),
        (["model={export}", "images={images}", "checkpoint=best"], "which is an export"),
        (["model={export}", "images={images}.npy"], r"examples of shape [3, 3]. Expected [2, 2] or [2, 2, 1]"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(arguments, message, export, images, tmp_path, capsys):
    np.save(f"{images}.npy", np.zeros((2, 3, 3), np.uint8))
    Path(f"{images}.csv").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main([each.format(export=export, images=images) for each in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("Error: ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert Path(f"{images}.csv").read_text() == "mine"


def test_equally_likely_classes_come_in_the_order_of_their_labels():
    labels, values = rank(np.array([[1.0, 3.0, 3.0, 1.0]]), top=9)
    assert labels.tolist() == [[1, 2, 0, 3]]
    assert values.sum() == pytest.approx(1.0)
    assert rank(np.arange(60)[None] % 2 == 1, top=60)[0].tolist() == [[*range(1, 60, 2), *range(0, 60, 2)]]


def test_outputs_without_names_are_numbered():
    assert name_classes(3, (), ()) == ("0", "1", "2")
    assert name_classes(2, ("a", "b"), ("c", "d")) == ("c", "d")
    with pytest.raises(UserError, match="Received 2 class names for 3"):
        name_classes(3, ("a", "b"), ())


def test_a_reader_that_leaves_early_is_no_failure(export, images):
    code = "import sys; from scripts.predict import main; sys.exit(main(sys.argv[1:]))"
    many = [str(images / "0_bright.png")] * 400
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" | head -1', "sh", sys.executable, "-c", code, f"model={export}", *many],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith("example")
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_predicts_as_its_evaluation_does(tmp_path, capsys):
    from sklearn.datasets import load_digits

    from recipes.data.digits import digits

    summary = run_small("bnn", run_dir=tmp_path / "run")
    test = digits(seed=0).test
    np.save(tmp_path / "test.npy", load_digits().images[test.indices])
    capsys.readouterr()
    assert main([f"model={tmp_path / 'run'}", f"images={tmp_path / 'test.npy'}", "top=1", "output=-"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    right = np.mean([int(row["class_1"]) == label for row, label in zip(rows, test.labels, strict=True)])
    assert right == pytest.approx(summary["test"]["metric/accuracy"], abs=1e-6)
    assert main([f"model={tmp_path / 'run'}", f"images={tmp_path / 'test.npy'}", "network=modell"]) == 2
    assert "Did you mean 'model'?" in capsys.readouterr().err
