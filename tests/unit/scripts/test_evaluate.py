"""The evaluate command: a run and its exports, judged by the same code on the same examples."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from scripts.evaluate import main
from scripts.evaluation.choose_data import check_data, data_config, input_range
from scripts.evaluation.outputs import collect
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.export.card import card_of
from trainer.export.keras_file import write_keras
from trainer.export.options import ExportOptions
from trainer.inference.card import Card, card_path, write_card
from trainer.inference.preparation import Preparation
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.run.finished import read_config, restore


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Return a small run of a binary network that has exported itself."""
    directory = tmp_path_factory.mktemp("evaluate") / "bnn"
    run_small("bnn", run_dir=directory)
    finished = restore(str(directory), read_config(str(directory)))
    (directory / "export").mkdir()
    write_keras(finished, "model", directory / "export" / "model.keras", ExportOptions())
    write_card(directory / "export" / "model.keras", card_of(finished, "model"))
    return directory


def found(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


def test_a_run_has_the_accuracy_and_the_loss_of_its_summary(run: Path, capsys):
    assert main([f"run={run}"]) == 0
    test = json.loads((run / "summary.json").read_text())["test"]
    overall = found(run / "evaluation" / "test")["overall"]
    assert overall["accuracy"] == pytest.approx(test["metric/accuracy"], abs=1e-6)
    assert overall["negative_log_likelihood"] == pytest.approx(test["loss/cross_entropy"], rel=1e-5)
    assert found(run / "evaluation" / "test")["metrics"]["metric/accuracy"] == pytest.approx(overall["accuracy"])
    output = capsys.readouterr().out
    assert "expected calibration error" in output
    assert f"{run / 'evaluation' / 'test'}: calibration.png, classes.csv" in output


def test_an_export_is_as_good_as_its_run_in_every_measure(run: Path):
    assert main([f"run={run}", "name=whole"]) == 0
    assert main([f"model={run / 'export' / 'model.keras'}"]) == 0
    own, exported = found(run / "evaluation" / "whole"), found(run / "evaluation" / "model.keras_test")
    assert exported["confusion"] == own["confusion"]
    assert exported["overall"] == pytest.approx(own["overall"], rel=1e-5, abs=1e-6)
    assert exported["metrics"] == {}


def test_the_size_of_batches_and_the_padding_of_the_last_one_change_nothing(run: Path):
    export = run / "export" / "model.keras"
    assert main([f"model={export}", "name=seven", "batch_size=7", "bins=4"]) == 0
    assert main([f"model={export}", "name=all", "batch_size=1000", "bins=4"]) == 0
    seven, whole = found(run / "evaluation" / "seven"), found(run / "evaluation" / "all")
    assert seven["confusion"] == whole["confusion"]
    assert seven["overall"]["examples"] == whole["overall"]["examples"]
    assert len(seven["reliability"]["counts"]) == 4


def test_other_data_is_named_as_for_training(run: Path, tmp_path, capsys):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    path = tmp_path / "mine.npz"
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    np.savez(path, x_train=pixels, y_train=bunch.target, x_test=pixels[:300], y_test=bunch.target[:300])
    capsys.readouterr()
    assert main([f"run={run}", "data=arrays", f"data.path={path}", "name=mine"]) == 0
    assert found(run / "evaluation" / "mine")["overall"]["examples"] == 300
    assert capsys.readouterr().err == ""
    export = run / "export" / "model.keras"
    assert main([f"model={export}", "data=arrays", f"data.path={path}", "name=x"]) == 0
    assert found(run / "evaluation" / "x")["confusion"] == found(run / "evaluation" / "mine")["confusion"]


def test_the_split_and_the_values_of_the_runs_data_can_be_changed(run: Path):
    export = run / "export" / "model.keras"
    assert main([f"model={export}", "split=validation", "data.validation_fraction=50"]) == 0
    assert found(run / "evaluation" / "model.keras_data_validation")["overall"]["examples"] == 50


def test_a_run_that_learns_no_classes_has_the_metrics_of_its_recipe(tmp_path, capsys):
    summary = run_small("retrieval", run_dir=tmp_path / "retrieval")
    capsys.readouterr()
    assert main([f"run={tmp_path / 'retrieval'}"]) == 0
    metrics = found(tmp_path / "retrieval" / "evaluation" / "test")["metrics"]
    assert metrics["metric/recall@1"] == pytest.approx(summary["test"]["metric/recall@1"])
    assert [each.name for each in (tmp_path / "retrieval" / "evaluation" / "test").iterdir()] == ["evaluation.json"]
    assert "recall@1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Neither run= nor model= was given"),
        (["run={run}", "model={run}"], "Both run= and model= were given"),
        (["run={run}/nothing"], "no config.yaml that can be read"),
        (["model={run}/nothing.keras"], "does not exist"),
        (["model={run}"], "is a run. Expected run="),
        (["run={run}", "split=tset"], "Did you mean 'test'?"),
        (["run={run}", "data=digit"], "Did you mean 'digits'?"),
        (["run={run}", "data.sed=3"], "Did you mean 'seed'?"),
        (["run={run}", "data=arrays"], "data.path"),
        (["run={run}", "data=ring", "name=new"], "takes [8, 8, 1]. Expected data of its shape"),
        (["run={run}", "name=a/b"], "without a path"),
        (["run={run}", "bins=0"], "Invalid bins: 0"),
        (["run={run}", "checkpoint=frist"], "Unknown checkpoint"),
        (["model={run}/export/model.keras", "checkpoint=best"], "received with model="),
        (["run={run}", "output={run}/checkpoints", "overwrite=true"], "holds something else"),
        (["run={run}", "output={run}/summary.json"], "exists already"),
        (["model={foreign}", "data=digits"], "lies in no run. Expected output="),
        (["model={foreign}", "output={new}"], "No data was given"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(arguments, message, run: Path, tmp_path, capsys):
    foreign = tmp_path / "foreign.keras"
    foreign.write_bytes((run / "export/model.keras").read_bytes())
    before = sorted([*run.rglob("*"), *tmp_path.rglob("*")])
    places = {"run": run, "foreign": foreign, "new": tmp_path / "new"}
    assert main([each.format(**places) for each in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("Error: ")
    assert error.count("\n") == 1
    assert sorted([*run.rglob("*"), *tmp_path.rglob("*")]) == before


def test_an_evaluation_is_not_overwritten_unless_asked(run: Path, capsys):
    given = [f"model={run / 'export' / 'model.keras'}", "name=once"]
    assert main(given) == 0
    assert main(given) == 2
    assert "Expected another name, or overwrite=true" in capsys.readouterr().err
    assert main([*given, "overwrite=true"]) == 0


def test_an_export_without_a_card_is_judged_where_data_and_place_are_given(run: Path, tmp_path):
    foreign = tmp_path / "foreign.keras"
    foreign.write_bytes((run / "export/model.keras").read_bytes())
    assert not card_path(foreign).exists()
    assert main([f"model={foreign}", "data=digits", f"output={tmp_path / 'out'}"]) == 0
    test = json.loads((run / "summary.json").read_text())["test"]
    assert found(tmp_path / "out")["overall"]["accuracy"] == pytest.approx(test["metric/accuracy"], abs=1e-6)


def test_outputs_that_are_no_classes_are_refused(run: Path, tmp_path, capsys):
    bare = tmp_path / "bare.keras"
    bare.write_bytes((run / "export/model.keras").read_bytes())
    write_card(bare, Card("model", "best", 1, (8, 8, 1)))
    assert main([f"model={bare}", "data=digits", f"output={tmp_path / 'out'}"]) == 2
    assert "are no classes. Expected run=<run>" in capsys.readouterr().err


def made(names: tuple[str, ...] = (), peak: float = 255.0, scale: float = 2 / 255) -> Data:
    arrays = {"inputs": np.zeros((9, 2, 2, 1), np.float32), "targets": np.arange(9) % 3}
    source = ArraySource(arrays, lambda batch: batch)
    splits = {name: Split(name, source, np.arange(i, 9, 3)) for i, name in enumerate(("train", "validation", "test"))}
    preparation = Preparation((2, 2, 1), scale, -1.0, peak)
    return Data("mine", **splits, input_shape=(2, 2, 1), classes=3, class_names=names, preparation=preparation)


def test_data_of_other_classes_or_another_range_is_noticed():
    assert check_data(made(), (2, 2, 1), ("a", "b", "c"), (-1.0, 1.0)) == []
    assert check_data(made(("a", "b", "c")), (2, 2, 1), ("0", "1", "2"), None) == []
    with pytest.raises(UserError, match="calls a class 'c' that the network calls 'b'"):
        check_data(made(("a", "c", "b")), (2, 2, 1), ("a", "b", "c"), None)
    with pytest.raises(UserError, match="has 3 classes, and the network 2"):
        check_data(made(), (2, 2, 1), ("a", "b"), None)
    (warning,) = check_data(made(scale=1 / 255), (2, 2, 1), (), (-1.0, 1.0))
    assert "gives inputs from -1 to 0, but the network was trained on -1 to 1" in warning
    assert input_range(made(peak=16, scale=2 / 16)) == pytest.approx((-1.0, 1.0))


def test_outputs_come_in_the_order_of_the_split_without_padding():
    inputs = np.arange(10, dtype=np.float32)[:, None]
    source = ArraySource({"inputs": inputs, "targets": np.arange(10)}, lambda batch: batch)
    split = Split("test", source, np.array([7, 2, 9, 4, 0]))
    outputs, labels = collect(lambda batch: batch["inputs"].numpy() * 2, split, 3)
    assert outputs[:, 0].tolist() == [14, 4, 18, 8, 0]
    assert labels.tolist() == [7, 2, 9, 4, 0]
    with pytest.raises(UserError, match="NaN or infinite"):
        collect(lambda batch: batch["inputs"].numpy() * np.nan, split, 3)
    with pytest.raises(UserError, match=r"outputs of shape \[3\]"):
        collect(lambda batch: batch["inputs"].numpy()[:, 0], split, 3)


def test_data_keys_without_a_name_change_those_of_the_run():
    stored = {"_target_": "recipes.data.digits.digits", "seed": 0, "test_fraction": 0.2}
    assert data_config([], stored, []) == stored
    assert data_config(["data.seed=4"], stored, [])["seed"] == 4
    assert data_config(["data=digits", "data.seed=5"], stored, [])["seed"] == 5


def test_the_card_of_a_run_names_its_input_and_its_classes(run: Path):
    card = card_of(restore(str(run), read_config(str(run))), "model")
    assert card.shape == (8, 8, 1)
    assert card.classes == tuple("0123456789")
    assert card.preparation == Preparation((8, 8, 1), 2 / 16, -1.0, 16, axes="new")
    assert keras.saving.load_model(run / "export/model.keras").input_shape[1:] == card.shape
