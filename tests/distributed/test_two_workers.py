"""Two real processes on the loopback interface: they match one process, and end cleanly when one is lost."""

import json
import signal
import time

import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run.directory import locked
from hookline.trainer.run.results import read_summary
from hookline.trainer.run.session import execute
from tests.support.resumed import PLUGIN, go_on
from tests.support.workers import Launched, is_gone, kill

COMMON = (
    *("trainer.epochs=null", "trainer.batch_size=64", "trainer.report_every_steps=5", "hooks.progress=null"),
    *("hooks.final_table=null", "hooks.tensorboard=null"),
)
SMALL = ("model.units=[16,16]", "trainer.compile=off", "hooks.pictures=null", "hooks.projector=null")
"""For runs where only the mechanism matters: compiling takes longer than they do."""
GENTLE = (
    *(*COMMON, "trainer.steps=100", "optimizer.learning_rate=1e-5", "hooks.clip_gradients.limit=9"),
    "+hooks=[synchronized_batch_norm,clip_gradients]",
)
"""With a learning rate so low that rounding errors do not grow until a sign or a mask flips."""
ENDLESS = (*COMMON, *SMALL, "recipe=bnn", "trainer.steps=100000", "hooks.checkpoint.every_seconds=0")
CUT = (PLUGIN, "+hooks.signal={_target_:tests.support.signals.Signal,steps:[50]}")
SECONDS = 30.0
"""The others must end within this time."""


def poisoned(policy, *steps):
    node = f"{{_target_:tests.support.poison.Poison,place:data,steps:[{','.join(map(str, steps))}],last:true}}"
    return (PLUGIN, f"+hooks.poison={node}", f"hooks.nan_guard.policy={policy}")


def losses(directory, name="loss/total"):
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line[name]) for line in lines if line["split"] == "train"]


def check_same_run(directory, whole):
    found, expected = losses(directory), losses(whole)
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert len(found) == 20
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], abs=1e-5)
    measured, norms = (dict(losses(each, "clip_gradients/before")) for each in (directory, whole))
    assert measured == pytest.approx(norms, rel=1e-3)


def launch(*overrides, log, code=0, workers=2):
    run = Launched(*overrides, log=log, workers=workers)
    assert run.end(600.0) == code, run.text
    return run.text


@pytest.mark.filterwarnings("ignore:The hook .bnn_rounding.. 100 steps:UserWarning")  # gentle on purpose
def test_two_workers_resumed_as_one_process_match_one_process(tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    common = ("recipe=bnn", *GENTLE, *SMALL, *poisoned("skip", 7, 73))
    text = launch(*common, CUT[1], f"run_dir={run}", log=tmp_path / "log", code=143)
    assert "Ended by SIGTERM after step 50 of 100. Resume with" in text
    assert "[worker 1] Ended with worker 0, which has saved the run." in text
    assert "Traceback" not in text
    with (
        pytest.warns(UserWarning, match="resume: (intra_op_threads|replicas) was"),
        pytest.warns(UserWarning, match="It is skipped, . of 10"),
    ):
        found = go_on(run, "trainer.strategy=none", "trainer.threads=null")
    (job,) = preflight(parse_command([*common, f"run_dir={whole}"]))
    with pytest.warns(UserWarning, match="It is skipped, . of 10"):
        expected = execute(job.config, job.recipe, job.overrides).summary
    check_same_run(run, whole)
    assert found["hooks"]["nan_guard"]["skipped"] == expected["hooks"]["nan_guard"]["skipped"] == [7, 73]
    assert {"status", "workers"} & read_summary(run).keys() == {"status"}


@pytest.mark.long
def test_four_and_eight_workers_match_two(tmp_path):
    for workers in (2, 4, 8):
        run = tmp_path / str(workers)
        launch("recipe=bnn", *GENTLE, *SMALL, f"run_dir={run}", log=tmp_path / "log", workers=workers)
        check_same_run(run, tmp_path / "2")
        assert read_summary(run)["workers"] == {"count": workers, "equal": True}


def endless(directory):
    run = Launched(*ENDLESS, f"run_dir={directory}", log=directory.with_suffix(".log"))
    metrics = directory / "metrics.jsonl"
    run.wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 10)
    return run, run.workers()


