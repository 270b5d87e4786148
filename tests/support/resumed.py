"""A run that is stopped at some steps and resumed each time, compared with a run that was never stopped."""

import json

import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import Interrupted
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.session import execute
from tests.support.command import run_small

PLUGIN = "plugins=[tests.support]"


def run_cut(recipe, *overrides, cuts, run_dir, evaluation=False):
    with pytest.raises(Interrupted):
        run_small(recipe, *overrides, *signal_at(*cuts, evaluation=evaluation), run_dir=run_dir)
    for _ in cuts[1:]:
        with pytest.raises(Interrupted):
            go_on(run_dir)
    return go_on(run_dir)


def signal_at(*steps, evaluation=False):
    hook = f"{{_target_: tests.support.signals.Signal, steps: {list(steps)}, evaluation: {str(evaluation).lower()}}}"
    return [PLUGIN, f"+hooks.signal={hook}".replace(" ", "")]


def go_on(run_dir, *overrides):
    (job,) = preflight(parse_command([f"resume={run_dir}", PLUGIN, *overrides]))
    return execute(job.config, job.recipe, job.overrides).summary


def metrics(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def check_same(run_dir, summary, whole_dir, whole):
    assert summary["status"] == whole["status"] == "completed"
    assert summary["steps"] == whole["steps"]
    assert metrics(run_dir) == metrics(whole_dir)
    assert summary["digest"] == whole["digest"]
    assert summary["best"] == whole["best"]
    assert summary["test"] == whole["test"]
    assert hook_states(run_dir) == hook_states(whole_dir)


def hook_states(run_dir):
    """Return what hooks counted; the steps that were saved differ, and the signal is in one run only."""
    states = CheckpointStore(run_dir / "checkpoints").load("last").state["hooks"]
    return {name: state for name, state in states.items() if name not in ("checkpoint", "signal")}
