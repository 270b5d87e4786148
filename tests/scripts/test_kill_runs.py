"""The trial by SIGKILL: it sees what differs, and a kill inside a save loses nothing (100 are run by hand)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookline.scripts import kill_runs


def write_run(directory: Path, *lines: dict, **changes: object) -> Path:
    (directory / "checkpoints" / "step_00000004").mkdir(parents=True)
    summary = {"status": "completed", "steps": 4, "digest": "a", "best": {"step": 3}, "test": {"loss": 1.0}, **changes}
    (directory / "summary.json").write_text(json.dumps(summary))
    rows = lines or ({"step": 1, "time/images_per_second": 3.0, "loss": 2.0},)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    return directory


def test_every_difference_but_speed_is_named(tmp_path):
    whole = write_run(tmp_path / "whole")
    for number, (line, changes, found) in enumerate(
        (
            ({"step": 1, "time/images_per_second": 1.0, "loss": 2.0}, {"seconds": 9}, []),
            ({"step": 1, "loss": 2.0}, {"digest": "b"}, ["digest"]),
            ({"step": 1, "loss": 2.0}, {"test": {"loss": 1.1}, "best": {"step": 4}}, ["best", "test"]),
            ({"step": 1, "loss": 2.5}, {}, ["metrics.jsonl"]),
        )
    ):
        run = write_run(tmp_path / str(number), line, **changes)
        assert kill_runs.differences(run, whole) == found
    (run / "checkpoints" / ".step_00000004.tmp").mkdir()  # what a writer left
    assert kill_runs.differences(run, whole) == ["metrics.jsonl", ".step_00000004.tmp"]


@pytest.mark.long
def test_a_kill_inside_a_save_loses_nothing(tmp_path, capsys, monkeypatch):
    silent = [f"hooks.{name}=null" for name in ("tensorboard", "pictures", "projector")]
    monkeypatch.setitem(kill_runs.RECIPES, "bnn", ["trainer.epochs=10", "model.units=[64,64]", *silent])
    code = kill_runs.main([f"out={tmp_path / 'kills'}", "kills=1", "recipes=[bnn]", "in_save=1"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.rstrip().endswith("0 losses.")
