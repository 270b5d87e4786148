"""Names of classes, files and runs that a terminal or a spreadsheet would interpret are shown escaped."""

import csv
from pathlib import Path

import numpy as np
import pytest

from hookline.hooks.monitors.console import open_console
from hookline.scripts.evaluation import measure, print_evaluation, write_evaluation
from hookline.scripts.predict import Predictions, as_csv, as_table

NAMES = ("\x1b[2Jcat\r\nok", "$dog\u202egnp$ $x^$", "=HYPERLINK()")
SHOWN = (r"\x1b[2Jcat\r\nok", r"$dog\u202egnp$ $x^$", "=HYPERLINK()")


def is_print(text: str) -> bool:
    return all(each.isprintable() for line in text.split("\n") for each in line)


def test_predictions_escape_names_and_take_one_line_per_example():
    found = Predictions(["a\n\x1b[1m.png", "=b"], np.array([[0, 1], [2, 0]]), np.array([[0.9, 0.1], [0.8, 0.2]]), NAMES)
    table, rows = as_table(found), list(csv.reader(as_csv(found).splitlines()))
    assert is_print(table + as_csv(found))
    assert len(table.splitlines()) == len(rows) == 3
    assert rows[1][:4] == [r"a\n\x1b[1m.png", SHOWN[0], "0.900000", SHOWN[1]]
    assert rows[2][:2] == ["'=b", "'=HYPERLINK()"]


@pytest.mark.filterwarnings("error")
def test_evaluation_escapes_names_on_the_console_and_in_csv_files(tmp_path: Path, capsys):
    measures = measure(np.eye(3)[[0, 1, 2, 2]], np.array([0, 1, 2, 1]), NAMES, bins=5)
    facts = {"title": "run \x1b]0;x\x07", "metrics": {}}
    files = write_evaluation(tmp_path / "found", facts, measures, NAMES)
    print_evaluation(facts, measures, tmp_path / "found", files)
    said = capsys.readouterr().out
    assert is_print(said)
    assert all(name in said for name in (*SHOWN, r"run \x1b]0;x\x07"))
    assert {"classes.csv", "confusion.csv", "confusion.png"} <= {*files}
    for name in ("classes.csv", "confusion.csv"):
        text = (tmp_path / "found" / name).read_text()
        assert is_print(text)
        assert len(text.splitlines()) == 4


def test_console_escapes_control_characters_but_keeps_its_own_style(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    open_console("rich").print("a\x1b[2Jb\nc", style="bold")
    assert capsys.readouterr().out.startswith("\x1b[1ma\\x1b[2Jb\x1b[0m")


def test_long_metric_name_is_separated_from_its_value(tmp_path: Path, capsys):
    print_evaluation({"title": "run", "metrics": {f"metric/{'name' * 8}": 0.5}}, None, tmp_path, [])
    assert f"{'name' * 8}  0.5" in capsys.readouterr().out
