"""When XLA compiles the traced loop, and what keeps it off."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.step.loop import keep_xla_off, python_ops, use_xla
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook


@pytest.mark.parametrize("gpus", [[], ["GPU:0"]], ids=["cpu", "gpu"])
def test_xla_follows_mode_device_and_hook_support(gpus, monkeypatch):
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: gpus)
    assert use_xla("on", [])
    assert not use_xla("off", [])
    assert use_xla("auto", [StatelessHook("toy")]) == bool(gpus)
    hook = StatelessHook("numpy_forward")
    hook.supports_xla = False
    assert not use_xla("off", [hook])
    if gpus:
        with pytest.warns(UserWarning, match="numpy_forward"):
            assert not use_xla("auto", [hook])
        assert_refused("numpy_forward", use_xla, "on", [hook])
    else:
        assert not use_xla("auto", [hook])  # it stays off anyway, without a warning


def test_python_ops_are_found_in_nested_graphs_and_keep_xla_off():
    def call(x):
        return tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32, name="mine"), x.shape)

    def graph_of(function):
        return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph

    inner = tf.function(call, autograph=False)
    assert python_ops(graph_of(call)) == python_ops(graph_of(inner)) == ["mine"]
    assert python_ops(graph_of(lambda x: tf.cond(x[0] > 0, lambda: call(x), lambda: x))) == ["cond/mine"]
    assert python_ops(graph_of(lambda x: tf.while_loop(lambda x: x[0] > 0, lambda x: [inner(x)], [x]))) == ["mine"]
    assert len(python_ops(graph_of(lambda x: tf.py_function(tf.tanh, [x], tf.float32)))) == 1
    assert python_ops(graph_of(tf.tanh)) == []
    assert_refused("compile=on", keep_xla_off, "on", ["a", "b"])
    with pytest.warns(UserWarning, match="XLA stays off"):
        keep_xla_off("auto", ["a"])
