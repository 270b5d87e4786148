"""The evaluate command: a run and its exports give equal results, and measures match values computed by hand."""

import csv
import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from hookline.deploy.formats import ExportOptions
from hookline.deploy.inference.card import Card, write_card
from hookline.deploy.plain_model import card_of
from hookline.deploy.runtime_files import write_keras
from hookline.scripts.evaluate import main
from hookline.scripts.evaluation import (
    SHARES,
    calibration_errors,
    check_data,
    collect,
    input_range,
    measure,
    reliability,
    write_evaluation,
)
from hookline.scripts.predict import rank
from hookline.trainer.input.data import ArraySource, Data, Split
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.run.finished import read_config, restore
from tests.support.command import run_small
from tests.support.refusals import assert_one_line, assert_refused

NAMES = ("cat", "dog", "bird")
LABELS = np.array([0, 0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 0, 1, 1, 2, 2])
LOGITS = 3.0 * np.eye(3, dtype=np.float32)[PREDICTED]


@pytest.fixture(scope="module")
def run(small_bnn, tmp_path_factory) -> Path:
    """Return a small run of a binary network with its export."""
    directory = Path(shutil.copytree(small_bnn, tmp_path_factory.mktemp("evaluate") / "bnn"))
    finished = restore(str(directory), read_config(str(directory)))
    (directory / "export").mkdir()
    write_keras(finished, "model", directory / "export" / "model.keras", ExportOptions())
    card = card_of(finished, "model")
    assert (card.shape, card.classes) == ((8, 8, 1), tuple("0123456789"))
    assert card.preparation == Preparation((8, 8, 1), 2 / 16, -1.0, 16, axes="new")
    write_card(directory / "export" / "model.keras", card)
    return directory


def found(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


@pytest.mark.full
def test_run_and_its_export_reproduce_the_test_accuracy_in_summary(run, tmp_path):
    assert main([f"run={run}"]) == 0
    test, own = json.loads((run / "summary.json").read_text())["test"], found(run / "evaluation" / "test")
    assert own["overall"]["accuracy"] == pytest.approx(test["metric/accuracy"], abs=1e-6)
    assert own["overall"]["negative_log_likelihood"] == pytest.approx(test["loss/cross_entropy"], rel=1e-5)
    assert own["metrics"]["metric/accuracy"] == pytest.approx(own["overall"]["accuracy"])
    export = run / "export" / "model.keras"
    assert main([f"model={export}", "batch_size=7", f"output={tmp_path}/exported"]) == 0
    exported = found(tmp_path / "exported")
    assert exported["confusion"] == own["confusion"]
    assert exported["overall"] == pytest.approx(own["overall"], rel=1e-5, abs=1e-6)


@pytest.mark.full
def test_other_data_and_another_split_are_evaluated(run, tmp_path, capsys):
    path, foreign = tmp_path / "mine.npz", tmp_path / "foreign.keras"
    foreign.write_bytes((run / "export" / "model.keras").read_bytes())  # without a card
    pixels, labels = np.zeros((1000, 8, 8), np.uint8), np.arange(1000) % 10
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:300], y_test=labels[:300])
    capsys.readouterr()
    assert main([f"run={run}", "data=arrays", f"data.path={path}", "name=mine"]) == 0
    assert found(run / "evaluation" / "mine")["overall"]["examples"] == 300
    assert capsys.readouterr().err == ""
    given = [f"model={foreign}", "data=digits", "data.validation_fraction=50", "split=validation"]
    assert main([*given, f"output={tmp_path}/validation"]) == 0
    assert found(tmp_path / "validation")["overall"]["examples"] == 50


@pytest.mark.full
def test_mistake_is_reported_in_one_line_and_nothing_is_written(run, tmp_path, capsys):
    model = run / "export/model.keras"
    foreign, bare = (shutil.copy(model, tmp_path / name) for name in ("foreign.keras", "bare.keras"))
    write_card(bare, Card("model", "best", 1, (8, 8, 1)))
    given, changed = f"run={run}", Path(shutil.copytree(run, tmp_path / "changed"))
    text = (changed / "config.yaml").read_text()
    (changed / "config.yaml").write_text(text.replace("test_fraction: 0.2", "test_fraction: 0.3"))
    before = sorted([*run.rglob("*"), *tmp_path.rglob("*")])
    for arguments, word in (
        ([], "run= nor model="),
        ([given, f"model={run}"], "Both"),
        ([f"model={run}"], "is a run"),
        ([given, "data=digit"], "'digits'"),
        ([given, "data=ring", "name=new"], "[8, 8, 1]"),
        ([given, "name=a/b"], "without a path"),
        ([f"model={run}/export/model.keras", "checkpoint=best"], "with model="),
        ([given, f"output={run}/checkpoints", "overwrite=true"], "does not contain an evaluation to overwrite"),
        ([given, f"output={run}/summary.json"], "exists already"),
        ([f"model={foreign}", "data=digits"], "does not belong to a run"),
        ([f"model={foreign}", f"output={tmp_path}/new"], "No data"),
        ([f"model={bare}", "data=digits", f"output={tmp_path}/out"], "not classes"),
        ([f"run={changed}", "name=new"], "has changed since"),
        ([f"model={changed}/export/model.keras", "name=new"], "has changed since"),
    ):
        assert_one_line(main, arguments, word, capsys)
        assert sorted([*run.rglob("*"), *tmp_path.rglob("*")]) == before


