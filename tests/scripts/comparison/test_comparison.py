"""The runs that paths refer to, and their groups: what is averaged, what is left out, and how groups are ordered."""

import json
import os
from dataclasses import replace

import pytest

from hookline.hooks.monitors.console import open_console
from hookline.scripts.compare import print_comparison
from hookline.scripts.comparison.comparison import Spread, compare, difference
from hookline.scripts.comparison.runs import Metric, choose_metrics, direction_of, find_runs, read_run
from tests.support.refusals import assert_refused
from tests.support.stored_runs import config_of, failed, job, summary_of, write_run, write_sweep

ACCURACY = Metric("test", "metric/accuracy", "max")
ROUNDING = {"bnn_rounding": {"_target_": "hookline.hooks.bnn_rounding.BnnRounding", "clip": 1.0}}


def labels(comparison):
    return [comparison.label(group) for group in comparison.groups]


def test_group_with_best_validation_result_comes_first():
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


def test_unfinished_runs_are_left_out_of_averages():
    stopped = replace(job(seed=3, accuracy=0.0), status="failed (exit code 1)")
    comparison = compare([job(seed=0), failed(seed=1), stopped, job(seed=2), failed("other", seed=1)])
    (group,) = comparison.groups
    assert (group.seeds, group.unfinished) == ([0, 2], 2)
    assert group.spread(ACCURACY).mean == 0.9
    assert len(comparison.unfinished) == 3
    comparison = compare([job(seed=0), replace(failed(seed=0), written=99.0)])
    assert (comparison.groups[0].seeds, comparison.repeated) == ([0], [])
    assert compare([failed()]).groups == compare([]).groups == []


def test_only_latest_run_with_same_settings_and_seed_is_averaged():
    old, new = job(accuracy=0.1), job(accuracy=0.9)
    for runs in ([replace(new, written=2.0), replace(old, written=1.0)], [old, new]):
        comparison = compare(runs)
        assert comparison.groups[0].spread(ACCURACY).mean == 0.9
        assert [run.value("test", "metric/accuracy") for run in comparison.repeated] == [0.1]


def test_spread_is_the_mean_and_the_sample_standard_deviation():
    found = Spread([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.deviation == pytest.approx(1.5275252)  # divided by 2, not by 3
    assert str(found) == "2.3333 ± 1.5275"
    assert str(Spread([0.5])) == "0.5000"
    assert str(Spread([None, None])) == str(Spread([])) == "-"
    assert str(Spread([0.5, None, 0.7])) == "0.6000 ± 0.1414 (2 of 3)"


def test_differences_are_paired_by_seed():
    for direction, told in (("max", "better in 1"), ("min", "better in 0"), (None, "higher in 1")):
        found = difference({0: 0.5, 1: 0.6, 2: 0.9}, {1: 0.7, 2: 0.9, 7: 0.1}, direction)
        assert found == f"+0.0500 ± 0.0707, {told} of 2, equal in 1"
    assert difference({0: 0.5}, {0: 0.4}, "min") == "-0.1000, better in 1 of 1"
    assert difference({0: None, 1: 0.5}, {0: 0.4, 2: 0.5}, "max") == "-"


def text(comparison):
    console = open_console()
    with console.capture() as capture:
        print_comparison(console, comparison)
    return capture.get()


def test_best_group_and_differing_settings_are_printed():
    said = text(compare([job("a", 0, 0.9, 0.1, rate=1.0), job("b", 0, 0.8, 0.2, rate=2.0)]))
    assert "Best by validation: recipe=a (test accuracy 0.9000)" in said
    assert "differ in: optimizer.learning_rate" in said
    assert "Best" not in text(compare([job()]))
    other = job("b", 0, monitor="metric/accuracy", monitor_mode="max")
    assert "Best by validation" not in text(compare([job("a", 0), other]))  # none is best by different metrics


def test_runs_below_directory_are_found_once_and_in_order(tmp_path):
    for name in ("b/2", "b/1", "a"):
        write_run(tmp_path / name, summary=summary_of())
    write_run(tmp_path / ".a.123.partial")
    write_run(tmp_path / "a" / "export" / "inner")
    runs, unreadable = find_runs([str(tmp_path), str(tmp_path / "a"), str(tmp_path / "b" / ".." / "a")])
    assert [os.path.relpath(run.name, tmp_path) for run in runs] == ["a", "b/1", "b/2"]
    assert unreadable == []


def test_path_without_run_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, line in (("none", "does not exist"), ("file", "is a file"), ("empty", "holds no run")):
        assert_refused(f"{name} {line}. Expected the directory of a run", find_runs, [str(tmp_path / name)])


def test_sweep_jobs_take_status_from_complete_summary_else_from_sweep(tmp_path):
    elsewhere = write_run(tmp_path / "elsewhere", summary=summary_of())
    sweep = tmp_path / "sweep"
    write_run(sweep / "1", summary=summary_of(), overrides=["recipe=bnn", "trainer.threads=1"])
    write_run(sweep / "2")
    write_sweep(
        sweep,
        {"run": "1", "overrides": ["recipe=bnn"], "status": "interrupted"},
        {"run": "2", "overrides": ["recipe=bnn"], "status": "failed", "exit_code": 1},
        {"run": str(elsewhere), "overrides": ["recipe=bnn"], "status": "completed", "exit_code": 0},
        {"run": "4", "overrides": ["recipe=[a,b]", "seed=3"], "status": "waiting"},
    )
    runs, _ = find_runs([str(sweep)])
    assert [run.status for run in runs] == ["completed", "failed (exit code 1)", "completed", "waiting"]
    assert [run.is_complete for run in runs] == [True, False, True, False]
    assert runs[0].overrides == ("recipe=bnn",)  # as the user gave them, without what the sweep added
    assert (runs[3].name, runs[3].recipe, runs[3].directory) == ("job 4", "a+b", None)
    assert [run.name.partition(",")[0] for run in runs] == ["job 1", "job 2", "job 3", "job 4"]
    assert len(find_runs([str(tmp_path)])[0]) == 4  # a sweep below a directory, none of its runs twice


def test_metrics_are_chosen_by_full_or_short_name_with_or_without_split():
    names = "accuracy, metric/accuracy,validation/loss,train/loss/total"
    assert [metric.label for metric in choose_metrics(names, [job()])] == [
        "test accuracy",
        "validation loss",
        "train loss",
    ]
    assert choose_metrics("[loss]", [job()]) == [Metric("test", "loss/total", "min")]


def test_directions_of_losses_accuracies_and_monitors_are_known():
    runs = [job(monitor="metric/map@r", monitor_mode="max"), job(monitor="metric/frechet", monitor_mode="min")]
    names = ("loss/total", "generator/loss/total", "metric/accuracy", "metric/map@r", "metric/frechet", "metric/within")
    assert [direction_of(name, runs) for name in names] == ["min", "min", "max", "max", "min", None]
    runs = [job(monitor="metric/x", monitor_mode="max"), job(monitor="metric/x", monitor_mode="min")]
    assert direction_of("metric/x", runs) is None


def test_damaged_run_is_reported_in_one_line(tmp_path):
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
        assert_refused(f"summary.json .*{told}", read_run, path)
    for change in ({"trainer": 3}, {"trainer": {}}, {"seed": [1]}):
        path = write_run(tmp_path / f"b{len(str(change))}", {**config_of(), **change})
        assert_refused("config.yaml is ", read_run, path)
