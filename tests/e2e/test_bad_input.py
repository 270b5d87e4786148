"""Bad input: one clear line, exit code 2, no traceback, nothing written. Through the door, as a user gives it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from train import main


def write_mnist(path: Path, **changes: np.ndarray) -> Path:
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 200), ("test", 40)):
        arrays[f"x_{split}"] = generator.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"y_{split}"] = (np.arange(count) % 10).astype(np.uint8)
    np.savez(path, **(arrays | changes))
    return path


@pytest.fixture
def door(tmp_path, monkeypatch, capfd):
    """Return a function that runs a command line in an empty directory and gives exit code and the error lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def run(*arguments: str) -> tuple[int, list[str]]:
        before = set(tmp_path.rglob("*"))
        code = main(["recipe=bnn", "trainer.epochs=1", "trainer.compile=off", *arguments])
        written = set(tmp_path.rglob("*")) - before
        lines = capfd.readouterr().err.strip().splitlines()
        assert not written
        return code, lines

    return run


LABELS = {"y_train": np.full(200, 3, np.uint8) + np.uint8(100) * (np.arange(200) == 7).astype(np.uint8)}
NAN = {"x_train": np.where(np.arange(200)[:, None, None] == 5, np.nan, 1.0) * np.ones((200, 28, 28), np.float32)}

CASES = {
    "missing data file": ({}, ["data.path=absent.npz"], ["absent.npz"]),
    "labels out of range": (LABELS, [], ["y_train", "103"]),
    "images of the wrong shape": ({"x_train": np.zeros((200, 27), np.uint8)}, [], ["x_train", "[27]"]),
    "fewer labels than images": ({"y_train": np.zeros(7, np.uint8)}, [], ["y_train", "7"]),
    "NaN in the data": (NAN, [], ["x_train", "NaN"]),
    "batch larger than the set": ({}, ["data.validation_size=20", "trainer.batch_size=1000"], ["1000", "180"]),
    "no npz": (None, [], ["npz"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_data_ends_in_one_line(case: str, door, tmp_path) -> None:
    changes, arguments, words = CASES[case]
    path = tmp_path / "mnist.npz"
    if changes is None:
        path.write_text("not an archive")
    else:
        write_mnist(path, **changes)
    given = [] if any(each.startswith("data.path") for each in arguments) else [f"data.path={path}"]
    size = [] if any("validation_size" in each for each in arguments) else ["data.validation_size=20"]
    code, lines = door("data=mnist", *given, *size, *arguments)
    assert code == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith("Error: ")
    for word in words:
        assert word in lines[0]


def test_existing_run_directory_is_left_alone(door, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("precious")
    code, lines = door("run_dir=run")
    assert (code, len(lines)) == (2, 1)
    assert "run_dir=run exists already" in lines[0]
    assert (tmp_path / "run" / "summary.json").read_text() == "precious"


def test_unwritable_run_directory_is_named(door, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    code, lines = door("run_dir=file/run")
    assert (code, len(lines)) == (2, 1)
    assert "cannot be made" in lines[0]


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/sys").exists(), reason="nothing here is unwritable")
def test_run_directory_where_nobody_may_write(door) -> None:
    code, lines = door("run_dir=/proc/sys/hookline/run")
    assert (code, len(lines)) == (2, 1)
    assert "/proc/sys" in lines[0]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("trainer.monitor=metric/acuracy", ["Did you mean 'metric/accuracy'?"]),
        ("hooks.bnn_rounding.layers=dens_1", ["dens_1", "dense_1"]),
        ("hooks.bnn_rounding.kernel_quantizer=ste_sing", ["Did you mean 'ste_sign'?"]),
        ("hooks.bnn_rounding.network=modle", ["modle", "model"]),
        ("hooks.bnn_rounding.clip=-1", ["clip", "-1"]),
        ("model.activation=relu", ["activation_1", "+1"]),
        ("model.units=[]", ["logits", "all_binary=true"]),
        ("model=larq_tutorial_cnn", ["(8, 8, 1)", "model=mlp"]),
        ("optimizer.clipnorm=1.0 optimizer.clipvalue=1.0", ["clipnorm"]),
        ("optimizer.learning_rate=-1", ["learning_rate"]),
        ("init_from=absent", ["init_from=absent"]),
        ("task.label_smoothing=1.5", ["label_smoothing=1.5"]),
        ("data.validation_fraction=0.9", ["validation"]),
        ("schedule.final_fraction=-1", ["final_fraction"]),
        ("plugins=[absent_package] +hooks.mine._target_=absent_package.Hook", ["absent_package"]),
    ],
)
def test_mistake_that_only_building_shows(door, argument: str, words: list[str]) -> None:
    code, lines = door(*argument.split(" "))
    assert code == 2, lines
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0]


def test_debug_shows_the_traceback(door, monkeypatch) -> None:
    assert "Traceback" in door("init_from=absent", "debug=true")[1][0]
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert "Traceback" in door("init_from=absent")[1][0]