def test_export_with_several_inputs_is_evaluated_on_data_of_its_shapes(tmp_path, capsys):
    rng, path, data = np.random.default_rng(0), tmp_path / "two.keras", tmp_path / "two.npz"
    rows, labels = {"a": rng.normal(size=(40, 3)).astype(np.float32), "b": rng.normal(size=(40, 2))}, np.arange(40) % 3
    arrays = {f"x_{part}_{name}": each for name, each in rows.items() for part in ("train", "test")}
    np.savez(data, **arrays, y_train=labels, y_test=labels)
    inputs = {name: keras.Input(each.shape[1:], name=name) for name, each in rows.items()}
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(list(inputs.values()))))
    model.save(path)
    given = [f"model={path}", "data=arrays", f"data.path={data}", f"output={tmp_path / 'out'}"]
    for width in (4, 2):
        shapes = {"a": Preparation((3,)), "b": Preparation((width,))}
        write_card(path, Card("model", "last", 1, (), ("0", "1", "2"), inputs=shapes))
        if width == 4:
            assert_one_line(main, given, "the network takes {'a': (3,), 'b': (4,)}", capsys)
    assert main(given) == 0
    expected = np.mean(model.predict(rows, verbose=0).argmax(axis=1) == labels)
    assert found(tmp_path / "out")["overall"]["accuracy"] == pytest.approx(expected)


def test_one_output_for_two_classes_reproduces_the_test_loss_in_summary(tmp_path):
    np.savez(tmp_path / "two.npz", x_train=np.eye(3)[np.arange(300) % 3], y_train=np.arange(300) % 2)
    own = ("data=arrays", f"data.path={tmp_path}/two.npz", "task.loss=binary_crossentropy")
    test = run_small("regression", *own, run_dir=tmp_path / "run")["test"]
    assert main([f"run={tmp_path / 'run'}"]) == 0
    assert found(tmp_path / "run/evaluation/test")["metrics"]["loss/total"] == pytest.approx(test["loss/total"])


def made(names: tuple[str, ...] = (), peak: float | None = 255.0, scale: float = 2 / 255) -> Data:
    arrays = {"inputs": np.zeros((9, 2, 2, 1), np.float32), "targets": np.arange(9) % 3}
    source = ArraySource(arrays, lambda batch: batch)
    splits = {name: Split(name, source, np.arange(i, 9, 3)) for i, name in enumerate(("train", "validation", "test"))}
    preparation = Preparation((2, 2, 1), scale, -1.0, peak)
    return Data("mine", **splits, input_shape=(2, 2, 1), classes=3, class_names=names, preparation=preparation)


def test_other_classes_are_refused_and_other_input_range_gives_a_warning():
    assert check_data(made(), (2, 2, 1), ("a", "b", "c"), (-1.0, 1.0)) == []
    assert check_data(made(("a", "b", "c"), peak=None), (2, 2, 1), ("0", "1", "2"), None) == []
    for names, classes, word in (
        (("a", "c", "b"), "abc", "'c' that the network calls 'b'"),
        (("0", "2", "1"), "012", "'2' that the network calls '1'"),  # folders sort 10 before 2
        ((), "021", "'1' that the network calls '2'"),
        ((), "ab", "3 classes"),
    ):
        assert_refused(word, check_data, made(names), (2, 2, 1), tuple(classes), None)
    (warning,) = check_data(made(scale=1 / 255), (2, 2, 1), (), (-1.0, 1.0))
    assert "gives inputs from -1 to 0, but the network was trained on inputs from -1 to 1" in warning
    for peak, scaled, told in ((255.0, None, "from -1 to 1"), (None, (-1.0, 1.0), "of no known range")):
        (warning,) = check_data(made(peak=peak), (2, 2, 1), (), scaled)
        assert f"gives inputs {told}, but the network" in warning
    assert input_range(made(peak=16, scale=2 / 16)) == pytest.approx((-1.0, 1.0))


def test_outputs_are_collected_in_split_order_without_padding():
    inputs = np.arange(10, dtype=np.float32)[:, None]
    columns = {"inputs": inputs, "targets": np.arange(10), "sample_weights": np.arange(10, dtype=np.float32) / 2}
    split = Split("test", ArraySource(columns, lambda batch: batch), np.array([7, 2, 9, 4, 0]))
    outputs, labels, weights = collect(lambda batch: batch["inputs"].numpy() * 2, split, 3)
    assert weights.tolist() == [3.5, 1.0, 4.5, 2.0, 0.0]
    assert outputs[:, 0].tolist() == [14, 4, 18, 8, 0]
    assert labels.tolist() == [7, 2, 9, 4, 0]
    assert_refused("NaN or infinite", collect, lambda batch: batch["inputs"].numpy() * np.nan, split, 3)
    assert_refused(r"shape \[3\]", collect, lambda batch: batch["inputs"].numpy()[:, 0], split, 3)


