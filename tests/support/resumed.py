"""A run that is ended at some steps and goes on each time, held against the run that was never ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run.interruption import Interrupted
from hookline.trainer.run.session import execute
from tests.support.command import run_small

PLUGIN = "plugins=[tests.support]"


def run_cut(
    recipe: str, *overrides: str, cuts: Sequence[int], run_dir: Path, evaluation: bool = False
) -> dict[str, Any]:
    """Return the summary of a small run that is ended by a signal at each of the steps, and goes on."""
    with pytest.raises(Interrupted):
        run_small(recipe, *overrides, *signal_at(*cuts, evaluation=evaluation), run_dir=run_dir)
    for _ in cuts[1:]:
        with pytest.raises(Interrupted):
            go_on(run_dir)
    return go_on(run_dir)


def signal_at(*steps: int, evaluation: bool = False) -> list[str]:
    """Return overrides that end a run by a signal at each of the steps."""
    hook = f"{{_target_: tests.support.signals.Signal, steps: {list(steps)}, evaluation: {str(evaluation).lower()}}}"
    return [PLUGIN, f"+hooks.signal={hook}".replace(" ", "")]


def go_on(run_dir: Path, *overrides: str) -> dict[str, Any]:
    """Return the summary of a run that continues."""
    (job,) = preflight(parse_command([f"resume={run_dir}", PLUGIN, *overrides]))
    return execute(job.config, job.recipe, job.overrides)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without what a clock has measured."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def check_same(run_dir: Path, summary: dict[str, Any], whole_dir: Path, whole: dict[str, Any]) -> None:
    """Check that two runs have the same bits, curves and results."""
    assert summary["status"] == whole["status"] == "completed"
    assert summary["steps"] == whole["steps"]
    assert metrics(run_dir) == metrics(whole_dir)
    assert summary["digest"] == whole["digest"]
    assert summary["best"] == whole["best"]
    assert summary["test"] == whole["test"]
