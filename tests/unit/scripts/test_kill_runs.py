"""The trial by SIGKILL: it sees what differs, and a kill inside a save loses nothing (100 are run by hand)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import kill_runs


def write_run(directory: Path, *lines: dict[str, Any], **changes: Any) -> Path:
    (directory / "checkpoints" / "step_00000004").mkdir(parents=True)
    summary = {"status": "completed", "steps": 4, "digest": "a", "best": {"step": 3}, "test": {"loss": 1.0}, **changes}
    (directory / "summary.json").write_text(json.dumps(summary))
    rows = lines or ({"step": 1, "time/images_per_second": 3.0, "loss": 2.0},)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    return directory


def test_speed_is_no_difference(tmp_path: Path) -> None:
    slower = write_run(tmp_path / "slower", {"step": 1, "time/images_per_second": 1.0, "loss": 2.0}, seconds=9)
    assert kill_runs.differences(slower, write_run(tmp_path / "whole")) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"digest": "b"}, ["digest"]),
        ({"status": "interrupted", "steps": 3}, ["status", "steps"]),
        ({"test": {"loss": 1.1}, "best": {"step": 4}}, ["best", "test"]),
    ],
)
def test_every_other_difference_is_named(tmp_path: Path, change: dict[str, Any], found: list[str]) -> None:
    assert kill_runs.differences(write_run(tmp_path / "run", **change), write_run(tmp_path / "whole")) == found


def test_another_curve_and_what_a_writer_left_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"step": 1, "loss": 2.5})
    (run / "checkpoints" / ".step_00000004.tmp").mkdir()
    whole = write_run(tmp_path / "whole")
    assert kill_runs.differences(run, whole) == ["metrics.jsonl", ".step_00000004.tmp"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "out="),
        (["out={here}"], "Expected out=<new directory>"),
        (["out={here}/new", "kills=0"], "kills=0"),
        (["out={here}/new", "kills=many"], "kills=many"),
        (["out={here}/new", "in_save=2"], "in_save=2"),
        (["out={here}/new", "recipes=[bn]"], "Did you mean 'bnn'?"),
        (["out={here}/new", "kill=3"], "Did you mean 'kills'?"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, capsys, arguments: list[str], word: str) -> None:
    assert kill_runs.main([each.format(here=tmp_path) for each in arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert word in line


@pytest.mark.long
def test_a_kill_inside_a_save_loses_nothing(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [f"hooks.{name}=null" for name in ("tensorboard", "pictures", "projector")]
    monkeypatch.setitem(kill_runs.RECIPES, "bnn", ["trainer.epochs=10", "model.units=[64,64]", *silent])
    code = kill_runs.main([f"out={tmp_path / 'kills'}", "kills=1", "recipes=[bnn]", "in_save=1"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "bnn: 1 kills (" in printed
    assert printed.rstrip().endswith("0 losses.")
