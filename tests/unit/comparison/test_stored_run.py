"""Runs as they lie on disk, sound and damaged."""

from __future__ import annotations

import json

import pytest

from hookline.scripts.comparison.runs import number, read_run
from hookline.trainer.errors import UserError
from tests.support.stored_runs import config_of, summary_of, write_run


def test_a_complete_run_is_read_whole(tmp_path):
    path = write_run(tmp_path / "a", config_of(seed=3), summary_of(0.97), ["recipe=[bnn,frozen_mask]"], written=77.0)
    run = read_run(path)
    assert (run.name, run.recipe, run.seed, run.status, run.written) == (
        str(path),
        "bnn+frozen_mask",
        3,
        "completed",
        77,
    )
    assert run.is_complete
    assert run.overrides == ("recipe=[bnn,frozen_mask]",)
    values = [run.value(split, "metric/accuracy") for split in ("train", "validation", "test")]
    assert values == [1.0, 0.95, 0.97]
    assert run.value("test", "weights") is None
    assert run.value("test", "metric/none") is None


def test_a_run_without_its_end_is_not_complete(tmp_path):
    run = read_run(write_run(tmp_path / "a"))
    assert (run.status, run.is_complete, run.seed) == ("unfinished", False, 0)
    for status in ("failed", "interrupted", "paused"):
        assert not read_run(write_run(tmp_path / status, summary=summary_of(status=status))).is_complete
    assert [number(value) for value in (2, True, float("nan"), "1", None)] == [2.0, None, None, None, None]


def test_damaged_runs_are_one_line(tmp_path):
    path = write_run(tmp_path / "a", summary={})
    for text, told in (
        ("{", "damaged"),
        ("\xff", "damaged"),
        ("[" * 100_000, "damaged"),
        ("[]", "another format"),
        (json.dumps(summary_of(seconds="x")), "another format: it lacks .*seconds"),
        (json.dumps(summary_of(bytes={"deployed": None})), "another format: it lacks .*bytes.deployed"),
    ):
        (path / "summary.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=f"summary.json .*{told}"):
            read_run(path)
    for change in ({"trainer": 3}, {"trainer": {}}, {"seed": [1]}):
        path = write_run(tmp_path / f"b{len(str(change))}", {**config_of(), **change})
        with pytest.raises(UserError, match="config.yaml is "):
            read_run(path)