def test_measures_match_values_computed_by_hand():
    judged = measure(LOGITS, LABELS, NAMES, bins=10)
    cat, dog, bird = judged.classes
    assert [cat[key] for key in ("precision", "recall", "support", "predicted")] == [1.0, 0.75, 4, 3]
    assert [dog[key] for key in ("precision", "recall", "support", "predicted")] == [0.5, 0.5, 2, 2]
    assert [bird[key] for key in ("precision", "recall", "f1")] == [0.5, 1.0, pytest.approx(2 / 3)]
    assert judged.confusion.tolist() == [[3, 1, 0], [0, 1, 1], [0, 0, 1]]  # rows are the true classes
    assert judged.overall["accuracy"] == pytest.approx(5 / 7)
    assert judged.overall["macro_recall"] == pytest.approx((0.75 + 0.5 + 1.0) / 3)
    assert judged.overall["macro_precision"] == pytest.approx((1.0 + 0.5 + 0.5) / 3)
    none = measure(LOGITS[[0, 4]], np.array([0, 1]), NAMES, bins=5)  # averages leave out classes without examples
    assert (none.classes[2]["support"], none.overall["macro_f1"]) == (0, 1.0)


def test_ties_go_to_the_lower_label_in_accuracy_and_top_5_accuracy():
    for labels, expected in ((np.arange(10), (0.1, 0.5)), (np.zeros(10, int), (1.0, 1.0))):
        overall = measure(np.zeros((10, 10), np.float32), labels, [str(name) for name in range(10)], bins=5).overall
        assert (overall["accuracy"], overall["top_5_accuracy"]) == expected


def test_bins_include_only_their_upper_edge_and_give_calibration_errors():
    bins = reliability(np.array([0.2, 0.2000001, 0.4, 1.0, 1e-9]), np.array([True, False, True, True, False]), 5)
    assert bins["counts"].tolist() == [2, 2, 0, 0, 1]
    assert bins["accuracy"].tolist() == [0.5, 0.5, 0.0, 0.0, 1.0]
    bins = reliability(np.array([0.95, 0.95, 0.95, 0.65]), np.array([True, True, False, False]), 10)
    expected = 3 / 4 * (0.95 - 2 / 3) + 1 / 4 * 0.65  # weighted by examples
    assert calibration_errors(bins) == (pytest.approx(expected), pytest.approx(0.65))


def test_probability_scores_match_values_computed_by_hand_and_stay_finite():
    logits, labels = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.array([1, 1])
    assert rank(logits, 3)[1] == pytest.approx(-np.sort(-np.exp(logits)))
    scores = measure(logits, labels, NAMES, bins=5).overall
    assert scores["negative_log_likelihood"] == pytest.approx(-(np.log(0.25) + np.log(0.8)) / 2)
    assert scores["brier_score"] == pytest.approx((0.25 + 0.5625 + 0.0625 + 0.01 + 0.04 + 0.01) / 2)
    large = np.array([[1e4, -1e4], [-1e4, 1e4]], np.float32)
    assert measure(large, np.array([0, 0]), NAMES[:2], bins=5).overall["negative_log_likelihood"] == pytest.approx(1e4)
    assert rank(large, 2)[1].tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_sample_weights_act_like_repeated_examples():
    logits, weights = np.random.default_rng(0).normal(size=(7, 10)).astype(np.float32), np.array([3, 0, 1, 2, 1, 4, 1])
    names = [str(name) for name in range(10)]
    judged = measure(logits, LABELS, names, bins=5, weights=weights / 2)
    often = measure(logits.repeat(weights, axis=0), LABELS.repeat(weights), names, bins=5)
    assert judged.overall == pytest.approx({**often.overall, "examples": 7})
    for one, other in zip(judged.classes, often.classes, strict=True):
        assert [one[key] for key in SHARES] == pytest.approx([other[key] for key in SHARES])
    assert (judged.confusion.sum(), judged.classes[0]["support"], judged.reliability["counts"].sum()) == (7, 4, 7)


def test_evaluation_directory_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "deep" / "test"
    given = (folder, {"title": "net on data", "metrics": {}}, measure(LOGITS, LABELS, NAMES, bins=10), NAMES)
    files = ["calibration.png", "classes.csv", "confusion.csv", "confusion.png", "evaluation.json"]
    assert write_evaluation(*given) == files
    assert found(folder)["confusion"] == [[3, 1, 0], [0, 1, 1], [0, 0, 1]]
    rows = list(csv.reader((folder / "confusion.csv").read_text().splitlines()))
    assert rows[:2] == [["true \\ predicted", *NAMES], ["cat", "3", "1", "0"]]
    _, first, *_ = csv.reader((folder / "classes.csv").read_text().splitlines())
    assert first == ["cat", "1.0", "0.75", str(6 / 7), "4", "3"]
    (folder / "old.txt").write_text("x")
    assert "old.txt" not in write_evaluation(*given)
