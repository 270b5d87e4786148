"""Runs in groups: what is averaged, what is not, and in which order they stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.stored_runs import failed, job
from trainer.comparison.comparison import compare, sort
from trainer.comparison.metrics import Metric
from trainer.errors import UserError

ACCURACY = Metric("test", "metric/accuracy", "max")
ROUNDING = {"bnn_rounding": {"_target_": "hooks.bnn_rounding.BnnRounding", "clip": 1.0}}


def labels(comparison):
    return [comparison.label(group) for group in comparison.groups]


def test_runs_that_differ_only_in_the_seed_are_one_group():
    runs = [job(seed=seed, accuracy=0.9 + seed / 100) for seed in (2, 0, 1)]
    comparison = compare(runs)
    (group,) = comparison.groups
    assert group.seeds == [0, 1, 2]
    assert group.spread(ACCURACY).mean == pytest.approx(0.91)
    assert comparison.columns == []
    assert labels(comparison) == ["all"]


def test_groups_are_told_apart_by_what_was_set_and_the_best_on_validation_comes_first():
    runs = [job("bnn", seed, 0.9, 0.4, hooks=ROUNDING) for seed in (0, 1)]
    runs += [job("baseline", seed, 0.8, 0.2) for seed in (0, 1)]
    comparison = compare(runs)
    assert labels(comparison) == ["recipe=baseline", "recipe=bnn"]
    assert comparison.best is comparison.groups[0]
    assert comparison.differing == ["recipe", "hooks.bnn_rounding"]


def test_the_mode_of_the_monitor_decides_which_is_the_best():
    settings = {"monitor": "metric/accuracy", "monitor_mode": "max"}
    low, high = job("a", 0, **settings), job("b", 0, **settings)
    low.summary["best"]["values"]["metric/accuracy"] = 0.5  # type: ignore[index]
    comparison = compare([low, high])
    assert labels(comparison) == ["recipe=b", "recipe=a"]
    assert comparison.monitor == Metric("validation", "metric/accuracy", "max")


def test_groups_with_different_monitors_are_not_ranked():
    runs = [job("a", 0, 0.9, 0.4), job("b", 0, 0.9, 0.2, monitor="metric/accuracy", monitor_mode="max")]
    comparison = compare(runs)
    assert (comparison.monitor, comparison.best) == (None, None)
    assert labels(comparison) == ["recipe=a", "recipe=b"]


def test_a_run_that_did_not_come_to_its_end_is_in_no_average():
    stopped = replace(job(seed=3, accuracy=0.0), status="failed (exit code 1)")
    comparison = compare([job(seed=0), failed(seed=1), stopped, job(seed=2), failed("other", seed=1)])
    (group,) = comparison.groups
    assert (group.seeds, group.unfinished) == ([0, 2], 2)
    assert group.spread(ACCURACY).mean == 0.9
    assert len(comparison.unfinished) == 3


def test_of_runs_with_the_same_settings_and_seed_the_latest_stands_for_them():
    old, new = job(accuracy=0.1), job(accuracy=0.9)
    for runs in ([replace(new, written=2.0), replace(old, written=1.0)], [old, new]):
        comparison = compare(runs)
        assert comparison.groups[0].spread(ACCURACY).mean == 0.9
        assert [run.value("test", "metric/accuracy") for run in comparison.repeated] == [0.1]


def test_a_failed_run_takes_no_place_of_a_complete_one():
    comparison = compare([job(seed=0), replace(failed(seed=0), written=99.0)])
    assert comparison.groups[0].seeds == [0]
    assert comparison.repeated == []


def test_the_threads_that_a_sweep_sets_part_no_group_but_those_of_a_user_do():
    runs = [job(seed=seed, threads=seed + 1) for seed in (0, 1)]
    assert len(compare(runs).groups) == 1
    given = [replace(run, overrides=(*run.overrides, "trainer.threads=1")) for run in runs]
    assert len(compare(given).groups) == 2


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("validation", ["b", "a", "c"]),
        ("test accuracy", ["a", "c", "b"]),
        ("test/accuracy", ["a", "c", "b"]),
        ("test/metric/accuracy", ["a", "c", "b"]),
        ("recipe", ["a", "b", "c"]),
        ("learning_rate", ["c", "b", "a"]),
        ("optimizer.learning_rate", ["c", "b", "a"]),
        ("size", ["c", "a", "b"]),
        ("parameters", ["b", "c", "a"]),
        ("seconds", ["b", "a", "c"]),
    ],
)
def test_groups_are_sorted_by_a_column(column, expected):
    runs = [
        job("a", 0, 0.9, 0.2, "optimizer.learning_rate=0.3", rate=0.3),
        job("b", 0, 0.7, 0.1, "optimizer.learning_rate=0.2", rate=0.2),
        job("c", 0, 0.8, 0.3, "optimizer.learning_rate=0.1", rate=0.1),
    ]
    for run, size, count, seconds in zip(runs, (20, 30, 10), (3, 1, 2), (2.0, 1.0, 3.0), strict=True):
        run.summary.update(bytes={"deployed": size}, params={"total": count}, seconds=seconds)  # type: ignore[attr-defined]
    assert [group.settings["recipe"] for group in sort(compare(runs), column).groups] == expected


def test_an_unknown_column_is_one_line():
    with pytest.raises(UserError, match="Unknown column 'sizes'. Did you mean 'size'"):
        sort(compare([job()]), "sizes")


def test_a_group_without_the_value_comes_last():
    runs = [job("a", 0, None), job("b", 0, 0.1), job("c", 0, 0.2)]
    assert [group.settings["recipe"] for group in sort(compare(runs), "test/accuracy").groups] == ["c", "b", "a"]


def test_a_group_without_a_loss_is_not_the_best():
    runs = [job("a", 0, 0.9, 0.4), job("b", 0, 0.9, 0.2)]
    runs[0].summary["best"]["values"].pop("loss/cross_entropy")  # type: ignore[index]
    comparison = compare(runs)
    assert labels(comparison) == ["recipe=b", "recipe=a"]
    runs[1].summary["best"]["values"].pop("loss/cross_entropy")  # type: ignore[index]
    assert compare(runs).best is None


def test_nothing_at_its_end_is_no_group():
    comparison = compare([failed()])
    assert (comparison.groups, comparison.metrics, comparison.best, len(comparison.unfinished)) == ([], [], None, 1)
    assert compare([]).groups == []
