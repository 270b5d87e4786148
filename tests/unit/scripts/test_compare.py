"""The command that compares runs, on directories that were made without training."""

from __future__ import annotations

import csv
import json
import re

import pytest
from PIL import Image

from scripts.compare import main, parse
from tests.support.stored_runs import config_of, summary_of, write_run, write_sweep
from trainer.errors import UserError


@pytest.fixture
def runs(tmp_path):
    """Two learning rates with two seeds each, and a run that is not at its end."""
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            overrides = ["recipe=bnn", f"seed={seed}", f"optimizer.learning_rate={rate}"]
            summary = summary_of(0.9 + seed / 100 - rate / 10, loss=rate)
            losses = (1.0, 0.5, 0.3 + seed / 10)[: 3 - seed]
            write_run(tmp_path / "runs" / f"{rate}_{seed}", config_of(seed, rate), summary, overrides, losses=losses)
    write_run(tmp_path / "runs" / "open", config_of(2, 0.1), overrides=["recipe=bnn", "seed=2"])
    return tmp_path / "runs"


def test_the_tables_of_a_folder(runs, capfd):
    assert main([str(runs)]) == 0
    said = capfd.readouterr().out
    rows = [line.split() for line in said.splitlines() if re.match(r"0\.[12] ", line)]
    assert rows[0][:8] == ["0.1", "2", "of", "3", "0.1000", "±", "0.0000", "0.8950"]
    assert rows[1][:2] == ["0.2", "2"]
    assert "Best by validation: learning_rate=0.1" in said
    assert rows[2] == ["0.2", "-0.0100", "±", "0.0000,", "better", "in", "0", "of", "2"]
    assert f"In no average, not at their end: 1 run\n  {runs}/open: unfinished, recipe=bnn seed=2" in said


def test_metrics_and_order_are_the_users_choice(runs, capfd):
    assert main([str(runs), "metrics=validation/accuracy,loss", "sort=test/loss", "against=learning_rate=0.2"]) == 0
    said = capfd.readouterr().out
    header = said.splitlines()[1]
    assert re.search("validation accuracy +test loss", header)
    assert "Difference to learning_rate=0.2" in said


def test_a_csv_file_holds_plain_numbers_and_every_setting_that_differs(runs, tmp_path, capfd):
    path = tmp_path / "table.csv"
    assert main([str(runs), f"csv={path}"]) == 0
    assert f"table: {path}" in capfd.readouterr().out
    with path.open() as file:
        first, second = csv.DictReader(file)
    assert (first["optimizer.learning_rate"], first["n"], first["unfinished"], first["seeds"]) == (
        "0.1",
        "2",
        "1",
        "0 1",
    )
    assert (first["monitor"], first["mode"], float(first["best_validation/mean"])) == ("loss/cross_entropy", "min", 0.1)
    assert float(second["test/metric/accuracy/mean"]) == pytest.approx(0.885)
    assert float(second["test/metric/accuracy/std"]) == pytest.approx(0.00707, abs=1e-5)
    assert (first["bytes"], first["parameters"], first["runs"]) == ("2048.0", "1000.0", f"{runs}/0.1_0 {runs}/0.1_1")


def test_a_chart_has_a_panel_for_each_metric_and_one_that_decides(runs, tmp_path, capfd):
    path = tmp_path / "curves.png"
    (runs / "0.2_1" / "metrics.jsonl").unlink()
    (runs / "0.2_0" / "metrics.jsonl").write_text('{"step": 1, "split": "train", "other": 1}\n')
    with (runs / "0.1_0" / "metrics.jsonl").open("a") as file:
        file.write('broken\n{"step": 3')
    assert main([str(runs), f"chart={path}"]) == 0
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.height == pytest.approx(2 * 4.2 * 110, abs=2)
    said = capfd.readouterr().out
    assert f"chart: {path}\n" in said
    assert f"Not in the chart: {runs}/0.2_1 ({runs}/0.2_1/metrics.jsonl: No such file or directory)" in said
    assert (
        f"Not in the chart: {runs}/0.2_0 (its metrics.jsonl has none of: metric/accuracy, loss/cross_entropy)" in said
    )
    assert f"{runs}/0.1_0: 1 damaged lines of metrics.jsonl were left out" in said


