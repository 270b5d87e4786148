"""A search: what the space is, what Optuna is told, how it resumes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hookline.scripts.sweep import search as search_module
from hookline.scripts.sweep.record import Sweep, SweepJob
from hookline.scripts.sweep.search import Dimension, Search, read_space
from hookline.trainer.config.command import parse_command
from hookline.trainer.errors import UserError
from tests.scripts.sweep.conftest import Run

RATE = "optimizer.learning_rate=tag(log, interval(1e-4, 1e-1))"
COMMAND = parse_command(["-m", "--trials", "3"])


@pytest.fixture
def optuna() -> Any:
    """Optuna, which is an extra."""
    return pytest.importorskip("optuna")


def space_of(*texts: str) -> list[Dimension]:
    return read_space(COMMAND, texts)[1]


def test_the_space_is_what_lists_several_values() -> None:
    texts = ["recipe=bnn", RATE, "seed=range(1,8)", "model.units=choice([64],[128,1])", "x=a,b"]
    fixed, space = read_space(COMMAND, texts)
    assert fixed == ["recipe=bnn"]
    assert space == [
        Dimension("optimizer.learning_rate", low=1e-4, high=0.1, log=True),
        Dimension("seed", low=1, high=7, whole=True),
        Dimension("model.units", ("[64]", "[128,1]")),
        Dimension("x", ("a", "b")),
    ]
    assert space_of(
        "a=int(interval(2,5))", "b=range(0,1,0.5)", "c=range(0,9,4)", "d=range(1,2.5)", "e=range(-1,1)"
    ) == [
        Dimension("a", low=2, high=5, whole=True),
        Dimension("b", ("0.0", "0.5")),
        Dimension("c", ("0", "4", "8")),
        Dimension("d", ("1.0", "2.0")),
        Dimension("e", low=-1, high=0, whole=True),
    ]


def test_numbers_are_short_and_inside() -> None:
    dimension = Dimension("x", low=0.00012345, high=0.98765)
    texts = [dimension.text(value) for value in (0.123456789, 0.00012345, 0.98765)]
    assert texts == ["0.1235", "0.00012345", "0.98765"]  # the ends would be rounded to the outside
    assert Dimension("x", low=1, high=20000, whole=True).text(12345) == "12345"
    assert dimension.ends() == ["x=0.00012345", "x=0.98765"]


def test_what_is_no_space_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, message in (
        ("recipe=bnn", "--trials"),
        ("a=interval(2,1)", "not an interval"),
        ("a=interval(0,nan)", "two finite numbers"),
        ("a=range(1,3,0)", "cannot be listed"),
        ("a=range(3,1)", "no value"),
        ("a=tag(log,interval(0,1))", "begins at 0"),
        ("a=tag(fine,interval(0,1))", "'fine'"),
    ):
        with pytest.raises(UserError, match=message):
            read_space(COMMAND, [text])
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"python -m pip install '.\[search\]'"):
        run("recipe=bnn", "seed=1,2", "--trials", "2", "--sweep", "s")
    assert not Path("s").exists()


class FakeOptuna:
    """As much of Optuna as a search uses; it records what it is told and suggests what it is given."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.distributions = self.samplers = self.trial = self
        self.TrialState = type("States", (), {"COMPLETE": "complete", "FAIL": "fail", "RUNNING": "running"})
        self.params: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: (name, arguments, named)

    def create_trial(self, **named: Any) -> Any:
        return named["state"], named["params"], named["value"]

    def create_study(self, **named: Any) -> Any:
        self.study = named
        return self

    def add_trials(self, trials: list[Any]) -> None:
        self.told = trials

    def ask(self, distributions: dict[str, Any]) -> Any:
        self.asked = distributions
        return self


def test_optuna_is_told_what_came_of_every_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = FakeOptuna()
    monkeypatch.setattr(search_module, "import_optuna", lambda: optuna)
    fixed, space = read_space(COMMAND, ["recipe=bnn", RATE, "model.units=choice([64],[128,1])", "x=int(interval(1,3))"])
    values = ["optimizer.learning_rate=0.01", "model.units=[64]"]
    jobs = [
        SweepJob(number, [*fixed, *values, f"x={number}"], str(number), status)
        for number, status in enumerate(["completed", "failed", "running"], start=1)
    ]
    (tmp_path / "1").mkdir()
    (tmp_path / "1/summary.json").write_text(json.dumps({"status": "completed", "best": {"value": 0.75}}))
    config = {"seed": 2, "task": {}, "trainer": {"monitor": "loss/total", "monitor_mode": "auto"}}
    optuna.params = {"optimizer.learning_rate": 0.0123456, "model.units": "[128,1]", "x": 2}
    found = Search(Sweep(tmp_path, jobs), fixed, space, config).suggest()
    assert found == ["recipe=bnn", "optimizer.learning_rate=0.01235", "model.units=[128,1]", "x=2"]
    params = {"optimizer.learning_rate": 0.01, "model.units": "[64]"}
    assert optuna.told == [
        ("complete", {**params, "x": 1}, 0.75),
        ("fail", {**params, "x": 2}, None),
        ("running", {**params, "x": 3}, None),
    ]
    assert optuna.asked == {
        "optimizer.learning_rate": ("FloatDistribution", (1e-4, 0.1), {"log": True}),
        "model.units": ("CategoricalDistribution", (("[64]", "[128,1]"),), {}),
        "x": ("IntDistribution", (1, 3), {"log": False}),
    }
    assert optuna.study == {
        "direction": "minimize",
        "sampler": ("TPESampler", (), {"seed": 2004, "constant_liar": True}),
    }


def test_a_search_makes_its_trials_and_says_which_is_best(run: Run, optuna: Any) -> None:
    best_by = ["trainer.monitor=metric/accuracy", "trainer.monitor_mode=max"]
    code, lines = run("recipe=bnn", *best_by, "seed=1,2,3,4", RATE, "--trials", "4", "--jobs", "2", "--sweep", "s")
    assert code == 0
    jobs = json.loads(Path("s/sweep.json").read_text())["jobs"]
    assert [job["number"] for job in jobs] == [1, 2, 3, 4]
    assert len({job["overrides"][-1] for job in jobs}) == 4  # no learning rate twice
    best = max(int(job["overrides"][3].partition("=")[2]) for job in jobs)
    assert re.fullmatch(rf"Best accuracy 0.{best}000: seed={best} optimizer.learning_rate=[\d.]+", lines[-2])


def test_a_search_goes_on_with_more_trials_and_leaves_failed_ones(run: Run, optuna: Any) -> None:
    given = ["recipe=bnn", "seed=13,18", RATE, "--sweep", "s", "--jobs", "1"]
    run(*given, "--trials", "4")
    jobs = json.loads(Path("s/sweep.json").read_text())["jobs"]
    assert {job["status"] for job in jobs} == {"failed", "interrupted"}
    waiting = [job["number"] for job in jobs if job["status"] == "interrupted"]
    _, lines = run(*given, "--trials", "5")
    assert [int(found) for found in re.findall(r"\[(\d)/5\] resumed", "\n".join(lines))] == waiting
    assert [int(found) for found in re.findall(r"\[(\d)/5\] started", "\n".join(lines))] == [5]
    with pytest.raises(UserError, match="s holds another sweep"):
        run("recipe=bnn", "seed=13,1", "--sweep", "s")
    with pytest.raises(UserError, match="1000"):
        run("--sweep", "s", "--trials", "1001")
