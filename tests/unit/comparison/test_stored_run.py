"""Runs as they lie on disk, sound and damaged."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.support.stored_runs import config_of, failed, job, summary_of, write_run
from trainer.comparison.stored_run import is_run, number, read_run
from trainer.errors import UserError


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


def test_a_run_without_a_summary_is_unfinished(tmp_path):
    run = read_run(write_run(tmp_path / "a"))
    assert (run.status, run.is_complete, run.seed) == ("unfinished", False, 0)


@pytest.mark.parametrize("status", ["failed", "interrupted", "paused"])
def test_a_run_that_did_not_come_to_its_end_is_not_complete(tmp_path, status):
    assert not read_run(write_run(tmp_path / "a", summary=summary_of(status=status))).is_complete


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), (True, None), (float("nan"), None), ("1", None), (None, None)]
)
def test_only_finite_numbers_are_numbers(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize("text", ["{", "\xff", "[" * 100_000])
def test_a_damaged_summary_is_one_line(tmp_path, text):
    path = write_run(tmp_path / "a", summary={})
    (path / "summary.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="summary.json cannot be read: it is damaged"):
        read_run(path)


@pytest.mark.parametrize("content", [[], {}, summary_of(seconds="x"), summary_of(bytes={"deployed": None})])
def test_a_summary_of_another_format_says_what_it_lacks(tmp_path, content):
    path = write_run(tmp_path / "a", summary={})
    (path / "summary.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="another format: it lacks .*(seconds|bytes.deployed)"):
        read_run(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trainer": 3}, "config.yaml is not the config of a run"),
        ({"trainer": {}}, "config.yaml is of another format"),
        ({"seed": [1]}, "config.yaml is of another format"),
    ],
)
def test_a_config_of_another_format_is_one_line(tmp_path, change, told):
    path = write_run(tmp_path / "a", {**config_of(), **change})
    with pytest.raises(UserError, match=told):
        read_run(path)


def test_a_config_that_cannot_be_read_names_the_path_alone(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match=rf"^{path} has no config.yaml that can be read"):
        read_run(path)
    (path / "config.yaml").write_text(yaml.safe_dump(config_of()))
    (path / "overrides.txt").write_text("seed=1\n")
    with pytest.raises(UserError, match="names 0 recipes"):
        read_run(path)


def test_a_directory_claims_to_be_a_run_by_its_config_and_overrides(tmp_path):
    path = write_run(tmp_path / "a")
    assert is_run(path)
    (path / "overrides.txt").unlink()
    assert not is_run(path)


def test_jobs_of_this_process_say_how_they_ended():
    assert (job().is_complete, job().status, job(seed=4).seed) == (True, "completed", 4)
    run = failed(number=7)
    assert (run.name, run.status, run.is_complete) == ("job 7", "failed (exit code 1)", False)
