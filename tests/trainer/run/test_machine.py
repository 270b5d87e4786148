"""Precision, lack of memory, and graphs that are released after a run."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.run.finished import read_config, restore
from hookline.trainer.run.machine import check_precision, estimated, memory_errors, released_graphs
from hookline.trainer.step.metrics import INITIAL
from tests.support.command import run_small
from tests.support.refusals import assert_refused

VOLTA = {"device_name": "Tesla V100", "compute_capability": (7, 0)}


def test_slow_precision_is_refused_unless_allowed(monkeypatch, tmp_path):
    monkeypatch.setattr("hookline.trainer.run.machine.cpu_flags", lambda: ["avx2"])
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
    with pytest.raises(UserError, match="Tesla V100 has compute capability 7.0, and bfloat16 is fast from 8.0"):
        check_precision("bfloat16", allow_slow=False)


@pytest.mark.full
def test_float16_run_keeps_its_loss_scale_and_restores_the_dtype_policy(tmp_path):
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


SHAPE = "for a tensor of shape"


def exhausted(text):
    return tf.errors.ResourceExhaustedError(None, None, text)


def test_lack_of_memory_is_a_user_error_and_other_errors_are_kept():
    for error, message in (
        (exhausted("OOM when allocating tensor with shape[64,128] and type bfloat16 on"), rf"{SHAPE} \[64, 128\], bfl"),
        (MemoryError(), r"not enough memory\. Expected a smaller trainer.batch_size"),
        (exhausted("Out of memory while trying to allocate 536870912 bytes."), "not enough memory"),
        (exhausted("/runs/events; No space left on device"), None),
        (exhausted("Too many open files in the room"), None),
        (tf.errors.InvalidArgumentError(None, None, "OOM is not a word of this error"), None),
    ):
        with pytest.raises(UserError if message else type(error), match=message) as caught, memory_errors():
            raise error
        assert (caught.value.__cause__ if message else caught.value) is error
    with pytest.raises(UserError, match=rf"{SHAPE} \[100000000, 1000000\], int64"), memory_errors():
        np.ones((10**8, 10**6), np.int64)
    with pytest.warns(UserWarning, match=r"The plan is left out.*KeyError: 'a'"):
        assert estimated("The plan", lambda: {}["a"], 0) == 0


@pytest.mark.long  # TensorFlow waits ten seconds for memory to be freed
def test_run_whose_model_exceeds_memory_leaves_no_directory(tmp_path):
    with pytest.raises(UserError, match=rf"{SHAPE} \[100000000, 1000000\], float"), memory_errors():
        tf.random.uniform([10**8, 10**6])
    assert_refused(SHAPE, run_small, "baseline", "model.units=[10000000000]", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@tf.custom_gradient
def doubled(value):
    return 2.0 * value, lambda upstream: 5.0 * upstream


def test_earlier_traces_stay_differentiable_after_graphs_are_released():
    traced = tf.function(doubled, autograph=False).get_concrete_function(tf.TensorSpec([], tf.float32))
    with released_graphs():
        tf.function(doubled, autograph=False)(tf.constant(1.0))
    value = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(value)
        result = traced(value)
    assert float(tape.gradient(result, value)) == 5.0