def test_metrics_that_nothing_has_measured_yet_are_no_mistake(runs, capfd):
    assert main([str(runs / "open"), "metrics=accuracy"]) == 0
    assert capfd.readouterr().out.startswith("\nIn no average, not at their end: 1 run\n")


def test_a_sweep_is_read_by_its_record(tmp_path, capfd):
    write_run(tmp_path / "1", summary=summary_of())
    jobs = [{"run": "1", "overrides": ["recipe=bnn", "seed=0"], "status": "completed"}]
    write_sweep(tmp_path, *jobs, {"overrides": ["recipe=bnn", "seed=1"], "status": "failed", "exit_code": 1})
    assert main([str(tmp_path)]) == 0
    assert "job 2: failed (exit code 1), recipe=bnn seed=1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "No run was given"),
        (["none"], "none does not exist"),
        (["RUNS", "metric=accuracy"], "Unknown option 'metric'. Did you mean 'metrics'"),
        (["RUNS", "metrics=accurcy"], "Unknown metric of the test split 'accurcy'"),
        (["RUNS", "sort=sizes"], "Unknown column 'sizes'"),
        (
            ["RUNS", "against=learning_rte=0.1"],
            "Unknown setting in against 'learning_rte'. Did you mean 'learning_rate'",
        ),
        (["RUNS", "against=learning_rate=7"], "stands for 0 groups. Expected one of: learning_rate=0.1; learning_rate"),
        (["RUNS", "against=learning_rate"], "stands for 0 groups"),
        (["RUNS", "csv=table.txt"], "Expected a file that ends with .csv"),
        (["RUNS", "chart=TMP/none/a.png"], "none is no directory"),
        (["RUNS", "overwrite=maybe"], "Invalid overwrite"),
        (["RUNS/open", "csv=TMP/a.csv"], "No run is at its end"),
        (["TMP/damaged"], "summary.json is of another format"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(runs, tmp_path, capfd, arguments, line):
    write_run(tmp_path / "damaged", summary={})
    before = sorted(tmp_path.rglob("*"))
    assert main([each.replace("RUNS", str(runs)).replace("TMP", str(tmp_path)) for each in arguments]) == 2
    captured = capfd.readouterr()
    assert captured.err.startswith("Error: ")
    assert captured.err.count("\n") == 1
    assert line in captured.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_exists_is_kept_unless_it_may_be_replaced(runs, tmp_path, capfd):
    path = tmp_path / "a.csv"
    path.write_text("mine")
    assert main([str(runs), f"csv={path}"]) == 2
    assert path.read_text() == "mine"
    assert main([str(runs), f"csv={path}", "overwrite=true"]) == 0
    assert path.read_text().startswith("optimizer.learning_rate,")


def test_a_path_with_an_equals_sign_is_a_path(tmp_path):
    write_run(tmp_path / "seed=1")
    assert parse([f"{tmp_path}/seed=1"]).paths == [f"{tmp_path}/seed=1"]
    with pytest.raises(UserError, match="Unknown option 'seed'"):
        parse(["seed=2"])


def test_a_group_of_several_settings_is_named_by_all_of_them(tmp_path, capfd):
    for rate, recipe in ((0.1, "a"), (0.2, "a"), (0.1, "b"), (0.2, "b")):
        overrides = [f"recipe={recipe}", f"optimizer.learning_rate={rate}"]
        write_run(tmp_path / f"{recipe}{rate}", config_of(0, rate), summary_of(loss=rate), overrides)
    assert main([str(tmp_path), "against=recipe=b,learning_rate=0.2"]) == 0
    assert "Difference to recipe=b learning_rate=0.2" in capfd.readouterr().out
    assert main([str(tmp_path), "against=recipe=b"]) == 2
    assert "against=recipe=b stands for 2 groups" in capfd.readouterr().err


def test_damaged_runs_below_a_directory_are_listed_with_their_count(runs, capfd):
    (runs / "0.1_0" / "summary.json").write_text(json.dumps({"status": "completed"}))
    assert main([str(runs)]) == 0
    said = capfd.readouterr().out
    assert "In no average, not readable: 1 run\n" in said
    assert f"  {runs}/0.1_0/summary.json is of another format: it lacks seconds, params.total, bytes.deployed" in said
