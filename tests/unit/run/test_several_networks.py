"""A whole run of several networks: what it writes, how it is restored, and what a next one starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command import run_small
from trainer.errors import UserError
from trainer.run.checkpoint import CheckpointStore
from trainer.run.finished import read_config, restore

TASK = (
    "plugins=[tests]",
    "task._target_=tests.support.several.several",
    "~task.label_smoothing",
    "model.units=[8]",
    "model.dropout=0.25",
    "trainer.compile=off",
    "schedule=constant",
    "trainer.monitor=student/metric/accuracy",
    "trainer.monitor_mode=max",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("several") / "run"
    return directory, run_small("baseline", *TASK, run_dir=directory)


def test_every_network_is_in_the_checkpoint_under_its_own_name_and_the_fixed_one_never_moved(run) -> None:
    directory, _ = run
    store = CheckpointStore(directory / "checkpoints")
    best, last = store.load("best"), store.load("last")
    names = {key.split("/")[1] for key in last.tensors if key.startswith("network/")}
    assert names == {"model", "messenger", "teacher"}
    for name in names:  # dropout has a seed, batch norm has statistics: the network is there in whole
        ends = {key.rpartition("/")[2] for key in last.tensors if key.startswith(f"network/{name}/")}
        assert {"kernel", "moving_mean", "seed_generator_state"} <= ends
        assert f"optimizer/{name}/iteration" in last.tensors
    steps = last.step
    assert last.tensors["optimizer/model/iteration"] == 2 * steps
    assert last.tensors["optimizer/messenger/iteration"] == 2 * steps + 1  # copied, then one update
    assert last.tensors["optimizer/teacher/iteration"] == 0
    for key, value in last.tensors.items():
        if key.startswith("network/teacher/"):
            np.testing.assert_array_equal(value, best.tensors[key], err_msg=key)
    kernels = [
        next(value for key, value in last.tensors.items() if key.startswith(f"network/{name}/") and value.ndim == 2)
        for name in ("model", "messenger", "teacher")
    ]
    distances = [np.abs(kernels[0] - other).max() for other in kernels[1:]]
    assert 0.0 < distances[0] < distances[1]  # the messenger is one update away, the teacher is another network


def test_the_summary_counts_each_network(run) -> None:
    directory, summary = run
    assert summary == json.loads((directory / "summary.json").read_text())
    networks = summary["networks"]
    assert list(networks) == ["model", "messenger", "teacher"]
    assert summary["params"]["total"] == sum(each["params"]["total"] for each in networks.values())
    assert summary["bytes"]["float32"] == sum(each["bytes"]["float32"] for each in networks.values())
    assert networks["teacher"]["params"]["trainable"] == 0 < networks["model"]["params"]["trainable"]
    assert summary["best"]["monitor"] == "student/metric/accuracy"
    assert {"student/loss/total", "messenger/loss/total", "model/opt/learning_rate"} <= summary["final"].keys()
    assert "teacher/opt/learning_rate" not in summary["final"]


def test_a_run_repeats_exactly_and_is_restored_exactly(run, tmp_path) -> None:
    directory, summary = run
    run_small("baseline", *TASK, run_dir=tmp_path / "again")
    first, second = (
        CheckpointStore(each / "checkpoints").load("last").tensors for each in (directory, tmp_path / "again")
    )
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=key)
    restored = restore(str(directory), read_config(str(directory), ["tests"]))
    found = restored.parts.validation.run(restored.step)
    assert found["student/metric/accuracy"] == pytest.approx(summary["best"]["value"])


def test_a_next_run_starts_from_the_networks_of_the_same_names(run, tmp_path) -> None:
    directory, _ = run
    started = tmp_path / "next"
    run_small(
        "baseline",
        *TASK,
        f"init_from={directory}",
        "trainer.epochs=1",
        "optimizer.learning_rate=1e-12",
        run_dir=started,
    )
    best = CheckpointStore(directory / "checkpoints").load("best").tensors
    last = CheckpointStore(started / "checkpoints").load("last").tensors
    for name in ("model", "teacher"):
        kernels = [key for key in best if key.startswith(f"network/{name}/") and key.endswith(("kernel", "bias"))]
        assert kernels
        for key in kernels:
            np.testing.assert_allclose(last[key], best[key], atol=1e-8, err_msg=key)


def test_a_network_that_the_first_run_does_not_have_is_named(run, tmp_path) -> None:
    single = tmp_path / "single"
    run_small("baseline", "model.units=[8]", "model.dropout=0.25", "trainer.compile=off", run_dir=single)
    with pytest.raises(UserError, match="has no variable 'network/messenger/.*Expected a run of the same network"):
        run_small("baseline", *TASK, f"init_from={single}", run_dir=tmp_path / "next")
    assert not (tmp_path / "next").exists()
