"""The results table on runs that train: killed in the middle, gone on with, exported, judged (long)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.comparison.stored_run import read_run

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.long
SMALL = ["model.units=[32]", "hooks.early_stopping=null", "hooks.checkpoint.every_seconds=0", "trainer.threads=1"]
TARGETS = {
    "small": {
        "title": "a small network, pruned",
        "recipe": "frozen_mask",
        "data": "digits",
        "seeds": [0, 1],
        "runs": {
            "pruned": ["recipe=frozen_mask", "init_from={dense}", "trainer.epochs=30", *SMALL],
            "dense": ["recipe=baseline", "trainer.epochs=30", *SMALL],
        },
        "exports": {
            "sparse": {"run": "pruned", "options": ["format=sparse", "codebook=5"], "ending": ".sparse.safetensors"}
        },
        "measures": {
            "error": {"run": "pruned", "metric": "metric/accuracy", "as": "error"},
            "times": {"run": "pruned", "summary": "hooks.prune.total.times_fewer", "as": "number"},
            "weights": {"export": "sparse", "value": "bytes", "as": "KB"},
            "error of the file": {"export": "sparse", "value": "accuracy", "as": "error"},
        },
        "goals": [{"measure": "error", "at_most": 20, "source": "a goal"}],
    }
}


def command(directory: Path) -> list[str]:
    arguments = [f"{name}={directory / place}" for name, place in (("out", "out"), ("targets", "targets.yaml"))]
    script = str(ROOT / "scripts" / "reproduce.py")
    return [sys.executable, script, *arguments, f"results={directory / 'results.json'}"]


def row_in(directory: Path) -> dict[str, Any]:
    (row,) = json.loads((directory / "results.json").read_text())["rows"]
    return row


def digests(directory: Path) -> dict[str, str]:
    runs = [path.parent for path in sorted(directory.glob("out/small/*/summary.json"))]
    return {run.name: read_run(run).summary["digest"] for run in runs}


def test_a_table_that_was_killed_is_that_of_one_that_was_not(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
        (directory / "targets.yaml").write_text(yaml.safe_dump(TARGETS, sort_keys=False))
    subprocess.run(command(whole), cwd=ROOT, check=True, capture_output=True)
    process = subprocess.Popen(command(killed), cwd=ROOT, stdout=subprocess.DEVNULL)
    while not [*killed.glob("out/small/pruned_0/checkpoints/step_*/manifest.json")]:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = subprocess.run(command(killed), cwd=ROOT, check=True, capture_output=True, text=True)
    assert "goes on     small/pruned_0" in found.stdout
    assert digests(killed) == digests(whole)
    ours, theirs = row_in(killed), row_in(whole)
    assert ours["measures"] == theirs["measures"]
    assert ours["goals"][0]["reached"]
    assert ours["measures"][2]["mean"] < 10
    again = subprocess.run(command(killed), cwd=ROOT, check=True, capture_output=True, text=True)
    assert "All 4 runs are done." in again.stdout
    assert row_in(killed) == ours
