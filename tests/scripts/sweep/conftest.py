"""Sweeps of jobs that take milliseconds, run in this process or in a separate one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.scripts.sweep import record
from hookline.scripts.sweep import run as module
from hookline.scripts.sweep.command import run_command
from hookline.trainer.config.command import parse_command

FAKE = Path(__file__).resolve().parents[2] / "support" / "fake_job.py"
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `-m recipe=bnn ...` in an empty directory; it returns the exit code and the lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "TRAIN", FAKE)
    monkeypatch.setattr(record, "usable_cores", lambda: 4)
    monkeypatch.setattr(record, "usable_gpus", tuple)

    def sweep(*arguments: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = run_command(parse_command(["-m", *arguments]))
        return code, capsys.readouterr().out.splitlines()

    return sweep


@pytest.fixture
def recorded() -> Callable[[str], list[dict[str, Any]]]:
    """Return a function that reads the jobs in the sweep.json of a directory."""
    return lambda directory: json.loads(Path(directory, "sweep.json").read_text())["jobs"]
