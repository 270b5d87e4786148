"""Comparisons as CSV: every cell comes back as it was, whatever characters it has."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from scripts.comparison.csv_file import write_csv
from tests.support.stored_runs import failed, job
from trainer.comparison.comparison import compare
from trainer.comparison.stored_run import StoredRun


def rows_of(runs: list[StoredRun], path: Path) -> list[dict[str, str]]:
    write_csv(compare(runs), path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_counts_the_runs_with_a_value_and_leaves_others_empty(tmp_path: Path):
    rows = rows_of([job(seed=0, accuracy=0.75), job(seed=3, accuracy=None), failed(seed=7)], tmp_path / "a.csv")
    (row,) = rows
    assert (row["n"], row["unfinished"], row["seeds"]) == ("2", "1", "0 3")
    names = [f"test/metric/accuracy/{kind}" for kind in ("mean", "std", "n")]
    assert [row[name] for name in names] == ["0.75", "", "1"]
    assert [float(row[f"best_validation/{kind}"]) for kind in ("mean", "std", "n")] == [0.3, 0.0, 2.0]
    assert (row["seconds"], row["parameters"], row["bytes"]) == ("2.0", "1000.0", "2048.0")


def test_settings_with_commas_and_quotes_stay_in_their_cells_and_line_ends_are_escaped(tmp_path: Path):
    models = ([8, 16], 'say "a,b"\nand more', None)
    runs = [job("bnn", 0, 0.9, 0.3, hooks={"tag": {"_target_": "my.Tag", "text": each}}) for each in models]
    rows = rows_of(runs, tmp_path / "a.csv")
    assert len(rows) == 3
    assert {row["hooks.tag.text"] for row in rows} == {"[8,16]", r'say "a,b"\nand more', "null"}
    assert [list(row) for row in rows] == [list(rows[0])] * 3
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()


def test_a_hook_that_some_runs_have_is_on_or_a_dash(tmp_path: Path):
    hooks = {"tag": {"_target_": "my.Tag"}}
    rows = rows_of([job(loss=0.1), job(loss=0.2, hooks=hooks)], tmp_path / "a.csv")
    assert [row["hooks.tag"] for row in rows] == ["-", "on"]


def test_a_place_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path):
    with pytest.raises(OSError, match="none"):
        write_csv(compare([job()]), tmp_path / "none" / "a.csv")
