"""A search: what the space is, what Optuna is told, how it goes on."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sweep.conftest import Run
from trainer.config.command import parse_command
from trainer.errors import UserError
from trainer.sweep import search as search_module
from trainer.sweep.command import best_result
from trainer.sweep.record import Sweep, SweepJob
from trainer.sweep.result import Result
from trainer.sweep.search import Dimension, Search, read_space

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
    assert space_of("a=int(interval(2,5))", "b=range(0,1,0.5)", "c=range(0,9,4)") == [
        Dimension("a", low=2, high=5, whole=True),
        Dimension("b", ("0.0", "0.5")),
        Dimension("c", ("0", "4", "8")),
    ]


def test_a_range_holds_whole_numbers_only_where_its_ends_are() -> None:
    assert space_of("a=range(3)", "b=range(-1,1)", "c=range(0.5,3.5)", "d=range(1,2.5)", "e=range(3,1,-1)") == [
        Dimension("a", low=0, high=2, whole=True),
        Dimension("b", low=-1, high=0, whole=True),
        Dimension("c", ("0.5", "1.5", "2.5")),
        Dimension("d", ("1.0", "2.0")),
        Dimension("e", ("3", "2")),
    ]


def test_numbers_are_short_and_inside() -> None:
    dimension = Dimension("x", low=0.00012345, high=0.98765)
    texts = [dimension.text(value) for value in (0.123456789, 0.00012345, 0.98765)]
    assert texts == ["0.1235", "0.00012345", "0.98765"]  # the ends would be rounded to the outside
    assert Dimension("x", low=1, high=20000, whole=True).text(12345) == "12345"
    assert dimension.ends() == ["x=0.00012345", "x=0.98765"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["recipe=bnn"], "--trials received, but no override says what to search."),
        (["a=interval(2,1)"], "'a=interval(2,1)' is no interval."),
        (["a=interval(1,1)"], "'a=interval(1,1)' is no interval."),
        (["a=interval(0,inf)"], "'a=interval(0,inf)' is no interval. Expected two finite numbers"),
        (["a=interval(0,nan)"], "'a=interval(0,nan)' is no interval."),
        (["a=range(1,3,0)"], "'a=range(1,3,0)' cannot be listed"),
        (["a=range(3,1)"], "'a=range(3,1)' stands for no value."),
        (["a=tag(log,interval(0,1))"], "'a=tag(log,interval(0,1))' begins at 0."),
        (["a=tag(fine,interval(0,1))"], "'a=tag(fine,interval(0,1))' has the tag 'fine'. Expected no tag but log."),
    ],
)
def test_what_is_no_space_is_named(texts: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_space(COMMAND, texts)
    assert str(caught.value).startswith(message)


def test_without_optuna_one_line_says_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        UserError,
        match=r"^--trials needs Optuna. Expected it installed: python -m pip install '.\[search\]', in a clone",
    ):
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
    config = {"seed": 2, "trainer": {"monitor_mode": "min"}}
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
    assert lines[0] == "Sweep of 4 trials in s"
    jobs = json.loads(Path("s/sweep.json").read_text())["jobs"]
    assert [job["number"] for job in jobs] == [1, 2, 3, 4]
    assert len({job["overrides"][-1] for job in jobs}) == 4  # no learning rate twice
    best = max(int(job["overrides"][3].partition("=")[2]) for job in jobs)
    assert re.fullmatch(rf"Best accuracy 0.{best}000: seed={best} optimizer.learning_rate=[\d.]+", lines[-2])


def test_the_best_is_the_largest_or_the_smallest_value() -> None:
    results = [Result([], {"best": {"value": value}}) for value in (0.5, 0.9, None, 0.1)]
    assert best_result(results, "max") is results[1]
    assert best_result(results, "min") is results[3]
    assert best_result(results[2:3], "min") is None


def test_a_search_goes_on_with_more_trials_and_leaves_failed_ones(run: Run, optuna: Any) -> None:
    given = ["recipe=bnn", "seed=13,18", RATE, "--sweep", "s", "--jobs", "1"]
    run(*given, "--trials", "4")
    jobs = json.loads(Path("s/sweep.json").read_text())["jobs"]
    assert {job["status"] for job in jobs} == {"failed", "interrupted"}
    waiting = [job["number"] for job in jobs if job["status"] == "interrupted"]
    _, lines = run(*given, "--trials", "5")
    assert [int(found) for found in re.findall(r"\[(\d)/5\] goes on", "\n".join(lines))] == waiting
    assert [int(found) for found in re.findall(r"\[(\d)/5\] started", "\n".join(lines))] == [5]
    with pytest.raises(UserError, match="s holds another sweep. Expected -m --sweep s alone to go on with it"):
        run("recipe=bnn", "seed=13,1", "--sweep", "s")
    with pytest.raises(UserError, match="--trials 1001 received. Expected at most 1000."):
        run("--sweep", "s", "--trials", "1001")


WRONG = {
    "recipe=bnn,bnnn": "Unknown recipe 'bnnn'",
    "trainer.batch_size=int(interval(0,9))": "trainer.batch_size=0 received",
    "x=1,2": "Unknown key 'x'",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_would_be_wrong_in_some_trial_is_found_before_the_first(run: Run, optuna: Any, text: str) -> None:
    texts = [text, RATE] if text.startswith("recipe") else ["recipe=bnn", text, RATE]
    with pytest.raises(UserError, match=WRONG[text]):
        run(*texts, "--trials", "2", "--sweep", "s")
    assert not Path("s").exists()


def test_values_that_do_not_go_together_are_a_failed_trial(run: Run, optuna: Any) -> None:
    given = ["recipe=bnn", "seed=1", "trainer.epochs=null,3", "trainer.steps=7,null"]
    code, lines = run(*given, "--trials", "5", "--sweep", "s")
    assert code == 2
    jobs = json.loads(Path("s/sweep.json").read_text())["jobs"]
    together = [("trainer.epochs=3" in job["overrides"]) != ("trainer.steps=7" in job["overrides"]) for job in jobs]
    assert {True, False} == set(together)
    assert [job["status"] for job in jobs] == ["completed" if right else "failed" for right in together]
    assert sum("Error: " in line for line in lines) == together.count(False)
    assert sum("failed: see s/" in line for line in lines) == together.count(False)
    assert all(Path(f"s/{job['number']:02}.log").exists() for job in jobs)
