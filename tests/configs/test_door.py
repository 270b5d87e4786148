"""The command itself: exit codes, one line for a mistake, a traceback for an internal error."""

import os
import subprocess
import sys
import types

import pytest

from hookline import train
from hookline.trainer.errors import NonFiniteError, UnsavedError, UserError
from tests.support.workers import ROOT, run_python


@pytest.fixture
def session(monkeypatch):
    """Replace runs with failures, which the seed selects."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    failures = {
        13: UserError("The data is not there."),
        14: NonFiniteError("The loss is NaN at step 3."),
        15: RuntimeError("a fault of the program"),
        16: KeyboardInterrupt(),
        17: UnsavedError("Not saved."),
    }

    def execute(config, recipe, overrides, *, plan, began):
        raise failures[config["seed"]]

    monkeypatch.setitem(sys.modules, "hookline.trainer.run.session", types.SimpleNamespace(execute=execute))


def test_expected_failure_is_reported_in_one_line_with_its_exit_code(session, capfd):
    for seed, code, line in (
        (13, 2, "Error: The data is not there.\n"),
        (14, 1, "Error: The loss is NaN at step 3.\n"),
        (16, 130, "Interrupted.\n"),
        (17, 1, "Error: Not saved.\n"),
    ):
        assert train.main(["recipe=bnn", f"seed={seed}"]) == code
        assert capfd.readouterr() == ("", line)


def test_error_from_a_hook_names_the_hook(capfd):
    errors = [UserError("No layer."), UserError("ema@model has no layer."), NonFiniteError("NaN."), UserError("A.")]
    for error in errors[:3]:
        error.add_note("in hook ema@model, stage build, while the step was traced")
    for error in errors:
        train.report(error, 2)
    lines = ["No layer. (hook ema@model: its options are hooks.ema.<option>)", "ema@model has no layer.", "NaN.", "A."]
    assert capfd.readouterr().err == "".join(f"Error: {line}\n" for line in lines)


def test_internal_error_and_debug_show_the_traceback(session, capfd, monkeypatch):
    assert train.main(["recipe=bnn", "seed=15"]) == 1
    assert "Traceback" in (error := capfd.readouterr().err)
    assert error.endswith("RuntimeError: a fault of the program\n")
    for arguments in (["recipe=bnn", "seed=13", "debug=true"], ["recipe=x", "debug=true"]):
        assert train.main(arguments) == 2
        assert "Traceback" in capfd.readouterr().err
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert train.main(["recipe=bnn", "trainer.epoch=3"]) == 2
    assert "Traceback" in capfd.readouterr().err


def test_composed_config_and_its_files_are_shown_from_any_directory(tmp_path):
    for shown, words in ((["--info", "defaults"], "recipe/bnn"), (["--cfg", "job", "--package", "trainer"], "batch_")):
        assert words in run_python(ROOT / "train.py", "recipe=bnn", *shown, cwd=tmp_path)[0]


@pytest.mark.parametrize("arguments", [["recipe=bnn", "--cfg", "job"], ["recipe=no_such_recipe"]])
def test_closed_output_pipe_causes_no_traceback(arguments):
    read, write = os.pipe()
    os.close(read)
    wrong = arguments[0] == "recipe=no_such_recipe"
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    errors = write if wrong else subprocess.PIPE  # for a mistake, the reader of the errors is gone, too
    done = subprocess.run(command, stdout=write, stderr=errors, text=True, cwd=ROOT, check=False, timeout=60)
    os.close(write)
    assert done.returncode == (2 if wrong else 0)
    assert not done.stderr
