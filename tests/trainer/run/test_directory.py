"""The run directory: new, complete, never overwritten, and locked by one process until it ends."""

import json
import os
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hookline.trainer.config.overrides import resume_override
from hookline.trainer.errors import UserError
from hookline.trainer.run.directory import check_initial, choose_directory, locked, make_directory
from tests.support.refusals import assert_refused

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_run_directory_is_new_and_its_files_are_written_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = choose_directory(None, "bnn", NOW)  # of three runs that start in the same second
    for end in ("", "_1", "_2"):
        made = make_directory(first, {}, [], lambda: choose_directory(None, "bnn", NOW))
        assert str(made) == f"runs/bnn/2026-01-02_03-04-05{end}"
    path, config = tmp_path / "deep" / "a=1, $", {"seed": 3, "hooks": {"bnn": {"clip": 1.0}}}
    make_directory(path, config, ["recipe=bnn", "seed=3"])
    assert_refused(r"exists already.* in it: \'resume=", choose_directory, str(path), "bnn", NOW)
    for resumed in (path, tmp_path / "é [1]", "it's"):  # a shell parses it into an override of this path
        (word,) = shlex.split(resume_override(resumed))
        assert OverridesParser.create().parse_overrides([word])[0].value() == str(resumed)
    assert resume_override("runs/a=1") == "\"resume='runs/a=1'\""
    assert_refused("cannot be made", make_directory, path, {"seed": 2}, [])
    assert OmegaConf.load(path / "config.yaml") == config
    assert (path / "overrides.txt").read_text() == "recipe=bnn\nseed=3\n"
    environment = json.loads((path / "environment.json").read_text())
    assert environment["packages"]["tensorflow"].startswith("2.21")
    assert environment["cpu_count"] == os.cpu_count()


def test_invalid_run_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    make_directory(choose_directory(str(tmp_path / "empty"), "bnn", NOW), {}, [])
    (tmp_path / "file").write_text("")
    assert_refused("exists already", choose_directory, str(tmp_path / "file"), "bnn", NOW)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert_refused("is not writable", choose_directory, str(tmp_path / "run"), "bnn", NOW)


def test_initial_weights_file_is_checked_by_extension(tmp_path):
    for name in ("model.keras", "model.weights.h5", "model.safetensors", "model.pkl"):
        (tmp_path / name).write_text("")
    for name in ("model.keras", "model.weights.h5", "model.safetensors"):
        check_initial(str(tmp_path / name))
    for name in ("model.pkl", "absent.keras"):
        assert_refused(rf"{name} (is a file|does not exist).*\.safetensors", check_initial, str(tmp_path / name))


ROOT = Path(__file__).parents[3]
HOLD = """
import sys, pathlib
from hookline.trainer.run.directory import locked
with locked(pathlib.Path(sys.argv[1])):
    print('held', flush=True)
    input()
"""


def test_lock_names_its_process_and_is_released_by_kill_or_error(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use: the process {holder.pid}"), locked(tmp_path):
            pass
        holder.kill()
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path), pytest.raises(UserError, match=f"the process {os.getpid()}"), locked(tmp_path):
        pass
    assert_refused("No such file", locked(tmp_path / "absent").__enter__)
