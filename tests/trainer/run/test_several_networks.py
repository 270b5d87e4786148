"""A whole run of several networks: what it writes, how it is restored, and what a next one starts from."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.finished import read_config, restore
from tests.support.command import run_small

TASK = (
    *("plugins=[tests]", "task._target_=tests.support.several.several", "~task.label_smoothing", "model.units=[8]"),
    *("model.dropout=0.25", "trainer.compile=off", "schedule=constant", "trainer.monitor=student/metric/accuracy"),
    *("trainer.monitor_mode=max", "+hooks=ema"),  # a next run starts from the weights, not from their averages
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("several") / "run"
    return directory, run_small("baseline", *TASK, run_dir=directory)


def test_every_network_is_in_the_checkpoint_and_the_fixed_one_never_moved(run) -> None:
    directory, _ = run
    store = CheckpointStore(directory / "checkpoints")
    best, last = store.load("best"), store.load("last")
    names = {key.split("/")[1] for key in last.tensors if key.startswith("network/")}
    assert names == {"model", "messenger", "teacher"}
    for name in names:  # dropout has a seed, batch norm has statistics: the network is there in whole
        ends = {key.rpartition("/")[2] for key in last.tensors if key.startswith(f"network/{name}/")}
        assert {"kernel", "moving_mean", "seed_generator_state"} <= ends
    iterations = [last.tensors[f"optimizer/{name}/iteration"] for name in ("model", "messenger", "teacher")]
    assert iterations == [2 * last.step, 2 * last.step + 1, 0]  # the messenger is copied, then one update
    for key in (key for key in last.tensors if key.startswith("network/teacher/")):
        np.testing.assert_array_equal(last.tensors[key], best.tensors[key], err_msg=key)
    kernels = [
        next(value for key, value in last.tensors.items() if key.startswith(f"network/{name}/") and value.ndim == 2)
        for name in ("model", "messenger", "teacher")
    ]
    distances = [np.abs(kernels[0] - other).max() for other in kernels[1:]]
    assert 0.0 < distances[0] < distances[1]  # the messenger is one update away, the teacher is another network


def test_the_summary_counts_each_network(run) -> None:
    summary = run[1]
    networks = summary["networks"]
    assert list(networks) == ["model", "messenger", "teacher"]
    assert summary["params"]["total"] == sum(each["params"]["total"] for each in networks.values())
    assert summary["bytes"]["float32"] == sum(each["bytes"]["float32"] for each in networks.values())
    assert networks["teacher"]["params"]["trainable"] == 0 < networks["model"]["params"]["trainable"]
    assert {"student/loss/total", "messenger/loss/total", "model/opt/learning_rate"} <= summary["final"].keys()
    assert "teacher/opt/learning_rate" not in summary["final"]


def test_a_run_is_restored_exactly_and_a_next_one_starts_from_it(run, tmp_path) -> None:
    directory, summary = run
    restored = restore(str(directory), read_config(str(directory), ["tests"]))
    found = restored.held_out["validation"].run(restored.step)
    assert found["student/metric/accuracy"] == pytest.approx(summary["best"]["value"])
    slow = ("trainer.epochs=1", "optimizer.learning_rate=1e-12")
    run_small("baseline", *TASK, f"init_from={directory}", *slow, run_dir=tmp_path / "next")
    best = CheckpointStore(directory / "checkpoints").load("best").tensors
    last = CheckpointStore(tmp_path / "next" / "checkpoints").load("last").tensors
    for name in ("model", "teacher"):
        kernels = [key for key in best if key.startswith(f"network/{name}/") and key.endswith(("kernel", "bias"))]
        assert kernels
        for key in kernels:
            np.testing.assert_allclose(last[key], best[key], atol=1e-8, err_msg=key)
