"""The headers of recipes, and the figures that they have to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.documentation.recipe_header import RecipeHeader, missing_figures, read_header

LINES = [
    "# @package _global_",
    "# Train bits",
    "# Paper: A, 2016.",
    "# Command: python train.py recipe=a",
    "# Expected: 1 %",
]


def write(path: Path, lines: list[str]) -> Path:
    file = path / "a.yaml"
    file.write_text("\n".join([*lines, "defaults: [_self_]", "# Paper: later"]) + "\n")
    return file


def test_the_lines_are_read_also_over_several_of_them(tmp_path: Path):
    header = read_header(write(tmp_path, [*LINES, "#   and 2 s"]))
    assert header == RecipeHeader("Train bits", "A, 2016.", "python train.py recipe=a", "1 % and 2 s")


@pytest.mark.parametrize("missing", range(len(LINES)))
def test_a_missing_line_is_named(missing: int, tmp_path: Path):
    lines = [line for number, line in enumerate(LINES) if number != missing]
    with pytest.raises(ValueError, match=r"a.yaml (must start with|has .*Expected '# Paper: ...', '# Command)"):
        read_header(write(tmp_path, lines))


def test_another_order_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="has Command, Paper, Expected"):
        read_header(write(tmp_path, [*LINES[:2], LINES[3], LINES[2], LINES[4]]))


ROW: dict[str, Any] = {
    "commands": ["python train.py -m --jobs 1 recipe=a seed=0,1,2", "python train.py -m recipe=b seed=0"],
    "seeds": [0, 1, 2],
    "measures": [
        {"name": "test accuracy", "mean": 97.94, "low": 97.6, "high": 98.14},
        {"name": "twin", "mean": 98.61, "low": 98, "high": 99},
    ],
}


def missing(expected: str, row: dict[str, Any] = ROW, command: str = "python train.py recipe=a") -> list[str]:
    return missing_figures(RecipeHeader("", "", command, expected), [row])


def test_figures_count_at_the_places_that_are_written():
    assert missing("97.9 % test accuracy (97.6 to 98.1 over 3 seeds), 5 s") == []
    assert missing("98 % test accuracy (98 to 98 over 3 seeds)") == []
    assert missing("97.9 % (97.6 to 98.1 over 3 seeds), twin 98.6 %") == []


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        ("97.8 % test accuracy (97.6 to 98.1 over 3 seeds)", ["test accuracy, mean: 97.94"]),
        ("97.9 % test accuracy (97.6 to 98.1 over 5 seeds)", ["number of seeds: 3"]),
        ("97.9 % test accuracy (97.6 to 98.1), 3 s", ["number of seeds: 3"]),
        ("97.9 % (97.5 to 98.0 over 3 seeds)", ["test accuracy, low: 97.6", "test accuracy, high: 98.14"]),
        ("97.9 % (97.6 to 98.1 over 3 seeds), twin 98.5 %", ["twin: 98.61"]),
        ("v97.9 x1.97 (97.6 to 98.1 over 3 seeds)", ["test accuracy, mean: 97.94"]),
    ],
)
def test_figures_that_are_others_are_named(expected: str, lines: list[str]):
    assert missing(expected) == lines


def test_rows_of_other_commands_and_those_not_run_say_nothing():
    assert missing("", command="python train.py recipe=a data=mnist") == []
    assert missing("", command="python train.py recipe=b") == []  # the twin
    assert missing("", row={"name": "a", "not_run": "no data"}) == []
