"""`hookline.run`: the command line as a function."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import hookline
from hookline import train
from hookline.running import read_history
from hookline.trainer.errors import UserError

QUIET = ("hooks.tensorboard=null", "hooks.pictures=null", "hooks.projector=null", "hooks.progress=null")
SHORT = ("recipe=baseline", "trainer.epochs=2", "trainer.compile=off", "model.units=[16]", *QUIET)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["recipe=bn"], "Did you mean 'bnn'?"),
        (["-m", "recipe=bnn,baseline"], "this makes one run"),
        (["--cfg", "job", "recipe=bnn"], "'--cfg' received"),
        (["recipe=bnn,baseline"], "lists several values"),
        ([], "No recipe was given."),
        ([3], "3 received. Expected texts"),
        (["recipe=bnn", "trainer.strategy=multi_worker"], "Expected several processes"),
    ],
)
def test_a_mistake_is_a_value_error_of_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=".+") as caught:
        hookline.run(*arguments)
    assert isinstance(caught.value, ValueError)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_history_has_a_value_for_each_step_of_a_split(tmp_path: Path):
    rows = [
        {"step": 1, "split": "train", "loss": 2.0},
        {"step": 2, "split": "train", "loss": None, "rate": 0.5},
        {"step": 2, "split": "validation", "loss": 3.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_history(tmp_path)
    assert found["validation"] == {"step": [2], "loss": [3.0]}
    assert found["train"]["step"] == [1, 2]
    assert found["train"]["loss"][0] == 2.0
    assert math.isnan(found["train"]["loss"][1])
    assert math.isnan(found["train"]["rate"][0])
    assert found["train"]["rate"][1] == 0.5
    assert read_history(tmp_path / "nothing") == {}


@pytest.mark.full
def test_it_returns_what_the_command_line_leaves(tmp_path: Path, capsys):
    result = hookline.run(*SHORT, f"run_dir={tmp_path / 'a'}")
    assert train.main([*SHORT, f"run_dir={tmp_path / 'b'}"]) == 0
    assert result.directory == tmp_path / "a"
    written = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert result.summary == json.loads((tmp_path / "a" / "summary.json").read_text())
    assert result.summary["digest"] == written["digest"]
    assert len(result.history["validation"]["step"]) == len(result.history["validation"]["loss/cross_entropy"]) >= 2
    (network,) = result.networks.values()
    assert network.predict(np.zeros((3, *network.input_shape[1:]), np.float32), verbose=0).shape == (3, 10)
    assert repr(result) == f"RunResult(completed after 40 steps, networks: model, {tmp_path / 'a'})"


@pytest.mark.full
def test_a_run_that_was_out_of_time_goes_on_and_a_complete_one_is_read(tmp_path: Path):
    place = tmp_path / "run"
    paused = hookline.run(*SHORT, "trainer.max_seconds=0", f"run_dir={place}")
    assert paused.summary["status"] == "paused"
    ended = hookline.run(f"resume={place}", "trainer.max_seconds=null")
    assert ended.summary["status"] == "completed"
    with pytest.warns(UserWarning, match="nothing is left to do"):
        again = hookline.run(f"resume={place}")
    assert again.summary["digest"] == ended.summary["digest"]
    assert again.history == ended.history
    for name, network in ended.networks.items():
        for first, second in zip(network.get_weights(), again.networks[name].get_weights(), strict=True):
            np.testing.assert_array_equal(first, second)
