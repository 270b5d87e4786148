"""Paths that a user gives: home directories, and one line for what the system refuses to look at."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from hookline.recipes.data.array_files import find_arrays, read_npz
from hookline.recipes.data.image_folder import existing_folder
from hookline.recipes.data.image_source import cache_folder
from hookline.scripts.sweep.open import open_sweep
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.stored import read_stored, recipe_of
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.run.directory import choose_directory, initial_checkpoints
from hookline.trainer.run.resume import existing_directory

NOBODY = "~no-such-user/x"
LONG = "a" * 300
NOW = datetime(2024, 1, 2)
LOOKS = {
    "data.path of arrays": lambda path: find_arrays(path, None),
    "data.path of images": existing_folder,
    "data.path of an npz": lambda path: read_npz(path, ["a"]),
    "init_from": initial_checkpoints,
    "resume": existing_directory,
    "config of a run": lambda path: read_stored(path, "resume"),
    "recipe of a run": lambda path: recipe_of(path, "resume"),
    "--sweep": lambda path: open_sweep(parse_command(["-m", "--sweep", path]), NOW),
}


def test_a_tilde_is_the_home_directory_and_that_of_nobody_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x", "key") == tmp_path / "x"
    assert user_path(NOBODY, "key") == Path(NOBODY)
    assert user_path("a/~/x", "key") == Path("a/~/x")
    assert cache_folder("~/kept") == tmp_path / "kept"


@pytest.mark.parametrize("name", LOOKS)
def test_a_path_that_leads_nowhere_is_one_line_and_no_traceback(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    for path in (NOBODY, LONG):
        with pytest.raises(UserError, match=path):
            LOOKS[name](path)
    assert not list(tmp_path.iterdir())


def test_a_refusal_of_the_system_names_the_key_and_the_reason(monkeypatch):
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", closed)
    for key, look in {"data.path": existing_folder, "run_dir": lambda path: choose_directory(path, "bnn", NOW)}.items():
        with pytest.raises(UserError, match=f"^{key} '/closed/x' .*Permission denied"):
            look("/closed/x")
