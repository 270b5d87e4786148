"""Precision: which machines gain by it, how it is refused elsewhere, and a whole run in float16."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.run.finished import read_config, restore
from hookline.trainer.run.precision import check_precision, computing_in, loss_scale_for
from hookline.trainer.step.losses import INITIAL
from tests.support.command import run_small

VOLTA = {"device_name": "Tesla V100", "compute_capability": (7, 0)}


def test_a_slow_precision_is_refused_unless_it_is_allowed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("hookline.trainer.run.precision.cpu_flags", lambda: ["avx2"])
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: [])
    for precision in ("float16", "bfloat16"):
        with pytest.raises(UserError, match=rf"trainer\.precision={precision}.*allow_slow_precision=true"):
            check_precision(precision, allow_slow=False)
        check_precision(precision, allow_slow=True)
    check_precision("float32", allow_slow=False)
    with pytest.raises(UserError, match="a CPU has no fast float16"):
        run_small("baseline", "trainer.precision=float16", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: ["gpu"])
    monkeypatch.setattr("tensorflow.config.experimental.get_device_details", {"gpu": VOLTA}.__getitem__)
    check_precision("float16", allow_slow=False)


def test_layers_get_the_policy_and_nothing_of_it_stays() -> None:
    with computing_in("bfloat16"):
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
    assert (layer.compute_dtype, layer.kernel.dtype) == ("bfloat16", "float32")
    with pytest.raises(ZeroDivisionError), computing_in("float16"):
        raise ZeroDivisionError
    assert keras.config.dtype_policy().name == "float32"
    assert loss_scale_for("float32") is loss_scale_for("bfloat16") is None


def test_a_run_in_float16_keeps_its_scale_and_leaves_no_policy_behind(tmp_path) -> None:
    directory = tmp_path / "run"
    allowed = ("trainer.precision=float16", "trainer.allow_slow_precision=true")
    summary = run_small("baseline", *allowed, "trainer.epochs=1", run_dir=directory)
    assert summary["precision"] == {"compute": "float16", "loss_scale": INITIAL, "overflow_steps": 0}
    assert summary["final"]["opt/loss_scale"] == INITIAL
    assert summary["test"]["metric/accuracy"] > 0.2
    assert keras.config.dtype_policy().name == "float32"
    restored = restore(str(directory), read_config(str(directory)))
    assert int(restored.trainer.loss_scale.finite_steps) == summary["steps"]
    values = restored.held_out["test"].run(restored.step)
    assert values["loss/total"] == pytest.approx(summary["test"]["loss/total"])
    for network in restored.trainer.networks.values():
        assert {np.array(variable).dtype.name for variable in network.weights.values()} == {"float32"}
    started = summary["time_to_first_step"]
    assert list(started) == ["seconds", "import", "build", "trace", "begin", "step"]
    assert started["seconds"] == pytest.approx(sum(list(started.values())[1:]), abs=0.01)
    assert min(started["build"], started["trace"], started["step"]) > 0
    assert summary["peak_memory_bytes"]["host"] > 50 * 2**20
