"""Rows of the results table: units, goals, merging, rendering, conditions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.reproduction import conditions
from scripts.reproduction.conditions import Conditions, Watch, append, commit_of
from scripts.reproduction.exports import data_bytes, evaluation_path, export_path, make_export, read_export
from scripts.reproduction.results import merge, read_results, write_results, write_table
from scripts.reproduction.rows import _judged
from scripts.reproduction.table import render, render_short
from scripts.reproduction.targets import UNITS, Export, Goal
from trainer.errors import UserError
from trainer.inference.container import SPARSE, write_container
from trainer.inference.sparse_file import NETWORK

ALONE = Conditions("a", "2026-01-31", "c", True, "cpu", 2, (0.5, 2.4), False)


def measure(name: str, mean: float, unit: str = "percent", **more: Any) -> dict[str, Any]:
    chosen = UNITS[unit]
    values = {"values": {"0": mean}, "mean": mean, "low": mean, "high": mean}
    return {"name": name, "unit": chosen.text, "decimals": chosen.decimals, **values, **more}


def row(name: str = "bnn", **more: Any) -> dict[str, Any]:
    environment = {
        "dates": ["2026-01-30", "2026-01-31"],
        "commits": ["0123456789abcdef"],
        "clean": True,
        "python": ["3.11.7"],
        "tensorflow": ["2.21.0"],
        "keras": ["3.15.1"],
        "cpus": ["a processor"],
        "cores": [2],
        "gpus": 0,
    }
    return {
        "name": name,
        "title": "a binary network",
        "recipe": "bnn",
        "data": "digits",
        "seeds": [0, 1],
        "commands": ["python train.py -m --jobs 1 recipe=bnn seed=0,1"],
        "measures": [measure("accuracy", 98.04, low=97.2, high=98.9)],
        "goals": [],
        "bytes": 2048,
        "seconds": {"bnn": 3.2, "twin": 80.0},
        "threads": 2,
        "under_load": False,
        "environment": environment,
        **more,
    }


@given(value=st.floats(0, 1), better=st.floats(0, 1))
def test_an_accuracy_and_its_error_reach_a_goal_alike(value: float, better: float):
    accuracy, error = UNITS["percent"], UNITS["error"]
    as_accuracy = _judged(Goal("a", at_least=True, figure=accuracy.of(better), source=""), {"a": accuracy.of(value)})
    as_error = _judged(Goal("a", at_least=False, figure=error.of(better), source=""), {"a": error.of(value)})
    assert as_accuracy["reached"] == (accuracy.of(value) >= accuracy.of(better))
    if abs(value - better) > 1e-6:
        assert as_accuracy["reached"] == as_error["reached"]


@pytest.mark.parametrize(
    ("at_least", "ours", "reached"),
    [
        (True, 97.61, False),
        (True, 97.62, True),
        (True, 99.0, True),
        (False, 97.63, False),
        (False, 97.62, True),
        (False, 1.0, True),
    ],
)
def test_a_goal_is_reached_on_its_side(at_least: bool, ours: float, reached: bool):
    judged = _judged(Goal("a", at_least, 97.62, "Somebody 2016"), {"a": ours})
    assert judged["reached"] is reached
    assert judged["relation"] == ("at least" if at_least else "at most")


def test_a_goal_against_our_own_measure_takes_its_mean():
    goal = Goal("with", at_least=True, figure="without", source="our without")
    assert _judged(goal, {"with": 82.0, "without": 74.5}) == {
        "measure": "with",
        "relation": "at least",
        "figure": 74.5,
        "source": "our without",
        "reached": True,
    }


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("percent", 0.9721448, 97.21448),
        ("error", 0.9823, 1.77),
        ("KiB", 13508, 13.191406),
        ("KB", 24156, 24.156),
        ("number", 12.2, 12.2),
    ],
)
def test_units(unit: str, value: float, shown: float):
    assert UNITS[unit].of(value) == pytest.approx(shown, abs=1e-5)


def test_a_row_is_replaced_in_its_place_and_stays_where_the_new_one_was_not_run():
    first, second = row("first"), row("second")
    absent = {"name": "first", "title": "t", "recipe": "bnn", "data": "MNIST", "not_run": "needs mnist=<path>"}
    assert merge([second], first, ["first", "second"]) == [first, second]
    assert merge([first, second], absent, ["first", "second"]) == [first, second]
    assert merge([absent, second], first, ["first", "second"]) == [first, second]
    assert merge([], absent, ["first"]) == [absent]
    other = row("first", bytes=1)
    assert merge([first, row("gone")], other, ["first", "second"]) == [other, row("gone")]


def test_what_is_written_is_read_again_and_rendered(tmp_path: Path):
    path = tmp_path / "results.json"
    assert read_results(path) == []
    write_results(path, [row()])
    assert read_results(path) == [row()]
    assert (tmp_path / "RESULTS.md").read_text() == render([row()])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["RESULTS.md", "results.json"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 2, "rows": []}',
        '{"version": 1, "rows": 3}',
        '{"version": 1, "rows": [{"title": "x"}]}',
        '{"version": 1, "rows": [{"name": "x", "not_run": 3}]}',
        json.dumps({"version": 1, "rows": [row(measures=[])]}),
        json.dumps({"version": 1, "rows": [row(seconds=3)]}),
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"results\.json (cannot be read|is of another format)") as caught:
        read_results(path)
    assert "\n" not in str(caught.value)


def test_a_row_that_cannot_be_rendered_is_one_line(tmp_path: Path):
    with pytest.raises(UserError, match="is of another format"):
        write_table(tmp_path / "results.json", [row(measures=[{"name": "accuracy"}])])
    assert not [*tmp_path.iterdir()]


def test_the_table():
    goals = [
        {"measure": "accuracy", "relation": "at least", "figure": 97.62, "source": "Larq", "reached": True},
        {"measure": "error", "relation": "at most", "figure": 1.7, "source": "our dense", "reached": False},
    ]
    measures = [measure("accuracy", 98.04, low=97.2, high=98.9), measure("error", 1.771, "error")]
    measures += [measure("times", 12.0, "number"), measure("ratio", 0.93, "number", low=0.9296)]
    text = render([row(goals=goals, measures=measures, under_load=True)])
    cells = next(line for line in text.splitlines() if line.startswith("| `bnn`")).split(" | ")
    assert cells[1:] == [
        "digits, seeds 0, 1",
        "accuracy 98.0 % (97.2 to 98.9)",
        "error 1.77 %; times 12; ratio 0.930",
        "at least 97.62 %: Larq; error at most 1.70 %: our dense",
        "yes; no",
        "2.00 KiB",
        "at most 3 s, 2 threads |",
    ]
    assert "```\npython train.py -m --jobs 1 recipe=bnn seed=0,1\n```" in text
    assert "2026-01-30 to 2026-01-31, commit 0123456789; Python 3.11.7, TensorFlow 2.21.0, Keras 3.15.1" in text
    assert "a processor, 2 cores." in text


def test_a_run_that_others_begin_from_is_made_once_on_the_page():
    begun = "python train.py recipe=bnn seed=$seed run_dir=runs/a_$seed"
    others = [f"python train.py recipe=prune seed=$seed sparsity={share} init_from=runs/a_$seed" for share in (1, 2, 3)]
    loops = [
        [f"for seed in {seeds}; do", f"    {begun}", f"    {other}", "done"]
        for seeds, other in zip(("0 1", "0 1", "0 1 2"), others, strict=True)
    ]
    rows = [row(name, commands=loop) for name, loop in zip("abc", loops, strict=True)]
    again = row("d", commands=["python train.py recipe=bnn seed=0"])
    lines = render([*rows, again, {**again, "name": "e"}]).splitlines()
    shown = [line for line in lines if line.startswith(("for ", "    ", "done", "python "))]
    loops[1][1] = "    # runs/a_$seed is made above"  # with other seeds, it is not
    assert shown == [*loops[0], *loops[1], *loops[2], *again["commands"] * 2]


def test_a_bar_stays_in_its_cell():
    assert "| `bnn`: one \\| two | digits" in render([row(title="one | two")])


def test_one_seed_has_no_range_and_many_are_counted():
    text = render([row(seeds=[3]), row("other", seeds=[0, 1, 2, 3], data="MNIST")])
    assert "| digits, seed 3 |" in text
    assert "| MNIST, 4 seeds |" in text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(3.2, "3 s"), (99.4, "99 s"), (100.0, "2 min"), (1080.0, "18 min"), (0.2, "0 s")]
)
def test_times_read_as_people_say_them(seconds: float, shown: str):
    assert f" {shown}, 1 thread |" in render([row(seconds={"bnn": seconds, "twin": 1.0}, threads=1)])


@given(st.permutations(["a", "b", "c", "d"]), st.sets(st.sampled_from("abcd")))
def test_rows_stand_in_the_order_of_the_targets_whichever_came_first(order: list[str], absent: set[str]):
    rows: list[dict[str, Any]] = []
    for name in order:
        new = {"name": name, "not_run": "needs it"} if name in absent else row(name)
        rows = merge(rows, new, ["a", "b", "c", "d"])
    assert [each["name"] for each in rows] == ["a", "b", "c", "d"]
    assert {each["name"] for each in rows if "not_run" in each} == absent


def test_rows_of_different_environments_are_told_apart():
    other = row("other")
    other["environment"] = {**other["environment"], "clean": False, "gpus": 1}
    text = render([row(), other, row("third")])
    assert "- `bnn`, `third`: 2026-01-30 to 2026-01-31, commit 0123456789; Python" in text
    assert "- `other`: 2026-01-30 to 2026-01-31, commit 0123456789, with changes or of unknown state; Python" in text
    assert "2 cores, 1 GPUs." in text


def test_nothing_that_was_run_and_the_line_for_the_screen():
    assert "Nothing was run yet." in render([])
    assert render_short(row()) == "bnn: accuracy 98.0 % (97.2 to 98.9). 3 s, 2 threads"
    goal = {"measure": "accuracy", "relation": "at least", "figure": 96.0, "source": "goal", "reached": True}
    assert ". at least 96.0 %: goal: reached. 3 s" in render_short(row(goals=[goal]))


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({}, False),
        ({"load": (3.1, 1.0)}, True),
        ({"load": (1.0, 3.1)}, True),
        ({"niced": True}, True),
        ({"load": (3.1, 3.1), "cores": 4}, False),
    ],
)
def test_a_time_under_load_is_a_bound(changes: dict[str, Any], bound: bool):
    assert replace(ALONE, **changes).under_load is bound


def test_conditions_are_noted_and_read_again(tmp_path: Path):
    watch = Watch()
    watch.begin(1)
    watch.begin(2)
    found = watch.end(2, "first/bnn_0")
    append(tmp_path, found)
    append(tmp_path, watch.end(1, "first/bnn_0"))
    with (tmp_path / conditions.FILE_NAME).open("a") as file:
        file.write('{"run": "first/bnn_0", "load": [1]}\nnot JSON\n[1]\n{"cut')
    again = conditions.read(tmp_path)
    assert [*again] == ["first/bnn_0"]
    assert again["first/bnn_0"][0] == found
    assert len(again["first/bnn_0"]) == 2
    assert found.cores >= 1
    assert found.cpu
    assert conditions.read(tmp_path / "nowhere") == {}


def test_the_commit_and_whether_its_code_was_changed(tmp_path: Path, monkeypatch):
    said = {"rev-parse": "abc\n", "status": ""}
    monkeypatch.setattr(conditions, "_git", lambda directory, name, *arguments: said[name])
    assert commit_of(tmp_path) == ("abc", True)
    said["status"] = " M recipes/results.json\n M recipes/RESULTS.md\n"
    assert commit_of(tmp_path) == ("abc", True)
    said["status"] += " M recipes/gan.py\n"
    assert commit_of(tmp_path) == ("abc", False)
    monkeypatch.undo()
    assert commit_of(tmp_path) == (None, None)


SCRIPT = """
import pathlib, sys
values = dict(each.split("=", 1) for each in sys.argv[1:])
with open({log!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
{work}
"""


def write_scripts(folder: Path, export: str, evaluate: str) -> Path:
    folder.mkdir()
    for name, work in (("export.py", export), ("evaluate.py", evaluate)):
        (folder / name).write_text(SCRIPT.format(log=str(folder / "log"), work=work))
    return folder


def test_an_export_is_made_and_judged_once(tmp_path: Path):
    written = tmp_path / "written.sparse.safetensors"
    arrays = {NETWORK: np.zeros(3, np.uint8), "0/values": np.zeros(5, np.float32)}
    write_container(written, SPARSE, {"weights": []}, arrays)
    export = Export("pruned", ("format=sparse", "codebook=5"), ".sparse.safetensors")
    run = tmp_path / "run"
    evaluation = evaluation_path(run, export)
    scripts = write_scripts(
        tmp_path / "scripts",
        f"path = pathlib.Path(values['output']); path.parent.mkdir(parents=True)\n"
        f"path.write_bytes(pathlib.Path({str(written)!r}).read_bytes())",
        f"path = pathlib.Path({str(evaluation)!r}); path.parent.mkdir(parents=True)\n"
        'path.write_text(\'{"overall": {"accuracy": 0.75}}\')',
    )
    assert read_export(run, export, "bytes") is None
    assert read_export(run, export, "accuracy") is None
    for _ in range(2):
        make_export(run, export, scripts)
    path = export_path(run, export)
    assert path.name == "format-sparse_codebook-5.sparse.safetensors"
    assert (scripts / "log").read_text().splitlines() == [
        f"run={run} format=sparse codebook=5 output={path} overwrite=true",
        f"model={path} name=format-sparse_codebook-5",
    ]
    assert data_bytes(path) == 20
    assert read_export(run, export, "bytes") == 20
    assert read_export(run, export, "accuracy") == 0.75
    path.write_bytes(b"\x09")
    assert read_export(run, export, "bytes") is None


def test_an_export_that_fails_says_why(tmp_path: Path):
    scripts = write_scripts(tmp_path / "scripts", "sys.exit('Error: The run has no weights.')", "")
    with pytest.raises(UserError, match=r"^export.py ended with exit code 1: The run has no weights\.$"):
        make_export(tmp_path / "run", Export("pruned", ("format=sparse",), ".sparse.safetensors"), scripts)
