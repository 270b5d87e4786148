"""Runs of the results table: none is made twice, none is lost, and a row has all its seeds."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.reproduction.conditions import FILE_NAME, Conditions, Watch
from scripts.reproduction.rows import _under_load
from tests.support.reproduction import TARGETS, open_session
from tests.support.stored_runs import config_of, write_run


def rows_in(directory: Path) -> dict[str, Any]:
    content = json.loads((directory / "results.json").read_text())
    return {row["name"]: row for row in content["rows"]}


def started(out: Path) -> list[str]:
    """Return the commands of all processes, in the order of their jobs."""
    logs = "".join(log.read_text() for log in sorted(out.glob("*.log")))
    return [line for line in logs.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[str]]:
    """A directory in which all was made that could be, and what was said."""
    directory, lines = tmp_path_factory.mktemp("made"), []
    assert open_session(directory, lines=lines).run(directory / "out", 1) == 0
    return directory, lines


def test_every_variant_is_made_with_every_seed(made: tuple[Path, list[str]]):
    directory, _ = made
    names = {f"first/{variant}_{seed}" for variant in ("bnn", "twin") for seed in (0, 1, 2)} | {"second/pruned_0"}
    assert {str(path.parent.relative_to(directory / "out")) for path in directory.glob("out/*/*/summary.json")} == names
    assert len(started(directory / "out")) == len(names)


def test_a_run_begins_from_the_run_of_its_seed(made: tuple[Path, list[str]]):
    directory, _ = made
    overrides = (directory / "out" / "second" / "pruned_0" / "overrides.txt").read_text().splitlines()
    assert overrides == ["recipe=frozen_mask", f"init_from={directory}/out/first/twin_0", "seed=0"]


def test_the_row_is_the_mean_over_the_seeds(made: tuple[Path, list[str]]):
    row = rows_in(made[0])["first"]
    accuracy, error, twin = row["measures"]
    assert accuracy["values"] == {"0": 90.0, "1": 91.0, "2": 92.0}
    assert (accuracy["mean"], accuracy["low"], accuracy["high"]) == (91.0, 90.0, 92.0)
    assert (error["mean"], error["low"], error["high"]) == (9.0, 8.0, 10.0)
    assert twin["mean"] == 86.0
    assert [goal["reached"] for goal in row["goals"]] == [True, False, True]
    assert row["goals"][2]["figure"] == 86.0
    assert (row["seeds"], row["bytes"], row["threads"]) == ([0, 1, 2], 2048, 2)
    assert row["seconds"] == {"bnn": 3.0, "twin": 3.0}


def test_a_row_says_what_it_was_measured_with(made: tuple[Path, list[str]]):
    environment = rows_in(made[0])["first"]["environment"]
    assert (environment["python"], environment["keras"]) == (["3.11.7"], ["3.15.1"])
    assert "0123456789abcdef" in environment["commits"]
    assert environment["cores"]
    assert environment["cpus"]
    assert rows_in(made[0])["second"]["measures"][1]["mean"] == 10.0


def test_a_target_without_its_data_has_a_row_with_the_reason(made: tuple[Path, list[str]]):
    directory, lines = made
    assert rows_in(directory)["third"]["not_run"] == "needs mnist=<path>, which was not given"
    assert "third: not run: needs mnist=<path>, which was not given" in lines
    table = (directory / "RESULTS.md").read_text()
    assert "- `third`: a larger network: needs mnist=<path>, which was not given" in table


def test_a_finished_run_is_not_made_again(made: tuple[Path, list[str]]):
    directory, _ = made
    before, results, lines = started(directory / "out"), (directory / "results.json").read_bytes(), []
    table = (directory / "RESULTS.md").read_text()
    (directory / "RESULTS.md").write_text("of an earlier version")
    assert open_session(directory, lines=lines).run(directory / "out", 1) == 0
    assert started(directory / "out") == before
    assert "All 7 runs are done." in lines
    assert (directory / "results.json").read_bytes() == results
    assert (directory / "RESULTS.md").read_text() == table


class Killed(BaseException):
    """End the process in the middle, as a kill would."""


def killed_after(count: int, lines: list[str]) -> Any:
    def say(text: str) -> None:
        lines.append(text)
        if sum("completed" in line for line in lines) == count:
            raise Killed

    return say


def test_a_kill_between_two_runs_loses_none(tmp_path: Path):
    lines: list[str] = []
    with pytest.raises(Killed):
        open_session(tmp_path, ["first"], say=killed_after(2, lines)).run(tmp_path / "out", 1)
    assert not (tmp_path / "results.json").exists()
    seconds = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("out/*/*/summary.json"))]
    assert len(seconds) == 2
    more: list[str] = []
    assert open_session(tmp_path, ["first"], more).run(tmp_path / "out", 1) == 0
    assert any(line.startswith("2 of 6 runs are done, 4 are left (about ") for line in more)
    assert len(started(tmp_path / "out")) == 6
    assert rows_in(tmp_path)["first"]["measures"][0]["mean"] == 91.0


def test_an_interrupted_run_goes_on_in_its_directory(tmp_path: Path):
    """Killed in the middle of a run: it has a config, and no summary."""
    lines: list[str] = []
    with pytest.raises(Killed):
        open_session(tmp_path, ["first"], say=killed_after(1, lines)).run(tmp_path / "out", 1)
    run = write_run(tmp_path / "out" / "first" / "twin_0", config_of(0), None, ["recipe=baseline", "seed=0"])
    assert open_session(tmp_path, ["first"]).run(tmp_path / "out", 1) == 0
    assert (run / "summary.json").exists()
    assert f"resume={run}" in (tmp_path / "out" / "02.log").read_text()
    assert rows_in(tmp_path)["first"]["measures"][2]["values"]["0"] == 85.0


def test_a_failed_run_is_told_stops_no_other_and_is_made_anew(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FAKE_FAILS", "twin_0,bnn_1")
    lines: list[str] = []
    assert open_session(tmp_path, ["first", "second"], lines).run(tmp_path / "out", 1) == 1
    assert any("failed" in line and "first/bnn_1: Error: The loss is NaN." in line for line in lines)
    assert "left out: second/pruned_0, which begins from first/twin_0" in lines
    assert sum("completed" in line for line in lines) == 4
    assert not (tmp_path / "results.json").exists()
    monkeypatch.delenv("FAKE_FAILS")
    assert open_session(tmp_path, ["first", "second"]).run(tmp_path / "out", 1) == 0
    assert len(started(tmp_path / "out")) == 6 + 3
    assert set(rows_in(tmp_path)) == {"first", "second"}


def test_a_run_that_left_files_and_failed_begins_in_another_directory(tmp_path: Path):
    out = tmp_path / "out"
    with pytest.raises(Killed):
        open_session(tmp_path, ["first"], say=killed_after(1, [])).run(out, 1)
    write_run(out / "first" / "twin_0", config_of(0), {"status": "failed"}, ["recipe=baseline", "seed=0"])
    assert open_session(tmp_path, ["first"]).run(out, 1) == 0
    assert (out / "first" / "twin_0_try2" / "summary.json").exists()
    assert open_session(tmp_path, ["first"]).run(out, 1) == 0
    assert len(started(out)) == 6


def test_some_seeds_alone_replace_no_row(made: tuple[Path, list[str]], tmp_path: Path):
    (tmp_path / "results.json").write_bytes((made[0] / "results.json").read_bytes())
    lines: list[str] = []
    session = open_session(tmp_path, ["first"], lines, seeds=(0,))
    assert session.run(tmp_path / "out", 1) == 0
    assert "first: not kept in results.json: seed 1, 2 is not among the runs" in lines
    assert (tmp_path / "results.json").read_bytes() == (made[0] / "results.json").read_bytes()
    assert any(line.startswith("first: accuracy 90.0 %;") for line in lines)
    assert open_session(tmp_path, ["first"], seeds=(0, 1, 2, 4)).run(tmp_path / "out", 1) == 0
    assert rows_in(tmp_path)["first"]["seeds"] == [0, 1, 2, 4]


def test_another_command_in_the_file_is_another_run(tmp_path: Path):
    assert open_session(tmp_path, ["second"]).run(tmp_path / "out", 1) == 0
    content = copy.deepcopy(TARGETS)
    content["second"]["runs"]["pruned"].append("a.b=1")
    assert open_session(tmp_path, ["second"], content=content).run(tmp_path / "out", 1) == 0
    assert sorted(path.name for path in (tmp_path / "out" / "second").iterdir()) == ["pruned_0", "pruned_0_try2"]
    assert "a.b=1" in (tmp_path / "out" / "second" / "pruned_0_try2" / "overrides.txt").read_text()


def test_several_runs_at_once_wait_for_what_they_begin_from(tmp_path: Path):
    assert open_session(tmp_path, ["second", "first"]).run(tmp_path / "out", 2) == 0
    assert set(rows_in(tmp_path)) == {"first", "second"}
    pruned = next(line for line in started(tmp_path / "out") if "recipe=frozen_mask" in line)
    assert "trainer.threads=" in pruned


def test_data_that_moved_is_found_again(tmp_path: Path):
    places = {"mnist": tmp_path / "new place.npz"}
    run = tmp_path / "out" / "third" / "bnn_0"
    with pytest.raises(Killed):
        open_session(tmp_path, ["third"], places={"mnist": tmp_path / "old.npz"}, say=killed_after(1, [])).run(
            tmp_path / "out", 1
        )
    (run / "summary.json").unlink()
    assert open_session(tmp_path, ["third"], places=places).run(tmp_path / "out", 1) == 0
    (first, second) = started(tmp_path / "out")
    assert f"data.path={tmp_path}/old.npz" in first
    assert f"resume={run}" in second
    assert "new place.npz" in second


def test_what_the_row_lacks_is_told(tmp_path: Path):
    """A summary without the measure: no row, exit code 1, the others are made."""
    lines: list[str] = []
    assert open_session(tmp_path, ["first"]).run(tmp_path / "out", 1) == 0
    (tmp_path / "results.json").unlink()
    path = tmp_path / "out" / "first" / "bnn_1" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["test"]["metric/accuracy"]
    path.write_text(json.dumps(summary))
    assert open_session(tmp_path, ["first", "second"], lines).run(tmp_path / "out", 1) == 1
    assert any(line.startswith("first: no row.") and "bnn_1 has no metric/accuracy." in line for line in lines)
    assert set(rows_in(tmp_path)) == {"second"}


def test_times_count_as_bounds_where_their_conditions_are_unknown(made: tuple[Path, list[str]], tmp_path: Path):
    assert open_session(tmp_path, ["second"]).run(tmp_path / "out", 1) == 0
    (tmp_path / "out" / FILE_NAME).write_text('{"cut')
    (tmp_path / "results.json").unlink()
    assert open_session(tmp_path, ["second"]).run(tmp_path / "out", 1) == 0
    assert rows_in(tmp_path)["second"]["under_load"] is True


def test_a_time_is_a_bound_by_the_conditions_of_the_runs_that_it_is_of():
    alone = Conditions("a", "2026-01-31", "c", True, "cpu", 2, (0.5, 2.4), False)
    noted = {("ours", 0): [alone], ("ours", 1): [alone], ("twin", 0): [replace(alone, niced=True)]}
    assert not _under_load(noted, "ours")
    assert _under_load(noted, "twin")
    assert _under_load(noted | {("ours", 1): [alone, replace(alone, niced=True)]}, "ours")


def test_a_commit_made_meanwhile_is_not_the_run_s(monkeypatch):
    commits = iter([("before", True), ("after", False)])
    monkeypatch.setattr("scripts.reproduction.conditions.commit_of", lambda _: next(commits))
    watch = Watch()
    watch.begin(3)
    found = watch.end(3, "a/a_0")
    assert (found.run, found.commit, found.clean) == ("a/a_0", "before", True)
