"""The command itself: exit codes, one line for a mistake, a traceback for a fault."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import train
from trainer.config.command import Command
from trainer.errors import NonFiniteError, UnsavedError, UserError
from trainer.run.start_time import process_began

ROOT = Path(__file__).resolve().parents[2]
Execute = Callable[[dict[str, Any], str, list[str]], dict[str, Any]]


def summary(recipe: str, seed: int) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "best": {"values": {"metric/accuracy": 0.9 + seed / 100}},
        "test": {"metric/accuracy": 0.8 + seed / 100},
        "bytes": {"float32": 49380, "deployed": 6789},
        "seconds": 1.25,
        "run_dir": f"runs/{recipe}/{seed}",
    }


@pytest.fixture
def begun() -> list[float]:
    """When the runs of `session` began, by `time.monotonic`."""
    return []


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, begun: list[float]) -> list[tuple[str, int, list[str]]]:
    """Runs that are recorded and not made. A seed of 13 goes wrong in the way that its recipe's name stands for."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    runs: list[tuple[str, int, list[str]]] = []
    failures = {
        13: UserError("The data is not there."),
        14: NonFiniteError("The loss is NaN at step 3."),
        15: RuntimeError("a fault of the program"),
        16: KeyboardInterrupt(),
        17: UnsavedError("Not saved."),
    }

    def execute(config: dict[str, Any], recipe: str, overrides: list[str], *, began: float) -> dict[str, Any]:
        begun.append(began)
        runs.append((recipe, config["seed"], overrides))
        if config["seed"] in failures:
            raise failures[config["seed"]]
        return summary(recipe, config["seed"])

    monkeypatch.setitem(sys.modules, "trainer.run.session", types.SimpleNamespace(execute=execute))
    return runs


def test_a_run_began_with_the_process(session: list[Any], begun: list[float]) -> None:
    before = time.monotonic()
    train.main(["recipe=bnn", "seed=1"])
    assert begun == [pytest.approx(process_began(), abs=0.1)]
    assert begun[0] < before


def test_a_run_is_executed_with_its_config(session: list[Any]) -> None:
    assert train.main(["recipe=bnn", "seed=3"]) == 0
    assert session == [("bnn", 3, ["recipe=bnn", "seed=3"])]


