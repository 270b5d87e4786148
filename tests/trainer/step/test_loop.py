"""The traced loop: any chunks give the same run, a veto stops it with nothing written; when XLA compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.step.loop import keep_xla_off, python_ops, use_xla
from tests.support.refusals import assert_refused
from tests.support.toy import CountingHook, StatelessHook, toy_loop, toy_network, values_of


def fresh():
    keras.utils.set_random_seed(1)
    return toy_network(optimizer=keras.optimizers.Adam(0.01), dropout=0.3)


def test_chunk_sizes_do_not_change_the_run():
    network = fresh()
    loop, before = toy_loop(network=network), values_of(network)
    assert loop.run(0, 10) == (10, [])
    whole, reported = values_of(network), loop.accumulators.read()
    for name, variable in {**network.variables, **network.optimizer_variables}.items():
        variable.assign(before[name] if name in before else before[f"optimizer/{name}"])
    loop.accumulators.reset()
    for start, steps in ((0, 1), (1, 4), (5, 5)):
        loop.run(start, steps)
    np.testing.assert_equal(values_of(network), whole)
    assert loop.accumulators.read() == reported


class VetoAt(CountingHook):
    def __init__(self, step):
        super().__init__("veto")
        self.step = step

    def veto(self, context):
        return {"never": tf.constant(False), "at": tf.equal(context.step, self.step)}

    def project(self, context):
        for variable in context.network.trainable_variables.values():
            variable.assign(variable.value * 0.999)

    def measure(self, context):
        return {"one": tf.constant(1.0)}


def test_vetoed_step_writes_nothing_at_all():
    network, hook = fresh(), VetoAt(5)
    loop = toy_loop([hook], network=network)
    assert loop.run(0, 5) == (5, [])
    before = values_of(network)
    assert loop.run(5, 20) == (5, ["at"])
    assert hook.count.numpy() == 5.0
    assert loop.accumulators.variable.numpy()[:, 1].tolist() == [5.0] * len(loop.accumulators.names)
    np.testing.assert_equal(values_of(network), before)


@pytest.mark.parametrize("gpus", [[], ["GPU:0"]], ids=["cpu", "gpu"])
def test_xla_follows_its_mode_the_device_and_what_hooks_support(gpus, monkeypatch):
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
        assert not use_xla("auto", [hook])  # it stays off anyway, and nothing is said


def test_python_is_found_inside_branches_and_functions_and_keeps_xla_off():
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