def check_sound(run, directory, workers, since):
    """Check that all have ended in time, without a traceback, and that another process can resume the run."""
    run.end(SECONDS)
    assert time.monotonic() - since < SECONDS
    assert all(is_gone(each) for each in workers)
    assert "Traceback" not in run.text, run.text
    with locked(directory):
        pass


def test_killed_worker_ends_the_others_with_one_line(tmp_path):
    run, workers = endless(directory := tmp_path / "run")
    check_sound(run, directory, workers, kill(workers[1]))
    assert run.process.returncode == 128 + signal.SIGKILL
    lines = [line for line in run.text.splitlines() if line.startswith("Error")]
    (line,) = lines
    assert line.startswith("Error: Worker 1 is gone")
    assert f"resume={directory}" in line
    summary = read_summary(directory)
    assert (summary["status"], summary["stop_reason"]) == ("failed", line.removeprefix("Error: "))


@pytest.mark.long
def test_killed_chief_ends_the_others_with_an_error(tmp_path):
    run, workers = endless(tmp_path / "run")
    check_sound(run, tmp_path / "run", workers, kill(workers[0]))
    assert "[worker 1] Error: Worker 0 is gone" in run.text


@pytest.mark.long
def test_frozen_worker_is_detected_by_its_heartbeat(tmp_path):
    run, workers = endless(tmp_path / "run")
    stopped = kill(workers[1], signal.SIGSTOP)
    run.wait_for(lambda: is_gone(workers[0]), SECONDS)
    assert time.monotonic() - stopped < SECONDS
    assert "Error: Worker 1 is gone, or no longer answering" in run.text
    run.end(60.0)  # the launcher ends the frozen worker
    assert all(is_gone(each) for each in workers)


@pytest.mark.long
def test_signal_to_one_worker_saves_and_ends_all(tmp_path):
    run, workers = endless(directory := tmp_path / "run")
    check_sound(run, directory, workers, kill(workers[1], signal.SIGTERM))
    assert run.process.returncode == 128 + signal.SIGTERM
    summary = read_summary(directory)
    assert summary["status"] == "interrupted"
    assert summary["stop_reason"].startswith(f"Ended by SIGTERM on worker 1 after step {summary['steps']} of")
    assert (directory / "checkpoints" / f"step_{summary['steps']:08d}").is_dir()


@pytest.mark.long
def test_killed_run_of_two_workers_resumes_bit_for_bit(tmp_path):
    directory, whole = tmp_path / "run", tmp_path / "whole"
    saving = ("hooks.checkpoint.every_epochs=0.5", "hooks.checkpoint.every_seconds=0")
    common = ("recipe=bnn", *COMMON, *SMALL, *saving, "trainer.steps=2000", "trainer.evaluate_every_epochs=20")
    run = Launched(*common, f"run_dir={directory}", log=tmp_path / "log")
    run.wait_for(lambda: len(list((directory / "checkpoints").glob("step_*"))) > 1)
    workers = run.workers()
    check_sound(run, directory, workers, kill(workers[1]))
    assert read_summary(directory)["steps"] < 2000
    launch(f"resume={directory}", log=tmp_path / "log")
    launch(*common, f"run_dir={whole}", log=tmp_path / "log")
    found, expected = read_summary(directory), read_summary(whole)
    assert 0 < found["resumed_at"][0] < 2000
    assert found["workers"] == expected["workers"] == {"count": 2, "equal": True}
    assert found["digest"] == expected["digest"]
    assert losses(directory) == losses(whole)
