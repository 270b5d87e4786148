"""A search: each process takes different trials of one study, and the next one resumes what another left."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

import optuna

from hookline.hooks.monitors.study import TRIAL, open_storage
from hookline.scripts.sweep import search as module
from hookline.scripts.sweep.open import open_sweep
from hookline.scripts.sweep.record import Slots, SweepJob
from hookline.scripts.sweep.search import Search, begin_search
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight_each
from tests.scripts.sweep.conftest import Run
from tests.support.refusals import assert_refused

RATE = "optimizer.learning_rate=tag(log, interval(1e-4, 1e-1))"
BEST_BY = ("trainer.monitor=metric/accuracy", "trainer.monitor_mode=max")
SPACE = ("recipe=bnn", *BEST_BY, "seed=1,2,3,4", RATE, "trainer.epochs=int(interval(1,9))")


def trials_of(directory: str, storage: str | None = None) -> list[optuna.trial.FrozenTrial]:
    opened = open_storage(storage or str(Path(directory, "study.journal").absolute()))
    return optuna.load_study(study_name=directory, storage=opened).trials


def values(directory: str) -> list[dict[str, Any]]:
    return [trial.params for trial in trials_of(directory)]


@pytest.fixture
def searches(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that opens the search in `s` as one process would; all let go of it at the end."""
    made = []
    monkeypatch.setattr(module, "preflight_each", lambda command, jobs: [None])  # takes 0.1 s per job

    def begin(*space: str, sweep: str = "s", trials: int = 4) -> Search:
        command = parse_command(["-m", *(space or SPACE), "--sweep", sweep, "--trials", str(trials)])
        made.append(begin_search(command, open_sweep(command), lambda count: Slots(({},), 1)))
        return made[-1]

    yield begin
    for each in made:
        leave(each)


def leave(search: Search) -> None:
    """Release the trials of a process, as its death does."""
    for descriptor in search.claims.values():
        os.close(descriptor)
    search.claims.clear()


def finish(search: Search, job: SweepJob, **summary: Any) -> None:
    """Write the files of a finished run, and report it to the study."""
    directory = search.sweep.directory / job.run
    directory.mkdir()
    (directory / "config.yaml").touch()
    (directory / "summary.json").write_text(json.dumps(summary))
    job.status = summary["status"]
    if job.number in search.claims:
        search.record(job)


def make(search: Search, count: int) -> None:
    """Run some trials; the lower its learning rate, the better a trial is."""
    for _ in range(count):
        job = search.next_job()
        rate = float(job.overrides[4].partition("=")[2])
        finish(search, job, status="completed", best={"monitor": "metric/accuracy", "value": 1 - rate})


def test_search_runs_its_trials_and_reports_the_best(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: started.append(named) or start(*given, **named))
    code, lines = run(*SPACE, "--trials", "4", "--jobs", "2", "--sweep", "s")
    assert code == 0
    assert [json.loads(each["env"][TRIAL])["number"] for each in started] == [0, 1, 2, 3]
    assert [len(each["pass_fds"]) for each in started] == [2] * 4  # the tether, and the lock of the trial
    assert TRIAL not in Path("s/01.log").read_text()
    trials = trials_of("s")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert [trial.value for trial in trials] == [int(trial.params["seed"]) / 10 for trial in trials]
    best = max(trials, key=lambda trial: trial.value or 0)
    for trial in trials:
        seed, rate, epochs = trial.params.values()
        name = f"{trial.number + 1:02}_seed-{seed}_learning_rate-{rate}_epochs-{epochs}"
        assert trial.user_attrs["run"] == name
        assert Path("s", trial.user_attrs["run"], "summary.json").exists()
    record = json.loads(Path("s/sweep.json").read_text())
    assert (record["jobs"], record["trials"], record["study"]) == ([], 4, "s")
    assert f"seed={best.params['seed']}" in next(line for line in lines if line.startswith("Best accuracy"))


def test_interrupted_search_gives_the_same_trials_as_an_uninterrupted_one(searches: Any) -> None:
    make(searches(sweep="whole", trials=14), 14)  # Optuna draws the first 10 at random
    whole = values("whole")
    assert len({each["optimizer.learning_rate"] for each in whole}) == 14
    search = searches(trials=14)
    for count in (0, 2, 9):
        make(search, count)
        search.next_job()
        leave(search)  # its process dies before the run has written anything
        search = searches(trials=14)
    make(search, 3)
    assert search.next_job() is None
    assert values("s") == whole


