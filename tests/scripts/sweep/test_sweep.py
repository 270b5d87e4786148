"""A sweep from its command line: what runs, what is skipped on a rerun, what is printed."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.scripts.sweep import record
from hookline.scripts.sweep.open import added_threads, job_arguments
from hookline.scripts.sweep.record import Sweep, SweepJob
from hookline.trainer.config.preflight import Job
from hookline.trainer.errors import UserError
from hookline.trainer.run.directory import locked
from tests.scripts.sweep.conftest import Run
from tests.support.refusals import assert_refused

Recorded = Callable[[str], list[dict[str, Any]]]


def statuses(jobs: list[dict[str, Any]]) -> list[str]:
    return [job["status"] for job in jobs]


def started(lines: list[str]) -> list[str]:
    return sorted(line.split()[2] for line in lines if re.match(r"\[\d+/\d+\] (started|resumed)", line))


@pytest.mark.full
def test_every_job_runs_as_if_typed_on_the_command_line(run: Run, recorded: Recorded) -> None:
    code, lines = run("recipe=bnn", "seed=1,2", "+hooks=ema", "--sweep", "all", "--config-name", "train")
    assert code == 0
    jobs = recorded("all")
    assert [job["overrides"] for job in jobs] == [["recipe=bnn", f"seed={seed}", "+hooks=ema"] for seed in (1, 2)]
    assert [(job["number"], job["run"], job["status"], job["exit_code"]) for job in jobs] == [
        (1, "01_seed-1", "completed", 0),
        (2, "02_seed-2", "completed", 0),
    ]
    assert all(0 < job["seconds"] < 60 for job in jobs)
    typed = "recipe=bnn seed=1 +hooks=ema run_dir=all/01_seed-1 trainer.threads=2 --config-name train"
    log = Path("all/01.log").read_text().splitlines()
    assert log[:2] == [f"$ python fake_job.py {typed}", f"arguments {typed.split()}"]
    assert lines[1].startswith("2 to run, 2 at a time, 2 threads each")
    assert any(re.fullmatch(r"\[2/2\] completed   seed=2: accuracy 0.2000, \d+\.\d s", line) for line in lines)
    assert run("recipe=bnn", "seed=1")[0] == run("recipe=bnn", "seed=1")[0] == 0  # named by the time
    _, second = sorted(Path("runs/sweeps").iterdir())
    assert (second / "01" / "summary.json").exists()


@pytest.mark.full
def test_failing_job_is_reported_at_once_and_does_not_stop_the_rest(run: Run, recorded: Recorded) -> None:
    code, lines = run("recipe=bnn", "seed=13,1,14,19", "--sweep", "s", "--jobs", "1")
    assert code == 137
    assert statuses(recorded("s")) == ["failed", "completed", "failed", "failed"]
    assert [job["exit_code"] for job in recorded("s")] == [2, 0, 0, 137]
    failure = next(line for line in lines if "Error: " in line)
    assert "seed=13: Error: The data is not there." in failure
    assert lines.index(failure) < lines.index("[2/4] started     seed=1")
    assert any("seed=14: it left no summary.json" in line for line in lines)
    assert "Run what is missing: python train.py -m --sweep s" in lines


@pytest.mark.full
def test_rerun_runs_only_missing_jobs(run: Run, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("recipe=bnn", "seed=1,17,18", "--sweep", "s")[0] == 2
    assert statuses(recorded("s")) == ["completed", "failed", "interrupted"]
    before = Path("s/01.log").read_bytes()
    monkeypatch.setenv("FIXED", "1")
    code, lines = run("--sweep", "s", "--jobs", "1")
    assert code == 0
    assert lines[2].startswith("2 to run, 1 at a time, 1 thread each")  # as before: the bits of results depend on it
    assert "[2/3] started     seed=17" in lines
    assert "[3/3] resumed     seed=18" in lines
    assert Path("s/01.log").read_bytes() == before
    assert [job["run"] for job in recorded("s")] == ["01_seed-1", "02_seed-17_try2", "03_seed-18"]
    assert "arguments ['resume=s/03_seed-18']" in Path("s/03.log").read_text()
    code, lines = run("recipe=bnn", "seed=1,17,18", "--sweep", "s")
    assert (code, started(lines)) == (0, [])


@pytest.mark.full
def test_killed_run_resumes_and_deleted_run_starts_over(run: Run, recorded: Recorded) -> None:
    given = ["recipe=bnn", "seed=19,2", "plugins=[tests]", "--sweep", "s"]
    assert run(*given)[0] == 137
    content = json.loads(Path("s/sweep.json").read_text())
    content["jobs"][0] |= {"status": "running", "seconds": 1000}  # as a killed sweep leaves it
    Path("s/sweep.json").write_text(json.dumps(content))
    for path in Path("s/02_seed-2").iterdir():
        path.unlink()
    Path("s/02_seed-2").rmdir()
    _, lines = run(*given)
    assert started(lines) == ["seed=19", "seed=2"]
    assert "arguments ['resume=s/01_seed-19', 'plugins=[tests]']" in Path("s/01.log").read_text()
    assert recorded("s")[0]["seconds"] > 1000
    assert recorded("s")[1]["run"] == "02_seed-2"  # its deleted directory is used again


@pytest.mark.full
def test_more_jobs_extend_a_sweep_and_other_jobs_are_refused(run: Run, recorded: Recorded) -> None:
    run("recipe=bnn", "seed=1,2", "--sweep", "s")
    code, lines = run("seed=2,3,1", "recipe=bnn", "--sweep", "s")
    assert code == 0
    assert started(lines) == ["seed=3"]
    assert recorded("s")[2]["overrides"] == ["seed=3", "recipe=bnn"]
    before = Path("s/sweep.json").read_bytes()
    assert_refused("^s holds another sweep", run, "recipe=bnn", "seed=2,3", "--sweep", "s")
    with pytest.raises(UserError, match="s was begun with other flags: none"):
        run("recipe=bnn", "seed=1,2,3", "--sweep", "s", "--config-name", "train")
    assert_refused("s holds another sweep", run, "--sweep", "s", "--trials", "3")
    assert Path("s/sweep.json").read_bytes() == before


@pytest.mark.full
def test_mistakes_are_found_before_anything_is_written(run: Run) -> None:
    Path("file").touch()
    Path("broken").mkdir()
    Path("broken/sweep.json").write_text(json.dumps({"version": 1, "jobs": [{"run": 3}]}))
    before = sorted(Path().rglob("*"))
    for line, message in (
        ("recipe=bnn,baseline trainer.strategy=multi_worker", "multi_worker"),
        ("recipe=bnn run_dir=a,b", "'run_dir=a,b' .*--sweep <directory>"),
        ("--sweep none", "none is not a sweep yet"),
        ("recipe=bnn --sweep file", "cannot be written"),
        ("recipe=bnn --sweep .", "no sweep.json"),
        ("recipe=bnn --sweep broken", "broken/sweep.json cannot be read as a sweep"),
    ):
        assert_refused(message, run, *line.split())
        assert sorted(Path().rglob("*")) == before


def test_record_with_plugins_config_dir_or_outside_runs_is_refused(run: Run) -> None:
    run("recipe=bnn", "seed=17", "--sweep", "s")
    path = Path("s/sweep.json")
    content = path.read_text()
    for change, said in (
        ({"overrides": ["recipe=bnn", "plugins=[pip]"]}, r"s records plugins=\[pip\], which --sweep alone does not"),
        ({"overrides": ["recipe=bnn", "++plugins=[pip]"]}, r"s records \+\+plugins"),
        ({"run": "../elsewhere"}, "s records the run ../elsewhere, outside of it"),
        ({"run": "a/../../b"}, "s records the run a/../../b, outside of it"),
        ({"run": "/tmp/elsewhere"}, "s records the run /tmp/elsewhere, outside of it"),
        ({}, "s records --config-dir"),
    ):
        changed = json.loads(content)
        changed["jobs"][0] |= change
        changed["flags"] = [] if change else ["--config-dir", "theirs"]
        path.write_text(json.dumps(changed))
        assert_refused(said, run, "--sweep", "s")


@pytest.mark.full
def test_sweep_is_run_by_one_process_at_a_time(run: Run) -> None:
    run("recipe=bnn", "seed=1", "--sweep", "s")
    with locked(Path("s")), pytest.raises(UserError, match=f"s is in use: the process {os.getpid()}"):
        run("--sweep", "s")


@pytest.mark.full
def test_jobs_share_the_cores_and_each_gets_a_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "usable_gpus", lambda: ("3", "GPU-b"))
    _, lines = run("recipe=bnn", "seed=1,2", "trainer.threads=null,3", "--sweep", "s")
    assert "4 to run, 2 at a time, 2 threads each" in lines[1]
    logs = {path.name: path.read_text() for path in Path("s").glob("*.log")}
    assert "$ CUDA_VISIBLE_DEVICES=3 python fake_job.py recipe=bnn seed=1" in logs["01.log"]
    assert {re.search("gpus (.*)", log)[1] for log in logs.values()} == {"3", "GPU-b"}  # type: ignore[index]
    assert not any("trainer.threads=2" in log for log in logs.values())  # the user sets it


@pytest.mark.parametrize(("status", "resumes"), [("unsaved", True), ("interrupted", True), ("failed", False)])
def test_unsaved_or_interrupted_run_is_resumed_but_failed_is_not(status: str, resumes: bool, tmp_path: Path) -> None:
    run = tmp_path / "0"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "summary.json").write_text(json.dumps({"status": status}))
    sweep = Sweep(tmp_path)
    arguments = job_arguments(sweep, SweepJob(0, ["recipe=bnn"], "0"), None)
    assert arguments[0].startswith("resume=") == resumes


def test_threads_set_by_recipe_or_user_are_kept() -> None:
    sweep = Sweep(Path(), threads=2)
    assert added_threads(sweep, Job({"trainer": {"threads": None}}, "a", ["recipe=a"])) == 2
    assert added_threads(sweep, Job({"trainer": {"threads": 3}}, "a", ["recipe=a"])) is None  # the recipe sets it
    assert added_threads(sweep, Job({"trainer": {"threads": None}}, "a", ["trainer.threads=null"])) is None
