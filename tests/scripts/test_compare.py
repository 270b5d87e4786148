"""The compare command, on run directories written without training: tables, CSV, curves."""

import csv
import json
import re

import pytest

from hookline.scripts.compare import main, read_curves
from tests.support.refusals import assert_one_line
from tests.support.stored_runs import config_of, summary_of, write_run, write_sweep


@pytest.fixture
def runs(tmp_path):
    """Return runs of two learning rates with two seeds each, and an unfinished run."""
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            overrides = ["recipe=bnn", f"seed={seed}", f"optimizer.learning_rate={rate}"]
            summary = summary_of(0.9 + seed / 100 - rate / 10, loss=rate)
            losses = (1.0, 0.5, 0.3 + seed / 10)[: 3 - seed]
            write_run(tmp_path / "runs" / f"{rate}_{seed}", config_of(seed, rate), summary, overrides, losses=losses)
    write_run(tmp_path / "runs" / "open", config_of(2, 0.1), overrides=["recipe=bnn", "seed=2"])
    return tmp_path / "runs"


def test_tables_are_printed_for_directory_and_for_sweep(runs, tmp_path, capfd):
    assert main([str(runs)]) == 0
    said = capfd.readouterr().out
    rows = [line.split() for line in said.splitlines() if re.match(r"0\.[12] ", line)]
    assert rows[0][:8] == ["0.1", "2", "of", "3", "0.1000", "±", "0.0000", "0.8950"]
    assert rows[2] == ["0.2", "-0.0100", "±", "0.0000,", "better", "in", "0", "of", "2"]
    assert "Best by validation: learning_rate=0.1" in said
    assert f"{runs}/open: unfinished, recipe=bnn seed=2" in said
    assert main([str(runs), "metrics=validation/accuracy,loss", "sort=test/loss", "against=learning_rate=0.2"]) == 0
    said = capfd.readouterr().out
    assert re.search("validation accuracy +test loss", said.splitlines()[1])
    assert "Difference to learning_rate=0.2" in said
    (runs / "0.1_0" / "summary.json").write_text(json.dumps({"status": "completed"}))
    assert main([str(runs)]) == 0
    assert f"  {runs}/0.1_0/summary.json is of another format" in capfd.readouterr().out
    write_run(tmp_path / "seed=1" / "1", summary=summary_of())  # a path may contain an equals sign
    jobs = [{"run": "1", "overrides": ["recipe=bnn", "seed=0"], "status": "completed"}]
    write_sweep(tmp_path / "seed=1", *jobs, {"overrides": ["recipe=bnn"], "status": "failed", "exit_code": 1})
    assert main([f"{tmp_path}/seed=1"]) == 0
    assert "job 2: failed (exit code 1), recipe=bnn" in capfd.readouterr().out


def test_csv_contains_plain_numbers_and_settings_that_differ(runs, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("mine")
    assert main([str(runs), f"csv={path}"]) == 2
    assert path.read_text() == "mine"
    assert main([str(runs), f"csv={path}", f"chart={tmp_path / 'curves.png'}", "overwrite=true"]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    first, second = csv.DictReader(path.read_text().splitlines())
    keys = ("optimizer.learning_rate", "n", "unfinished", "seeds", "bytes", "parameters")
    assert [first[key] for key in keys] == ["0.1", "2", "1", "0 1", "2048.0", "1000.0"]
    assert (first["monitor"], first["mode"], float(first["best_validation/mean"])) == ("loss/cross_entropy", "min", 0.1)
    assert float(second["test/metric/accuracy/mean"]) == pytest.approx(0.885)
    assert float(second["test/metric/accuracy/std"]) == pytest.approx(0.00707, abs=1e-5)


def test_mistake_is_reported_in_one_line_and_nothing_is_written(runs, tmp_path, capfd):
    write_run(tmp_path / "damaged", summary={})
    for recipe in ("a", "b"):
        for rate in (0.1, 0.2):
            units = [8, int(10 * rate)]
            overrides = [f"recipe={recipe}", f"optimizer.learning_rate={rate}", f"model.units={units}"]
            config = config_of(0, rate) | {"model": {"units": units}}
            write_run(tmp_path / "four" / f"{recipe}{rate}", config, summary_of(loss=rate), overrides)
    before = sorted(tmp_path.rglob("*"))
    for arguments, word in (
        ([], "No run"),
        (["none"], "none does not exist"),
        (["RUNS", "metrics=accurcy"], "'accurcy'"),
        (["RUNS", "sort=sizes"], "'sizes'"),
        (["RUNS", "against=learning_rte=0.1"], "'learning_rate'"),
        (["RUNS", "against=learning_rate=7"], "0 groups"),
        (["TMP/four", "against=recipe=b"], "2 groups"),
        (["RUNS", "csv=table.txt"], ".csv"),
        (["RUNS", "chart=TMP/none/a.png"], "none"),
        (["RUNS/open", "csv=TMP/a.csv"], "No run is complete"),
        (["TMP/damaged"], "another format"),
    ):
        given = [each.replace("RUNS", str(runs)).replace("TMP", str(tmp_path)) for each in arguments]
        assert_one_line(main, given, word, capfd, quiet=word != "No run is complete")
        assert sorted(tmp_path.rglob("*")) == before
    assert main([f"{tmp_path}/four", "against=recipe=b,units=[8,2]"]) == 0
    assert "Difference to recipe=b learning_rate=0.2 units=[8,2]" in capfd.readouterr().out


def test_curves_are_read_by_split_and_damaged_lines_are_skipped(tmp_path):
    path = write_run(tmp_path / "a", losses=(1.0, 0.5))
    more = '3\n{"step": "x", "split": "train"}\n{"step": Infinity, "split": "train"}\n'
    more += '{"step": 30, "split": "train", "loss/cross_entropy": null}\n{"step": 4'
    (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text() + more)
    found = read_curves(path, ["loss/cross_entropy", "none"])
    assert found == {(split, "loss/cross_entropy"): {10: 1.0, 20: 0.5} for split in ("train", "validation")}
