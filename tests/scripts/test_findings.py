"""What the doctor finds in run directories of every kind: a line for each damage, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hookline.scripts.findings import examine
from tests.support.stored_runs import config_of, summary_of, write_run

METRICS = {"writer": {"_target_": "hookline.hooks.monitors.metrics_jsonl.MetricsJsonl"}}
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


def test_a_line_that_is_no_report_is_named_by_its_number(run):
    found = examine(run)
    assert (found.damages, found.notes, found.checkpoints) == ([], [], 0)
    whole = (run / "metrics.jsonl").read_text()
    for line in (
        '{"step": Infinity, "split": "train"}',
        '{"step": 1e999, "split": "train"}',
        '{"step": 1.5, "split": "train"}',
        '{"step": true, "split": "train"}',
        '{"step": 1, "split": ["train"]}',
        '{"split": "train"}',
        "[" * 10**5,
        '{"step": 3',  # cut off, which a complete run cannot have
    ):
        assert damages(run, metrics=whole + line + ("" if line.endswith("3") else "\n")) == [
            "Line 5 of metrics.jsonl is damaged."
        ], line
    for hooks, count in ((METRICS, 1), (None, 0)):  # it may be missing where nothing writes it
        (run / "metrics.jsonl").unlink()
        assert len(damages(run, config=yaml.safe_dump(config_of(hooks=hooks)))) == count
        (run / "metrics.jsonl").touch()
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    assert damages(run) == ["metrics.jsonl cannot be read: it is no ordinary file."]


def test_a_config_of_any_form_is_examined(run):
    for config, word in (
        ("hooks: [1]", "its hooks"),
        ("hooks: {a: {_target_: [1]}, b: 3, c: null}", None),
        ("hooks: null", None),
        ("day: 2024-13-45", "not YAML"),
        ("null", "not what a run writes"),
    ):
        found = damages(run, config=config)
        assert found == [] if word is None else len(found) == 1 and word in found[0], config


def test_the_best_value_of_a_summary_of_any_form_is_compared(run):
    for best, expected in (
        (BEST, None),
        (None, None),
        (3, None),
        ({}, None),
        ({**BEST, "value": None}, None),  # no evaluation was finite
        ({**BEST, "step": 30}, "no validation at step 30,"),
        ({**BEST, "step": [20]}, r"no validation at step [20],"),
        ({**BEST, "value": 0.25}, "gives loss/cross_entropy 0.5 at step 20, but summary.json gives 0.25"),
        ({**BEST, "monitor": "other"}, "gives other None at step 20, but summary.json gives 0.5"),
    ):
        found = damages(run, summary=json.dumps(summary_of(best=best)))
        assert found == [] if expected is None else len(found) == 1 and expected in found[0], best