def test_trial_is_taken_by_one_process_and_by_another_after_its_death(searches: Any) -> None:
    first, second, third = searches(), searches(), searches()
    one, two = first.next_job(), second.next_job()
    assert [one.number, two.number] == [1, 2]
    assert first.next_job().number == 3
    leave(first)
    again = third.next_job()
    assert (again.number, again.overrides, again.run) == (one.number, one.overrides, one.run)
    leave(second)  # killed after the run had ended, but before it was reported to the study
    finish(second, two, status="completed", best={"monitor": "metric/accuracy", "value": 0.25})
    assert [third.next_job().number for _ in range(2)] == [3, 4]
    assert third.next_job() is None
    assert [(trial.state.name, trial.value) for trial in trials_of("s")][1] == ("COMPLETE", 0.25)
    assert [trial.state.name for trial in trials_of("s")].count("RUNNING") == 3


def test_study_records_how_each_trial_ended(searches: Any) -> None:
    search = searches()
    best = {"monitor": "metric/accuracy", "value": 0.5}
    for summary in (
        {"status": "stopped", "stop_reason": "pruned: behind", "best": best},
        {"status": "stopped", "stop_reason": "early stopping", "best": best},
        {"status": "failed", "best": best},
        {"status": "completed", "best": {"value": None}},
    ):
        finish(search, search.next_job(), **summary)
    assert [trial.state.name for trial in trials_of("s")] == ["PRUNED", "COMPLETE", "FAIL", "FAIL"]
    assert "1 of 4 trials were pruned." in search.describe_end()


def test_two_searches_begun_at_once_share_one_study(run: Run) -> None:
    command = parse_command(["-m", *SPACE, "--sweep", "s", "--trials", "4"])
    both = [open_sweep(command) for _ in range(2)]
    made = [begin_search(command, opened, lambda count: Slots(({},), count)) for opened in both]
    assert [search.next_job().number for search in made] == [1, 2]
    assert made[1].sweep.threads == 4
    for search in made:
        leave(search)


def test_rerun_adds_trials_resumes_interrupted_ones_and_skips_failed_ones(run: Run) -> None:
    given = ["recipe=bnn", "seed=13,18", RATE, "--sweep", "s", "--jobs", "1"]
    run(*given, "--trials", "4")
    states = [trial.state.name for trial in trials_of("s")]
    assert set(states) == {"FAIL", "RUNNING"}
    waiting = [number for number, state in enumerate(states, start=1) if state == "RUNNING"]
    _, lines = run(*given, "--trials", "5")
    assert [int(found) for found in re.findall(r"\[(\d)/5\] resumed", "\n".join(lines))] == waiting
    assert [int(found) for found in re.findall(r"\[(\d)/5\] started", "\n".join(lines))] == [5]
    assert_refused("s holds another sweep", run, "recipe=bnn", "seed=13,1", "--sweep", "s")


def test_incompatible_values_fail_and_the_search_continues(searches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "preflight_each", preflight_each)
    search = searches("recipe=bnn", *BEST_BY, "trainer.steps=null,5", "trainer.epochs=3,null", trials=8)
    made = [job.number for job in iter(search.next_job, None)]
    failed = [trial for trial in trials_of("s") if trial.state.name == "FAIL"]
    assert failed
    assert sorted([*made, *(trial.number + 1 for trial in failed)]) == list(range(1, 9))
    assert search.worst == 2
    for trial in failed:
        assert [*trial.params.values()].count("null") != 1
        assert "set. Expected" in Path(f"s/{trial.number + 1:02}.log").read_text()


def test_study_can_be_stored_in_a_database(run: Run) -> None:
    url, one = "sqlite:///studies.db", ("--jobs", "1", "--sweep")
    assert run(*SPACE, "--trials", "1", "--storage", url, *one, "s")[0] == 0
    assert not Path("s/study.journal").exists()
    assert run("--trials", "2", "--storage", url, *one, "s")[0] == 0
    assert [trial.state.name for trial in trials_of("s", url)] == ["COMPLETE"] * 2
    for line, message in (
        (["--sweep", "s"], "in a database. Expected its URL"),
        ([*SPACE, "--trials", "4", "--sweep", "other/s", "--storage", url], "has a study 's' already"),
        ([*SPACE, "--trials", "4", "--sweep", "t", "--storage", "oracel://x"], "study t cannot be opened"),
    ):
        assert_refused(message, run, *line)
