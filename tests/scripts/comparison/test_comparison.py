"""Runs in groups: what is averaged, what is not, in which order they stand, and as which tables."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from hookline.scripts.comparison.comparison import compare, difference, spread
from hookline.scripts.comparison.report import print_comparison
from hookline.scripts.comparison.runs import Metric
from tests.support.stored_runs import failed, job

ACCURACY = Metric("test", "metric/accuracy", "max")
ROUNDING = {"bnn_rounding": {"_target_": "hookline.hooks.bnn_rounding.BnnRounding", "clip": 1.0}}


def labels(comparison):
    return [comparison.label(group) for group in comparison.groups]


def test_the_group_that_is_best_on_validation_comes_first():
    runs = [job("bnn", seed, 0.9, 0.4, hooks=ROUNDING) for seed in (0, 1)]
    runs += [job("baseline", seed, 0.8, 0.2) for seed in (0, 1)]
    comparison = compare(runs)
    assert labels(comparison) == ["recipe=baseline", "recipe=bnn"]
    assert comparison.best is comparison.groups[0]
    assert comparison.differing == ["recipe", "hooks.bnn_rounding"]
    settings = {"monitor": "metric/accuracy", "monitor_mode": "max"}
    low, high = job("a", 0, **settings), job("b", 0, **settings)
    low.summary["best"]["values"]["metric/accuracy"] = 0.5
    assert labels(compare([low, high])) == ["recipe=b", "recipe=a"]


def test_a_run_that_did_not_come_to_its_end_is_in_no_average():
    stopped = replace(job(seed=3, accuracy=0.0), status="failed (exit code 1)")
    comparison = compare([job(seed=0), failed(seed=1), stopped, job(seed=2), failed("other", seed=1)])
    (group,) = comparison.groups
    assert (group.seeds, group.unfinished) == ([0, 2], 2)
    assert group.spread(ACCURACY).mean == 0.9
    assert len(comparison.unfinished) == 3
    comparison = compare([job(seed=0), replace(failed(seed=0), written=99.0)])
    assert (comparison.groups[0].seeds, comparison.repeated) == ([0], [])
    assert compare([failed()]).groups == compare([]).groups == []


def test_of_runs_with_the_same_settings_and_seed_the_latest_counts():
    old, new = job(accuracy=0.1), job(accuracy=0.9)
    for runs in ([replace(new, written=2.0), replace(old, written=1.0)], [old, new]):
        comparison = compare(runs)
        assert comparison.groups[0].spread(ACCURACY).mean == 0.9
        assert [run.value("test", "metric/accuracy") for run in comparison.repeated] == [0.1]


def test_spread_is_the_mean_and_the_sample_deviation():
    found = spread([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.deviation == pytest.approx(1.5275252)  # divided by 2, not by 3
    assert str(found) == "2.3333 ± 1.5275"
    assert str(spread([0.5])) == "0.5000"
    assert str(spread([None, None])) == str(spread([])) == "-"
    assert str(spread([0.5, None, 0.7])) == "0.6000 ± 0.1414 (2 of 3)"


def test_differences_are_taken_seed_by_seed():
    for direction, told in (("max", "better in 1"), ("min", "better in 0"), (None, "higher in 1")):
        found = difference({0: 0.5, 1: 0.6, 2: 0.9}, {1: 0.7, 2: 0.9, 7: 0.1}, direction)
        assert found == f"+0.0500 ± 0.0707, {told} of 2, equal in 1"
    assert difference({0: 0.5}, {0: 0.4}, "min") == "-0.1000, better in 1 of 1"
    assert difference({0: None, 1: 0.5}, {0: 0.4, 2: 0.5}, "max") == "-"


def text(comparison):
    console = Console(width=200, file=io.StringIO(), record=True)
    print_comparison(console, comparison)
    return console.export_text()


def test_the_best_is_named_and_what_else_differs():
    said = text(compare([job("a", 0, 0.9, 0.1, rate=1.0), job("b", 0, 0.8, 0.2, rate=2.0)]))
    assert "Best by validation: recipe=a (test accuracy 0.9000)" in said
    assert "differ in: optimizer.learning_rate" in said
    assert "Best" not in text(compare([job()]))
    other = job("b", 0, monitor="metric/accuracy", monitor_mode="max")
    assert "Best by validation" not in text(compare([job("a", 0), other]))  # by different metrics, none is
