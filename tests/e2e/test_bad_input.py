"""Bad input: one clear line, exit code 2, no traceback, nothing written. Through the door, as a user gives it."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.train import main
from tests.support.images import write_mnist


@pytest.fixture
def door(tmp_path, monkeypatch, capfd):
    """Return a function that runs a command line in an empty directory and gives exit code and the error lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def run(*arguments):
        before = set(tmp_path.rglob("*"))
        code = main(["recipe=bnn", "trainer.epochs=1", "trainer.compile=off", *arguments])
        assert set(tmp_path.rglob("*")) == before
        return code, capfd.readouterr().err.strip().splitlines()

    return run


LABELS = {"y_train": np.full(200, 3, np.uint8) + np.uint8(100) * (np.arange(200) == 7).astype(np.uint8)}
NAN = {"x_train": np.where(np.arange(200)[:, None, None] == 5, np.nan, 1.0) * np.ones((200, 28, 28), np.float32)}


def test_bad_data_ends_in_one_line(door, tmp_path):
    path, files = tmp_path / "mnist.npz", tmp_path / "none.npz"
    for changes, arguments, words in (
        ({}, [f"data.path={files}"], [str(files)]),
        (LABELS, [], ["y_train", "103"]),
        ({"x_train": np.zeros((200, 27), np.uint8)}, [], ["x_train", "[27]"]),
        ({"y_train": np.zeros(7, np.uint8)}, [], ["y_train", "7"]),
        (NAN, [], ["x_train", "NaN"]),
        ({}, ["trainer.batch_size=1000"], ["1000", "180"]),
        (None, [], ["npz"]),
    ):
        path.write_text("no archive") if changes is None else write_mnist(path, 200, 40, **changes)
        given = [] if arguments[:1] == [f"data.path={files}"] else [f"data.path={path}"]
        code, (line,) = door("data=mnist", *given, "data.validation_size=20", *arguments)
        assert code == 2
        assert line.startswith("Error: ")
        assert all(word in line for word in words), (line, words)


def test_mistake_that_only_building_shows(door, monkeypatch):
    for argument, word in (
        ("trainer.monitor=metric/acuracy", "'metric/accuracy'"),
        ("hooks.bnn_rounding.layers=dens_1", "dense_1"),
        ("model.activation=relu", "activation_1"),
        ("model=larq_tutorial_cnn", "(8, 8, 1)"),
        ("init_from=absent", "init_from=absent"),
        ("data.validation_fraction=0.9", "validation"),
    ):
        code, lines = door(*argument.split(" "))
        assert (code, len(lines)) == (2, 1), lines
        assert word in lines[0]
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert "Traceback" in door("init_from=absent")[1][0]
