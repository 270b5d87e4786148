"""Runs that are interrupted and resumed have the bits, curves and results of uninterrupted ones."""

import json
import shutil

import numpy as np
import pytest

from hookline.hooks import catalogue, load
from hookline.trainer.errors import Interrupted, UnsavedError, UserError
from hookline.trainer.hook import HostHook
from hookline.trainer.run.checkpoint_files import write_checkpoint
from hookline.trainer.run.directory import locked
from hookline.trainer.run.state import changed_environment
from tests.resume.test_matrix import curves
from tests.support.command import run_small
from tests.support.refusals import assert_refused
from tests.support.resumed import PLUGIN, check_same, go_on, run_cut
from tests.support.signals import Signal

EXTRAS = {"mlflow", "wandb"}  # need packages that the tests do not
WATCHING = [name for name in sorted(catalogue()) if issubclass(load(name), HostHook) and name not in EXTRAS]
WHOLE = ("trainer.epochs=3", "trainer.report_every_steps=4", "trainer.monitor_mode=max", "hooks.advisor=null")
WHOLE += (f"+hooks=[{','.join(WATCHING)}]",)
"""With every host hook. The largest loss is the best, so that the best step lies before all cuts."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    summary = run_small("bnn", *WHOLE, run_dir=directory)
    assert summary["best"]["step"] < summary["steps"]  # the best weights must differ from the last
    for name in set(WATCHING) - {"advisor"}:
        assert summary["hooks"][name]["host_seconds"] >= 0.0
    return directory, summary


CUTS = [
    ([25], False, ()),  # between reports
    pytest.param([10, 20], True, ("trainer.placement=host",), marks=pytest.mark.full),  # its queue resumes, too
]


@pytest.mark.parametrize(("cuts", "evaluation", "more"), CUTS)
def test_resumed_run_matches_the_whole_run(whole, cuts, evaluation, more, tmp_path):
    directory = tmp_path / "run"
    summary = run_cut("bnn", *WHOLE, *more, cuts=cuts, run_dir=directory, evaluation=evaluation)
    check_same(directory, summary, *whole)
    assert summary["resumed_at"] == cuts
    assert curves(directory, "train") == curves(whole[0], "train")


def test_run_stopped_by_a_hook_takes_no_step_when_resumed(tmp_path):
    common = ("trainer.epochs=5", "trainer.monitor_mode=max", "hooks.early_stopping.patience=1", "hooks.advisor=null")
    whole = run_small("bnn", *common, run_dir=tmp_path / "whole")
    assert whole["status"] == "stopped"
    found = run_cut("bnn", *common, cuts=[whole["steps"]], run_dir=tmp_path / "run")
    assert found["resumed_at"] == [whole["steps"]]
    for name in ("status", "stop_reason", "steps", "digest", "test"):
        assert found[name] == whole[name], name


def left_at(steps, directory, *overrides):
    """Make a run that was interrupted after some steps."""
    hook = f"+hooks.signal={{_target_:tests.support.signals.Signal,steps:[{steps}]}}"
    with pytest.raises(Interrupted) as error:
        run_small("bnn", *WHOLE, PLUGIN, hook, *overrides, run_dir=directory)
    assert f"resume={directory}" in str(error.value)
    return directory


@pytest.mark.full
def test_interrupted_run_is_locked_keeps_its_config_and_completes_once(tmp_path, monkeypatch):
    refused, send = [], Signal.on_chunk_end

    def try_and_send(hook, run, report):
        with pytest.raises(UserError, match="is in use"), locked(run.directory):
            pass
        refused.append(run.step)
        send(hook, run, report)

    monkeypatch.setattr(Signal, "on_chunk_end", try_and_send)
    directory = left_at(5, tmp_path / "run")
    monkeypatch.undo()
    assert refused[-1] == 5
    with locked(directory), pytest.raises(UserError, match="is in use"):
        go_on(directory)
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["digest"], summary["test"]) == ("interrupted", 5, None, {})
    assert "SIGTERM after step 5" in summary["stop_reason"]
    path = directory / "config.yaml"
    text = path.read_text()
    rate = next(line for line in text.splitlines() if line.strip().startswith("learning_rate:"))
    path.write_text(text.replace(rate, rate.partition(":")[0] + ": 0.3"))
    line = rf"config.yaml has changed since the checkpoint of step 5 .* use init_from={directory}"
    assert_refused(line, go_on, directory)
    assert json.loads((directory / "summary.json").read_text())["status"] == "interrupted"
    path.write_text(text.replace("max_seconds: null", "max_seconds: 1000"))
    first = go_on(directory, "trainer.threads=null")
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.name != ".lock"}
    with pytest.warns(UserWarning, match="is complete: nothing is left to do"):
        assert go_on(directory) == json.loads(json.dumps(first))
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.full
def test_paused_run_resumes_and_without_a_checkpoint_starts_again(whole, tmp_path):
    directory = tmp_path / "run"
    with pytest.raises(Interrupted) as error:
        run_small("bnn", *WHOLE, "trainer.max_seconds=0.001", run_dir=directory)
    assert error.value.signal_number is None
    assert str(error.value).endswith("trainer.max_seconds=null")
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("paused", 1)
    shutil.rmtree(directory / "checkpoints")
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "split": "tr')  # as a kill in the middle of a line leaves it
    with pytest.raises(Interrupted):  # out of time again, after the same step
        go_on(directory)
    summary = go_on(directory, "trainer.max_seconds=null")
    assert summary["resumed_at"] == [0, 1]
    check_same(directory, summary, *whole)


def write_arrays(path, seed):
    generator = np.random.default_rng(seed)
    path.parent.mkdir()
    np.savez(path, x_train=generator.normal(size=(200, 4, 4)).astype(np.float32), y_train=np.arange(200) % 4)
    return path


def test_invalid_environment_file_is_reported(tmp_path):
    (tmp_path / "config.yaml").write_text("{model: {}, trainer: {}, hooks: {}}")
    other = '{"packages": {}, "cpu_flags": {"a": 1}, "plugins": {}, "python": {"a": {}}}'
    for text in ("[]", "[" * 100_000, '{"packages": [], "plugins": [1]}', other):
        (tmp_path / "environment.json").write_text(text)
        found = changed_environment(tmp_path)
        assert all("\n" not in line for line in found)
        assert len(found) > 1 if text == other else found[0].startswith("environment.json cannot be read")


@pytest.mark.full
def test_data_may_move_but_not_change_and_new_environment_is_reported(tmp_path):
    path, other = (write_arrays(tmp_path / name / "a.npz", seed) for seed, name in enumerate(("here", "other")))
    overrides = ["data=arrays", f"data.path={path}", "trainer.batch_size=32", "data.classes=4"]
    directory = left_at(5, tmp_path / "run", *overrides)
    (tmp_path / "here").rename(tmp_path / "there")
    before = json.loads((directory / "environment.json").read_text())
    before["packages"]["numpy"] = "1.0"
    (directory / "environment.json").write_text(json.dumps(before))
    moved = f"data.path={tmp_path / 'there' / 'a.npz'}"
    with (
        pytest.warns(UserWarning, match=r"resume: numpy was 1\.0 and is"),
        pytest.raises(UserError, match="The data differs from that of the run"),
    ):
        go_on(directory, f"data.path={other}")
    assert json.loads((directory / "summary.json").read_text())["status"] == "interrupted"
    with pytest.warns(UserWarning, match=r"resume: numpy was 1\.0 and is"):
        assert go_on(directory, moved)["status"] == "completed"


@pytest.mark.full
def test_run_on_a_full_disk_is_unsaved_and_finishes_later(whole, tmp_path, monkeypatch):
    written = []

    def write(path, snapshot, *arguments):
        if written:
            raise OSError(28, "No space left on device")
        write_checkpoint(path, snapshot, *arguments)
        written.append(snapshot.step)

    directory = tmp_path / "run"
    monkeypatch.setattr("hookline.trainer.run.checkpoint_files.write_checkpoint", write)
    with (
        pytest.warns(UserWarning, match="could not be written: No space"),
        pytest.raises(UnsavedError, match=rf"Not saved: .*No space left .* resume={directory}"),
    ):
        run_small("bnn", *WHOLE, "hooks.checkpoint.every_seconds=0", run_dir=directory)
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["status"], summary["test"], summary["best"]["step"]) == ("unsaved", {}, sum(written))
    monkeypatch.undo()
    finished = go_on(directory)
    assert finished["resumed_at"] == [sum(written)]
    check_same(directory, finished, *whole)
