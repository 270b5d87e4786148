"""What the doctor finds in run directories of every kind: a line for each damage, and never a traceback."""

from __future__ import annotations

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
