"""The run directory: new, whole, never overwritten."""

from __future__ import annotations

import json
import os
from datetime import datetime

import pytest
from omegaconf import OmegaConf

from trainer.errors import UserError
from trainer.run.directory import choose_directory, make_directory

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_default_is_recipe_and_time_and_a_second_run_gets_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = choose_directory(None, "bnn", NOW)
    assert str(first) == "runs/bnn/2026-01-02_03-04-05"
    assert not first.exists()
    make_directory(first, {}, [])
    assert str(choose_directory(None, "bnn", NOW)) == "runs/bnn/2026-01-02_03-04-05_1"


def test_config_overrides_and_environment_are_written(tmp_path) -> None:
    path = tmp_path / "deep" / "run"
    make_directory(path, {"seed": 3, "hooks": {"bnn": {"clip": 1.0}}}, ["recipe=bnn", "seed=3"])
    assert OmegaConf.load(path / "config.yaml") == {"seed": 3, "hooks": {"bnn": {"clip": 1.0}}}
    assert (path / "overrides.txt").read_text() == "recipe=bnn\nseed=3\n"
    environment = json.loads((path / "environment.json").read_text())
    assert environment["packages"]["tensorflow"].startswith("2.21")
    assert environment["cpu_count"] == os.cpu_count()


def test_existing_run_is_refused(tmp_path) -> None:
    path = tmp_path / "run"
    make_directory(path, {"seed": 1}, [])
    with pytest.raises(UserError, match="exists already. Expected a new directory"):
        choose_directory(str(path), "bnn", NOW)
    with pytest.raises(UserError, match="cannot be made"):
        make_directory(path, {"seed": 2}, [])
    assert OmegaConf.load(path / "config.yaml") == {"seed": 1}


def test_empty_directory_is_accepted_and_a_file_is_not(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    make_directory(choose_directory(str(tmp_path / "empty"), "bnn", NOW), {}, [])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="exists already"):
        choose_directory(str(tmp_path / "file"), "bnn", NOW)
    with pytest.raises(UserError, match="is not writable"):
        choose_directory(str(tmp_path / "file" / "below"), "bnn", NOW)


def test_unwritable_parent_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match="is not writable. Give another with run_dir="):
        choose_directory(str(tmp_path / "run"), "bnn", NOW)


def test_a_config_that_could_not_be_read_again_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(UserError, match="The config cannot be kept: it holds too much"):
        make_directory(tmp_path / "run", {"data": {"path": "x" * 10**5}}, [])
    assert not list(tmp_path.iterdir())
