"""`hookline.run` is the command line as a function, and `Trainer.fit` trains to the same bits."""

import json
import math

import numpy as np
import pytest

import hookline
from hookline.running import read_history
from hookline.trainer.errors import UserError
from hookline.trainer.run.session import open_store
from tests.support.door import by_command_line, by_python, generators_kept, held_out, techniques
from tests.support.refusals import assert_refused, refusal

QUIET = ("hooks.tensorboard=null", "hooks.pictures=null", "hooks.projector=null", "hooks.progress=null")
WORST = ("trainer.monitor_mode=max", "hooks.advisor=null")  # the highest loss is the best, so the best is not the last
SHORT = (*WORST, "recipe=baseline", "trainer.epochs=2", "trainer.compile=off", "model.units=[16]", *QUIET)


def test_mistake_raises_a_one_line_value_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, said in (
        (["recipe=bn"], "Did you mean 'bnn'?"),
        (["-m", "recipe=bnn,baseline"], "takes no display or sweep flags"),
        (["--cfg", "job", "recipe=bnn"], "'--cfg' received"),
        (["recipe=bnn,baseline"], "lists several values"),
        ([], "No recipe was given."),
    ):
        assert said in refusal(hookline.run, *arguments)
    assert issubclass(UserError, ValueError)
    assert not list(tmp_path.iterdir())


def test_history_fills_missing_values_with_nan(tmp_path):
    rows = [
        {"step": 1, "split": "train", "loss": 2.0},
        {"step": 2, "split": "train", "loss": None, "rate": 0.5},
        {"step": 2, "split": "validation", "loss": 3.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = {"step": [1, 2], "loss": [2.0, math.nan], "rate": [math.nan, 0.5]}
    np.testing.assert_equal(read_history(tmp_path), {"validation": {"step": [2], "loss": [3.0]}, "train": train})
    assert read_history(tmp_path / "nothing") == {}


@pytest.mark.full
def test_run_returns_what_is_on_disk_and_resumes(tmp_path, monkeypatch):
    def taken(directory, digest):
        (directory / "of_another_run").mkdir(parents=True)
        return open_store(directory, digest)

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("hookline.trainer.run.session.open_store", taken)
        result = hookline.run(*SHORT)
    assert result.directory.match("runs/baseline/*_1")
    assert result.summary == json.loads((result.directory / "summary.json").read_text())
    assert (result.directory / "checkpoints").is_dir()
    assert len(result.history["validation"]["step"]) == len(result.history["validation"]["loss/cross_entropy"]) >= 2
    assert_refused("plugins=", hookline.load, result.directory, hooks=["ema"])
    (network,) = result.networks.values()
    assert network.predict(np.zeros((3, *network.input_shape[1:]), np.float32), verbose=0).shape == (3, 10)
    assert repr(result) == f"RunResult(completed after 40 steps, networks: model, {result.directory})"

    with generators_kept():
        assert hookline.run(*SHORT, "trainer.max_seconds=0", "run_dir=run").summary["status"] == "paused"
    ended = hookline.run("resume=run", "trainer.max_seconds=null")
    assert ended.summary["digest"] == result.summary["digest"]
    with pytest.warns(UserWarning, match="nothing is left to do"), generators_kept():
        again = hookline.run("resume=run")
    with generators_kept():
        loaded = hookline.load("run")
    assert_refused("trained from the command line", loaded.prepare, np.zeros((4, 8, 8, 1)), np.zeros(4))
    assert (again.summary["digest"], again.history) == (ended.summary["digest"], ended.history)
    for name, network in ended.networks.items():
        np.testing.assert_equal(again.networks[name].get_weights(), network.get_weights())


TOGETHER = {
    ("bnn_rounding", "prune"): (),
    ("center_loss", "clip_gradients", "ema", "frozen_mask"): pytest.mark.full,
}


def cases():
    others = set(techniques()) - {name for names in TOGETHER for name in names}
    every = dict(TOGETHER)
    every |= {(name,): pytest.mark.long for name in sorted(others)}
    return [pytest.param(each, id="+".join(each), marks=tier) for each, tier in every.items()]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("hooks", cases())
def test_digest_matches_the_command_line(hooks, tmp_path):
    try:
        expected = by_command_line(*hooks, folder=tmp_path)
    except UserError:
        with pytest.raises(UserError):
            by_python(*hooks)
        return
    trainer, history = by_python(*hooks)
    assert history.summary["digest"] == expected["digest"]
    assert history.history["val_accuracy"][-1] == pytest.approx(trainer.evaluate(*held_out())["accuracy"])
    assert history.summary["final"]["loss/total"] == expected["final"]["loss/total"]
    inputs, _ = held_out()
    found = trainer.predict(inputs)
    assert (found.dtype, found.shape) == (np.float32, (40, 3))
    np.testing.assert_allclose(found, np.asarray(trainer.model(inputs)), rtol=0, atol=1e-5)