@pytest.mark.parametrize(
    ("seed", "code", "line"),
    [
        (13, 2, "Error: The data is not there.\n"),
        (14, 1, "Error: The loss is NaN at step 3.\n"),
        (16, 130, "Interrupted.\n"),
        (17, 1, "Error: Not saved.\n"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    session: list[Any], capfd: pytest.CaptureFixture[str], seed: int, code: int, line: str
) -> None:
    assert train.main(["recipe=bnn", f"seed={seed}"]) == code
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", line)


def noted(text: str, error: type[Exception] = UserError) -> Exception:
    found = error(text)
    found.add_note("in hook ema@model, stage build, while the step was traced")
    return found


def test_a_mistake_that_a_hook_finds_names_it(capfd: pytest.CaptureFixture[str]) -> None:
    for error in (noted("No layer."), noted("ema@model has no layer."), noted("NaN.", NonFiniteError), UserError("A.")):
        train.report(error, 2)
    lines = ["No layer. (hook ema@model)", "ema@model has no layer.", "NaN.", "A."]
    assert capfd.readouterr().err == "".join(f"Error: {line}\n" for line in lines)


def test_a_fault_of_the_program_keeps_its_traceback(session: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert train.main(["recipe=bnn", "seed=15"]) == 1
    assert "Traceback" in (error := capfd.readouterr().err)
    assert error.endswith("RuntimeError: a fault of the program\n")


@pytest.mark.parametrize("arguments", [["recipe=bnn", "seed=13"], ["recipe=bnn", "trainer.epoch=3"], ["recipe=x"]])
@pytest.mark.parametrize("how", ["debug=true", "HYDRA_FULL_ERROR"])
def test_the_traceback_is_shown_on_request(
    session: list[Any],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    how: str,
) -> None:
    if how == "HYDRA_FULL_ERROR":
        monkeypatch.setenv(how, "1")
    assert train.main(arguments if how == "HYDRA_FULL_ERROR" else [*arguments, how]) == 2
    assert "Traceback" in capfd.readouterr().err


def test_a_sweep_starts_processes_and_trains_nothing_in_this_one(
    session: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[Command] = []

    def run_command(command: Command, say: Callable[[str], None]) -> int:
        commands.append(command)
        say("shown")
        return 143

    monkeypatch.setattr("trainer.sweep.command.run_command", run_command)
    assert train.main(["-m", "recipe=bnn", "--jobs", "3", "seed=1,2", "--sweep", "there"]) == 143
    assert commands == [Command(("recipe=bnn", "seed=1,2"), sweep=True, directory="there", jobs=3)]
    assert session == []


def test_one_wrong_job_stops_a_sweep_before_it_starts(
    session: list[Any], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["-m", "recipe=bnn", "trainer.batch_size=32,0"]) == 2
    assert capfd.readouterr().err == "Error: trainer.batch_size=0 received. Expected at least 1.\n"
    assert session == []
    assert list(tmp_path.iterdir()) == []


def test_showing_a_config_trains_nothing(session: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert train.main(["recipe=bnn", "seed=5", "--cfg", "job", "--resolve"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("seed: 5\n")
    assert "  bnn_rounding:\n" in out
    assert session == []


def command(*arguments: str, cwd: Path) -> tuple[int, str, str, float]:
    """Exit code, output, errors and processor seconds, which a busy machine does not stretch as it does wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments], cwd=cwd, capture_output=True, text=True, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, done.stdout, done.stderr, seconds


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["recipe=bnnn"],
        ["recipe=bnn", "+trainer.stepz=3"],
        ["recipe=bnn", "+hooks=none_such"],
        ["recipe=bnn", "hooks.bnn_rounding.clip=abc"],
        ["recipe=bnn", "optimizer.learning_rate="],
        ["recipe=bnn", "hooks=null"],
        ["recipe=bnn", "+hooks.x={_target_: os.system, command: 'touch here'}"],
        ["-m", "recipe=bnn,bnnn"],
        ["-m", "recipe=bnn", "seed=1,2", "--jobs", "many"],
        ["--unknown"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_at_once_and_leaves_nothing_behind(arguments: list[str], tmp_path: Path) -> None:
    code, out, error, seconds = command(*arguments, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert error.startswith("Error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert seconds < 2.0
    assert list(tmp_path.iterdir()) == []


def test_the_composed_config_and_its_files_can_be_shown_from_anywhere(tmp_path: Path) -> None:
    code, out, _, _ = command("recipe=bnn", "--info", "defaults", cwd=tmp_path)
    assert code == 0
    assert "recipe/bnn" in out
    code, out, _, _ = command("recipe=bnn", "--cfg", "job", "--package", "trainer", cwd=tmp_path)
    assert code == 0
    assert "batch_size: " in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["recipe=bnn", "--cfg", "job"], ["recipe=no_such_recipe"]])
def test_a_reader_that_has_left_is_no_fault(arguments: list[str]) -> None:
    """`| head` closes the pipe: no traceback, and the exit code is that of the command."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    process = subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(write)
    _, errors = process.communicate(timeout=60)
    wrong = arguments[0] == "recipe=no_such_recipe"
    assert process.returncode == (2 if wrong else 0)
    assert errors.startswith("Error: Unknown recipe") if wrong else errors == ""


def test_an_error_whose_reader_has_left_keeps_its_exit_code() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(ROOT / "train.py"), "recipe=no_such_recipe"]
    process = subprocess.Popen(command, stdout=write, stderr=write, cwd=ROOT)
    os.close(write)
    assert process.wait(timeout=60) == 2
