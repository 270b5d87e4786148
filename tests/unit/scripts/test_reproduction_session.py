"""One call of the results table as a process: killed and ended by signals; exports; two calls at once."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.reproduction import TARGETS, open_session
from trainer.errors import UserError
from trainer.run.lock import locked

ROOT = Path(__file__).resolve().parents[3]
DRIVER = """
import sys
from pathlib import Path
from tests.support.reproduction import open_session
here = Path(sys.argv[1])
lines = open(here / "said.txt", "a", buffering=1)
sys.exit(open_session(here, ["first"], say=lambda text: print(text, file=lines)).run(here / "out", 1))
"""


def start(directory: Path, waits: str) -> subprocess.Popen[bytes]:
    """Start a process whose run of the given name waits, and return once it does."""
    environment = {**os.environ, "FAKE_WAITS": waits}
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(directory)], cwd=ROOT, env=environment)
    until = time.monotonic() + 60
    while not [*directory.glob(f"out/*/{waits}/ready")]:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def starts_in(out: Path, name: str) -> list[str]:
    lines = "".join(log.read_text() for log in sorted(out.glob("*.log"))).splitlines()
    return [line for line in lines if line.startswith("$ ") and name in line]


def rows_in(directory: Path) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads((directory / "results.json").read_text())["rows"]}


def test_a_killed_process_takes_its_run_along_and_the_next_goes_on(tmp_path: Path):
    process = start(tmp_path, "twin_0")
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = (tmp_path / "out" / "first" / "bnn_0" / "summary.json").stat().st_mtime_ns
    lines: list[str] = []
    assert open_session(tmp_path, ["first"], lines).run(tmp_path / "out", 1) == 0
    assert any(line.endswith("goes on     first/twin_0") for line in lines)
    assert (tmp_path / "out" / "first" / "bnn_0" / "summary.json").stat().st_mtime_ns == done
    assert len(starts_in(tmp_path / "out", "twin_0")) == 2
    row = rows_in(tmp_path)["first"]
    assert row["measures"][2]["values"] == {"0": 85.0, "1": 86.0, "2": 87.0}
    assert row["under_load"] in (True, False)


def test_a_signal_lets_the_run_save_and_ends_with_its_code(tmp_path: Path):
    process = start(tmp_path, "twin_0")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    said = (tmp_path / "said.txt").read_text()
    assert "SIGTERM: 1 job will save and end." in said
    assert "first: 1 of 6 runs done, about 0:20, and 3 runs of unknown time left" in said
    assert not starts_in(tmp_path / "out", "bnn_1")
    assert open_session(tmp_path, ["first"]).run(tmp_path / "out", 1) == 0
    (first, second) = starts_in(tmp_path / "out", "twin_0")
    assert "run_dir=" in first
    assert "resume=" in second


def test_two_calls_at_once_are_refused(tmp_path: Path):
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out"), pytest.raises(UserError, match="is in use"):
        open_session(tmp_path, ["first"]).run(tmp_path / "out", 1)
    assert not (tmp_path / "results.json").exists()


def exporting(tmp_path: Path, scripts: Path, lines: list[str]) -> int:
    content = copy.deepcopy(TARGETS)
    content["second"]["exports"] = {"file": {"run": "pruned", "options": ["format=x"], "ending": ".x"}}
    content["second"]["measures"]["file"] = {"export": "file", "value": "accuracy", "as": "error"}
    session = open_session(tmp_path, ["second"], lines, content=content, scripts=scripts)
    return session.run(tmp_path / "out", 1)


EXPORT = """
import pathlib, sys
path = pathlib.Path(dict(each.split("=", 1) for each in sys.argv[1:])["output"])
path.parent.mkdir(parents=True)
path.touch()
"""
EVALUATE = """
import pathlib, sys
values = dict(each.split("=", 1) for each in sys.argv[1:])
folder = pathlib.Path(values["model"]).parents[1] / "evaluation" / values["name"]
folder.mkdir(parents=True)
(folder / "evaluation.json").write_text('{"overall": {"accuracy": 0.875}}')
"""


def test_an_export_that_failed_is_made_by_the_next_call_and_no_run_is(tmp_path: Path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "export.py").write_text("import sys; sys.exit('Error: The data is not there.')")
    (scripts / "evaluate.py").write_text(EVALUATE)
    lines: list[str] = []
    assert exporting(tmp_path, scripts, lines) == 1
    assert "second: no row. export.py ended with exit code 1: The data is not there." in lines
    assert not (tmp_path / "results.json").exists()
    (scripts / "export.py").write_text(EXPORT)
    assert exporting(tmp_path, scripts, lines) == 0
    assert len(starts_in(tmp_path / "out", "pruned_0")) == 1
    row = rows_in(tmp_path)["second"]
    assert row["measures"][2] == {
        "name": "file",
        "unit": "%",
        "decimals": 2,
        "values": {"0": 12.5},
        "mean": 12.5,
        "low": 12.5,
        "high": 12.5,
    }
    assert row["commands"][-2:] == [
        "python scripts/export.py run=runs/second/pruned_0 format=x",
        "python scripts/evaluate.py model=runs/second/pruned_0/export/model.x",
    ]


def test_a_run_that_is_refused_is_a_failure_not_a_mistake_of_the_caller(tmp_path: Path, monkeypatch):
    """A run that ends with 2 is one of many: the call as a whole ends with 1."""
    refusing = tmp_path / "refusing.py"
    refusing.write_text("import sys; sys.exit(2)")
    lines: list[str] = []
    assert open_session(tmp_path, ["second"], lines, script=refusing).run(tmp_path / "out", 1) == 1
    assert "second: 0 of 2 runs done, time unknown left" in lines


def test_a_damaged_record_is_one_line(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as a sweep"):
        open_session(tmp_path, ["first"]).run(tmp_path / "out", 1)


def test_results_that_were_damaged_meanwhile_cost_no_run(tmp_path: Path):
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        if "started" in text:
            (tmp_path / "results.json").write_text("{")

    assert open_session(tmp_path, ["second", "first"], say=say).run(tmp_path / "out", 1) == 1
    assert sum("completed" in line for line in lines) == 7
    assert any(line.startswith("first: no row.") and "it is damaged" in line for line in lines)
    (tmp_path / "results.json").unlink()
    assert open_session(tmp_path, ["second", "first"]).run(tmp_path / "out", 1) == 0
    assert set(rows_in(tmp_path)) == {"first", "second"}
