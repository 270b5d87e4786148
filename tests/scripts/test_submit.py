"""The jobs of a sweep as cluster tasks: what is submitted, how a task ends and is resumed."""

import contextlib
import fcntl
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hookline.hooks.monitors.study import open_storage
from hookline.scripts.submit import RESOURCES, main, make_executor, parse, submit
from hookline.scripts.sweep import run
from hookline.scripts.sweep.command import SweepTask
from hookline.scripts.sweep.record import read_sweep
from tests.support.fake_task import FAKE, FakeTask
from tests.support.refusals import assert_one_line, assert_refused
from tests.support.workers import wait_until

LOCAL = ["--cluster", "local"]
RATE = "optimizer.learning_rate=tag(log, interval(1e-4, 1e-1))"


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a submission adds to it
    return tmp_path


@pytest.fixture
def submitit() -> Any:
    """Return submitit, an optional dependency."""
    return pytest.importorskip("submitit")


def statuses() -> list[str]:
    return [job["status"] for job in json.loads(Path("s/sweep.json").read_text())["jobs"]]


class Executor:
    """A cluster that does nothing."""

    def batch(self) -> Any:
        return contextlib.nullcontext()

    def submit(self, task: SweepTask) -> Any:
        return type("Job", (), {"job_id": "77_1"})()


@pytest.fixture
def prepared(monkeypatch):
    """Return a function that writes a sweep to disk without running its jobs."""
    monkeypatch.setattr("hookline.scripts.submit.make_executor", lambda options, directory: Executor())
    monkeypatch.setattr(run, "TRAIN", FAKE)
    return lambda *given: submit(parse(["--sweep", "s", *given]))


def test_missing_jobs_are_submitted_with_their_cores_as_threads(place, prepared, capsys):
    prepared("recipe=bnn", "seed=1,13")
    assert statuses() == ["waiting", "waiting"]
    assert read_sweep(Path("s")).threads == yaml.safe_load(RESOURCES.read_text())["cpus_per_task"] == 4
    assert [SweepTask(place / "s", number, place)() for number in (2, 1)] == [2, 0]
    assert "trainer.threads=4" in Path("s/01.log").read_text()
    assert statuses() == ["completed", "failed"]
    capsys.readouterr()
    prepared("recipe=bnn", "seed=1,13,2")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(".")[0] for line in lines[:2]] == [
        "Job 2: 77_1, recipe=bnn seed=13",
        "Job 3: 77_1, recipe=bnn seed=2",
    ]
    assert lines[2].startswith("2 of 3 jobs submitted")


def test_task_started_twice_runs_its_job_once(place, prepared, capsys):
    prepared("recipe=bnn", "seed=1")
    task = SweepTask(place / "s", 1, place)
    with (place / "s/.01.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert task() == 0
    assert "is already running in another task" in capsys.readouterr().out
    assert not Path("s/01.log").exists()
    assert task() == task() == 0
    assert Path("s/01.log").read_text().count("$ python") == 1


def trials() -> list[Any]:
    optuna = pytest.importorskip("optuna")
    return optuna.load_study(study_name="s", storage=open_storage(str(Path("s/study.journal").absolute()))).trials


def test_workers_share_the_trials_of_a_search(place, prepared, capsys):
    assert len(prepared("recipe=bnn", "seed=1,2,3", RATE, "--trials", "3", "--jobs", "2")) == 2
    assert capsys.readouterr().out.splitlines()[:3] == ["Worker 77_1", "Worker 77_1", "2 workers submitted"]
    assert len(prepared()) == 3  # 16 are allowed, but no more than there are trials
    assert [SweepTask(place / "s", None, place)() for _ in range(2)] == [0, 0]
    assert [trial.state.name for trial in trials()] == ["COMPLETE"] * 3
    assert "trainer.threads=4" in Path("s/03.log").read_text()
    assert prepared() == []


def running(job, condition):
    """Wait until a condition holds, while the job runs."""
    wait_until(lambda: job.state != "RUNNING" or condition(), 120)
    assert job.state == "RUNNING", job.stderr()


WORKERS = ["trainer.strategy=multi_worker", "--resources", "r.yaml"]


@pytest.mark.parametrize("given", [[RATE, "--trials", "1"], WORKERS], ids=["search", "workers"])
def test_task_that_runs_out_of_time_saves_and_is_resumed(given, place, submitit, monkeypatch):
    monkeypatch.setattr("hookline.scripts.submit.SweepTask", FakeTask)
    Path("r.yaml").write_text("tasks_per_node: 2")
    logs = [Path("s/01.log"), Path("s/01.1.log")][: 2 if given == WORKERS else 1]
    (job,) = submit(parse(["recipe=bnn", "seed=15", *given, "--sweep", "s", *LOCAL]))
    running(job, lambda: all(log.exists() and "waiting" in log.read_text() for log in logs))
    for log in logs:
        os.kill(int(re.findall(r"^parent (\d+)$", log.read_text(), re.MULTILINE)[0]), signal.SIGUSR2)  # as SLURM does
    assert job.results() == [0] * len(logs)
    assert "heard 15\n" in logs[0].read_text()  # submitit asks only the first task to save
    assert "resume=" in logs[0].read_text()
    ended = [trial.state.name.lower() for trial in trials()] if "--trials" in given else statuses()
    assert ended in (["complete"], ["completed"])
    assert submit(parse(["--sweep", "s", *LOCAL])) == []


def test_resources_of_the_file_are_passed_to_slurm(place, submitit, monkeypatch):
    from submitit.slurm import slurm

    monkeypatch.setattr(slurm.SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    executor = make_executor(parse(["recipe=bnn"]), place / "submitit")._executor
    text = slurm._make_sbatch_string(command="true", folder=place, map_count=40, **executor.parameters)
    for line in ("--time=240", "--cpus-per-task=4", "--mem=16GB", "--array=0-39%16", "--signal=USR2@120"):
        assert f"#SBATCH {line}\n" in text
    assert executor.max_num_timeout == 20


def test_mistake_is_reported_in_one_line_and_nothing_is_written(place, submitit, monkeypatch, capsys):
    for content in ("cpus: 4", "[1, 2]", "{", "comment: 2024-13-45", "nodes: null", "timeout_min: -5"):
        Path("r.yaml").write_text(content)
        assert_one_line(
            main, ["recipe=bnn", "seed=1,2", "--sweep", "s", "--resources", "r.yaml", *LOCAL], "--resources", capsys
        )
    Path("r.yaml").write_text("tasks_per_node: 3")
    workers = "trainer.strategy=multi_worker trainer.batch_size=64"
    for line, word in (
        ("recipe=bnn --jobs 3", "slurm_array_parallelism"),
        ("recipe=bnn --resources r.yaml --cluster local", "make 3 tasks"),
        (f"recipe=bnn {workers} --resources r.yaml --cluster local", "3 workers"),
        ("recipe=bnn --cluster slrum", "'slurm'"),
    ):
        assert_one_line(main, line.split(), word, capsys)
    assert [path.name for path in place.iterdir()] == ["r.yaml"]
    monkeypatch.setenv("PATH", "")
    assert_refused("SLURM", submit, parse(["recipe=bnn"]))
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert_refused("needs the package submitit", submit, parse(["recipe=bnn", *LOCAL]))
