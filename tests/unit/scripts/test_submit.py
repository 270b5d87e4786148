"""The jobs of a sweep as tasks of a cluster: what is submitted, how a task ends and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.submit import RESOURCES, main, make_executor, parse, submit
from tests.unit.sweep.conftest import FAKE
from trainer.errors import UserError
from trainer.sweep.record import read_sweep
from trainer.sweep.run import SweepRun
from trainer.sweep.task import SweepTask

LOCAL = ["--cluster", "local"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a submission adds to it
    return tmp_path


@pytest.fixture
def submitit() -> Any:
    """Submitit, which is an extra."""
    return pytest.importorskip("submitit")


def statuses(directory: str = "s") -> list[str]:
    return [job["status"] for job in json.loads(Path(directory, "sweep.json").read_text())["jobs"]]


def prepared(place: Path, seeds: str) -> None:
    """A sweep on disk, none of whose jobs has run, submitted to a cluster that does nothing."""

    class Executor:
        def batch(self) -> Any:
            import contextlib

            return contextlib.nullcontext()

        def submit(self, task: SweepTask) -> Any:
            return type("Job", (), {"job_id": "77_1"})()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.submit.make_executor", lambda options, directory: Executor())
        submit(parse(["recipe=bnn", f"seed={seeds}", "--sweep", "s"]), FAKE)


def test_every_missing_job_is_submitted_and_gets_its_cores_as_threads(place: Path, capsys: Any) -> None:
    prepared(place, "1,13")
    assert statuses() == ["waiting", "waiting"]
    assert read_sweep(Path("s")).threads == yaml.safe_load(RESOURCES.read_text())["cpus_per_task"] == 4
    assert SweepTask(place / "s", 2, place, FAKE)() == 2
    assert SweepTask(place / "s", 1, place, FAKE)() == 0
    assert "trainer.threads=4" in Path("s/01.log").read_text()
    assert statuses() == ["completed", "failed"]
    capsys.readouterr()
    prepared(place, "1,13,2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Job 2: 77_1, recipe=bnn seed=13. It prints to {place}/s/02.log"
    assert lines[1].startswith("Job 3: 77_1, recipe=bnn seed=2.")
    assert lines[2] == f"2 of 3 jobs submitted; how they stand: {place}/s/sweep.json"


def test_a_task_that_comes_twice_makes_nothing_twice(place: Path, capsys: Any) -> None:
    import fcntl

    prepared(place, "1")
    task = SweepTask(place / "s", 1, place, FAKE)
    with (place / "s/.01.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert task() == 0
    assert "Job 1 runs already, by another task." in capsys.readouterr().out
    assert not Path("s/01.log").exists()
    assert task() == task() == 0
    assert "Job 1 is complete: nothing is left to do." in capsys.readouterr().out
    assert Path("s/01.log").read_text().count("$ python") == 1


def test_tasks_write_the_record_side_by_side(place: Path) -> None:
    prepared(place, "1,2")
    first, second = read_sweep(Path("s")), read_sweep(Path("s"))
    for sweep, number in ((first, 0), (second, 1)):
        run = SweepRun(sweep, None, None, None, None, None)  # type: ignore[arg-type]  # only its record is used
        run._change(sweep.jobs[number], "completed", 0)
    assert statuses() == ["completed", "completed"]


def test_a_task_whose_time_is_over_saves_and_goes_on_when_it_is_queued_again(place: Path, submitit: Any) -> None:
    (job,) = submit(parse(["recipe=bnn", "seed=15", "--sweep", "s", *LOCAL]), FAKE)
    deadline = time.monotonic() + 60
    while not Path("s/01/ready").exists():
        assert time.monotonic() < deadline
        assert job.state == "RUNNING", job.stderr()
        time.sleep(0.05)
    task = int(re.findall(r"^parent (\d+)$", Path("s/01.log").read_text(), re.MULTILINE)[0])
    os.kill(task, signal.SIGUSR2)  # as SLURM does some time before the end
    assert job.result() == 0
    log = Path("s/01.log").read_text()
    assert "heard 15\n" in log
    assert "resume=" in log
    assert statuses() == ["completed"]
    assert submit(parse(["--sweep", "s", *LOCAL]), FAKE) == []


def test_slurm_gets_the_resources_of_the_file(place: Path, submitit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from submitit.slurm import slurm

    monkeypatch.setattr(slurm.SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    executor = make_executor(parse(["recipe=bnn"]), place / "submitit")._executor
    text = slurm._make_sbatch_string(command="true", folder=place, map_count=40, **executor.parameters)
    for line in ("--time=240", "--cpus-per-task=4", "--mem=16GB", "--array=0-39%16", "--signal=USR2@120"):
        assert f"#SBATCH {line}\n" in text
    assert executor.max_num_timeout == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cpus: 4", "A value in --resources is wrong: "),
        ("timeout_min: long", "A value in --resources is wrong: "),
        ("[1, 2]", "--resources r.yaml holds no names with values."),
        ("{", "--resources r.yaml cannot be read."),
        ("comment: 2024-13-45", "--resources r.yaml cannot be read."),
        (None, "--resources r.yaml cannot be read."),
    ],
)
def test_wrong_resources_are_one_line(
    place: Path, submitit: Any, capsys: Any, content: str | None, message: str
) -> None:
    if content is not None:
        Path("r.yaml").write_text(content)
    assert main(["recipe=bnn", "seed=1,2", "--sweep", "s", "--resources", "r.yaml", *LOCAL]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("s").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("recipe=bnn --trials 3", "--trials received. Expected a grid"),
        ("recipe=bnn --jobs 3", "--jobs 3 received. Expected slurm_array_parallelism"),
        ("recipe=bnn --cluster slrum", "Unknown cluster 'slrum'. Did you mean 'slurm'?"),
        ("recipe=bnn --resources", "--resources has no value."),
        ("recipe=bnnn", "Unknown recipe 'bnnn'. Did you mean 'bnn'?"),
    ],
)
def test_mistakes_are_one_line(place: Path, capsys: Any, line: str, message: str) -> None:
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(place.iterdir()) == []


def test_without_submitit_or_slurm_one_line_says_what_is_missing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(
        UserError, match=r"This needs submitit. Expected it installed: python -m pip install '.\[slurm\]', in a clone"
    ):
        submit(parse(["recipe=bnn", *LOCAL]))


def test_without_slurm_one_line_says_so(place: Path, submitit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="Expected a node of a SLURM cluster, or --cluster local to try it here."):
        submit(parse(["recipe=bnn"]))
