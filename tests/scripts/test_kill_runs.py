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


@pytest.mark.long
def test_a_kill_inside_a_save_loses_nothing(tmp_path, capsys, monkeypatch):
    silent = [f"hooks.{name}=null" for name in ("tensorboard", "pictures", "projector")]
    monkeypatch.setitem(kill_runs.RECIPES, "bnn", ["trainer.epochs=10", "model.units=[64,64]", *silent])
    code = kill_runs.main([f"out={tmp_path / 'kills'}", "kills=1", "recipes=[bnn]", "in_save=1"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.rstrip().endswith("0 losses.")
