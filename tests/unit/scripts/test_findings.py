"""What the doctor finds in run directories of every kind: a line for each damage, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.findings import examine
from tests.support.stored_runs import config_of, summary_of, write_run

METRICS = {"writer": {"_target_": "hooks.monitors.metrics_jsonl.MetricsJsonl"}}
BEST = {"step": 20, "monitor": "loss/cross_entropy", "value": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a complete run of two reports, without checkpoints."""
    path = write_run(tmp_path / "run", config_of(hooks=METRICS), summary_of(best=BEST))
    (path / "environment.json").write_text("{}")
    return path


def damages(run: Path, **changes: str) -> list[str]:
    for name, text in changes.items():
        next(run.glob(f"{name}.*")).write_text(text)
    return [each.replace(f"{run}/", "") for each in examine(run).damages]


def test_a_sound_run_has_nothing_to_tell(run: Path):
    found = examine(run)
    assert (found.damages, found.notes, found.checkpoints) == ([], [], 0)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": Infinity, "split": "train"}',
        '{"step": 1e999, "split": "train"}',
        '{"step": NaN, "split": "train"}',
        '{"step": 1.5, "split": "train"}',
        '{"step": true, "split": "train"}',
        '{"step": "1", "split": "train"}',
        '{"step": 1, "split": ["train"]}',
        '{"step": 1, "split": null}',
        '{"split": "train"}',
        "[" * 10**5,
    ],
)
def test_a_line_that_is_no_report_is_named_by_its_number(run: Path, line: str):
    path = run / "metrics.jsonl"
    path.write_text(f"{path.read_text()}{line}\n")
    assert damages(run) == ["Line 5 of metrics.jsonl is damaged."]


@pytest.mark.parametrize(
    ("config", "lines"),
    [
        ("hooks: [1]", ["config.yaml is damaged: its hooks are not what a run writes."]),
        ("hooks: {a: {_target_: [1]}, b: 3, c: null}", []),
        ("hooks: null", []),
        ("day: 2024-13-45", ["config.yaml is damaged: it is not YAML that a run writes."]),
        ("null", ["config.yaml is damaged: it is not what a run writes."]),
    ],
)
def test_a_config_of_any_form_is_examined(run: Path, config: str, lines: list[str]):
    assert damages(run, config=config) == lines


def disagreement(best: dict[str, Any]) -> list[str]:
    step = best.get("step", 0)
    return [f"metrics.jsonl has no validation at step {step}, which is the best one in summary.json."]


@pytest.mark.parametrize(
    ("best", "lines"),
    [
        (BEST, []),
        (None, []),
        (3, []),
        ({}, []),
        ({**BEST, "value": None}, []),  # no evaluation was finite
        ({**BEST, "step": 30}, disagreement({"step": 30})),
        ({**BEST, "step": [20]}, disagreement({"step": [20]})),
        ({"monitor": "loss/cross_entropy", "value": 0.5}, disagreement({})),
        (
            {**BEST, "value": 0.25},
            ["metrics.jsonl gives loss/cross_entropy 0.5 at step 20, but summary.json gives 0.25."],
        ),
        ({**BEST, "monitor": "other"}, ["metrics.jsonl gives other None at step 20, but summary.json gives 0.5."]),
    ],
)  # fmt: skip
def test_the_best_value_of_a_summary_of_any_form_is_compared(run: Path, best: Any, lines: list[str]):
    assert damages(run, summary=json.dumps(summary_of(best=best))) == lines


def test_a_run_that_ended_early_is_noted_and_its_last_line_may_be_cut_off(run: Path):
    (run / "summary.json").write_text(json.dumps(summary_of(status="interrupted", best=BEST)))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3')
    found = examine(run)
    assert found.damages == []
    assert found.notes == [
        "The run ended before its time: interrupted.",
        f"The last line of {run}/metrics.jsonl is cut off: the run was killed, and drops it when it goes on.",
    ]


def test_a_complete_run_has_no_line_that_is_cut_off(run: Path):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3')
    assert damages(run) == ["Line 5 of metrics.jsonl is damaged."]


@pytest.mark.parametrize("hooks", [METRICS, None])
def test_metrics_may_be_missing_where_nothing_writes_them_and_be_no_folder(run: Path, hooks: Any):
    (run / "config.yaml").write_text(yaml.safe_dump(config_of(hooks=hooks)))
    (run / "metrics.jsonl").unlink()
    missing = ["metrics.jsonl cannot be read: No such file or directory."]
    assert damages(run) == (missing if hooks else [])
    (run / "metrics.jsonl").mkdir()
    assert damages(run) == ["metrics.jsonl cannot be read: it is no ordinary file."]


def test_a_complete_run_that_should_have_kept_a_checkpoint_has_one(run: Path):
    target = "hooks.monitors.checkpoint.Checkpoint"
    (run / "config.yaml").write_text(yaml.safe_dump(config_of(hooks={"keep": {"_target_": target}})))
    assert damages(run) == ["checkpoints holds no sound checkpoint, although the run is complete."]
    (run / "summary.json").unlink()
    assert damages(run) == []
