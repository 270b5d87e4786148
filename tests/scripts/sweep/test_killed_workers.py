"""One study and several workers, killed at random: every trial runs once, and the best one can be reproduced."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hookline.hooks.monitors.study import open_storage
from hookline.scripts.submit import parse, submit
from hookline.scripts.sweep.run import TRAIN
from hookline.trainer.run.results import read_summary
from tests.support.workers import children

SPACE = ("optimizer.learning_rate=tag(log,interval(1e-4,1e-1))", "schedule=constant,cosine")
RUN = ("recipe=baseline", "+hooks=trial_pruner", "model.units=[8]", "trainer.epochs=16")


def workers(submitted: list[Any]) -> list[int]:
    """Return the processes of submitit's running jobs, each of which a process of submitit watches."""
    return [worker for job in submitted if job._process.poll() is None for worker in children(job._process.pid)]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.long
def test_every_trial_runs_once_when_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("submitit")
    trials, at_once, kills, between = 40, 4, 12, (4, 24)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a submission adds to it
    Path("r.yaml").write_text("{cpus_per_task: 1, timeout_min: 5}")  # workers run out of time as well
    local = ["--sweep", "s", "--resources", "r.yaml", "--cluster", "local", "--jobs"]
    submitted = submit(parse([*RUN, *SPACE, "--trials", str(trials), *local, str(at_once)]))
    study = optuna.load_study(study_name="s", storage=open_storage(str(Path("s/study.journal").absolute())))
    seed = random.randrange(1000)
    Path("seed.txt").write_text(str(seed))  # draws the times of the kills; kept to repeat them
    drawn, killed, due = random.Random(seed), 0, None
    deadline = time.monotonic() + 100 * trials
    while sum(trial.state.is_finished() for trial in study.trials) < trials:
        assert time.monotonic() < deadline
        if due is None and any(trial.intermediate_values for trial in study.trials):
            due = time.monotonic() + drawn.uniform(*between)
        if killed < kills and due is not None and time.monotonic() > due and (running := workers(submitted)):
            worker = drawn.choice(running)
            trials_of_it = children(worker) if drawn.random() < 0.5 else []  # otherwise they notice it themselves
            for pid in (worker, *trials_of_it):
                os.kill(pid, signal.SIGKILL)
            killed, due = killed + 1, time.monotonic() + drawn.uniform(*between)
        alive = sum(job._process.poll() is None for job in submitted)
        if alive < at_once and killed:
            submitted += submit(parse([*local, str(at_once - alive)]))
        time.sleep(0.2)
    assert killed == kills
    for job in submitted:
        job._process.wait(60)
    states = Counter(trial.state.name for trial in study.trials)
    assert len(study.trials) == states["COMPLETE"] + states["PRUNED"] == trials
    assert [trial.number for trial in study.trials] == list(range(trials))
    runs = {path.parent.name: read_summary(path.parent) for path in Path("s").glob("*/config.yaml")}
    assert sorted(runs) == sorted(trial.user_attrs["run"] for trial in study.trials)
    for trial in study.trials:
        summary, is_pruned = runs[trial.user_attrs["run"]], trial.state.name == "PRUNED"
        assert (summary["stop_reason"] or "").startswith("pruned") == is_pruned
        assert trial.value == (trial.intermediate_values[trial.last_step] if is_pruned else summary["best"]["value"])
        lines = Path("s", trial.user_attrs["run"], "metrics.jsonl").read_text().splitlines()
        steps = [each["step"] for each in map(json.loads, lines) if each["split"] == "validation"]
        assert len(steps) == len(set(steps))  # each evaluation once, even after a kill
        assert set(steps) <= set(trial.intermediate_values)  # before a kill it may have passed the step of its pruning
    best = study.best_trial
    overrides = [*RUN, *(f"{key}={value}" for key, value in best.params.items()), "trainer.threads=1", "run_dir=again"]
    subprocess.run([sys.executable, str(TRAIN), *overrides], check=True)  # a new process: one thread, as for the job
    again, first = read_summary(Path("again")), runs[best.user_attrs["run"]]
    assert again["best"] == first["best"]
    assert again["digest"] == first["digest"]
