"""The trial by SIGKILL: it sees what differs, and a kill inside a save loses nothing (100 are run by hand)."""

from __future__ import annotations

import pytest

from hookline.scripts import kill_runs


@pytest.mark.long
def test_a_kill_inside_a_save_loses_nothing(tmp_path, capsys, monkeypatch):
    silent = [f"hooks.{name}=null" for name in ("tensorboard", "pictures", "projector")]
    monkeypatch.setitem(kill_runs.RECIPES, "bnn", ["trainer.epochs=10", "model.units=[64,64]", *silent])
    code = kill_runs.main([f"out={tmp_path / 'kills'}", "kills=1", "recipes=[bnn]", "in_save=1"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.rstrip().endswith("0 losses.")
