"""Errors of Python inside a graph come out as they were raised."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.objective import ObjectiveOutput
from hookline.trainer.ops.override_gradient import override_gradient
from hookline.trainer.step.loop import python_ops
from hookline.trainer.step.stage import python_errors
from tests.support.refusals import assert_refused
from tests.support.toy import CountingHook, StatelessHook, ToyObjective, toy_batch, toy_loop, toy_model
from tests.support.two_networks import NAMES, fresh, traced_loop, watching_pair


def of_numpy(x, dtype):
    spec = tf.TensorSpec(x.shape, x.dtype)
    return override_gradient(lambda x: x.astype(dtype), lambda u, i, o: u, [x], numpy_output=spec, name="mine")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_user_error_comes_out_of_the_traced_loop(dtype):
    def batch(step):  # whose Python XLA does not compile
        made = toy_batch(step)
        return {**made, "inputs": tf.ensure_shape(tf.numpy_function(np.copy, [made["inputs"]], tf.float32), [16, 6])}

    hook = StatelessHook("numpy")
    hook.transform_weights = lambda weights, context: {n: of_numpy(w, dtype) for n, w in weights.items()}
    loop = toy_loop([hook], batch=batch)
    assert sum("/numpy/numpy_forward" in name for name in python_ops(loop.graph)) == 6
    assert python_ops(toy_loop(batch=batch, xla=True).graph) == []
    if dtype == "float32":  # as declared
        assert loop.run(0, 2) == (2, [])
        return
    assert_refused("^The NumPy forward of 'mine' returned float64", loop.run, 0, 2)
    with pytest.raises(tf.errors.InvalidArgumentError), python_errors():
        tf.debugging.assert_equal(tf.constant(1), tf.constant(2))


class Counter(CountingHook):
    def __init__(self, network="*", objective="*"):
        self.network, self.objective = network, objective
        self.called = []

    def _note(self, stage, context, value=None):
        self.called.append((stage, context.objective))
        return value

    def transform_weights(self, weights, context):
        return self._note("transform_weights", context, weights)

    def add_losses(self, context):
        return self._note("add_losses", context, {"extra": tf.constant(0.25)})

    def transform_gradients(self, gradients, context):
        return self._note("transform_gradients", context, gradients)

    def veto(self, context):
        return self._note("veto", context, {"never": tf.constant(False)})

    def project(self, context):
        self._note("project", context)

    def update_ops(self, context):
        return self._note("update_ops", context, super().update_ops(context))

    def measure(self, context):
        return self._note("measure", context, {"count": tf.convert_to_tensor(self.count)})


class Both(ToyObjective):
    name, trains = "both", NAMES

    def __init__(self):
        pass

    def compute(self, forward, batch):
        logits = tf.add_n([forward(name, batch["inputs"]) for name in NAMES])
        return ObjectiveOutput({"entropy": tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)})


def looped(make, objectives=None, networks=None):
    def build(key):
        hook = make()
        hook.name = "probe"
        return hook

    loop = traced_loop(networks or fresh(toy_model), objectives or watching_pair(), build)
    return loop, loop.trainer.hooks


def test_an_objective_decides_about_the_stages_of_training():
    networks = fresh(toy_model)
    for each in networks:
        each.shared = True
    objectives = [type("Named", (Both,), {"name": name})() for name in ("first", "second")]
    loop, (hook,) = looped(lambda: Counter("gen*", "second"), objectives, networks)
    assert hook.name == "probe"
    assert loop.run(0, 3) == (3, [])
    by_stage = {stage: [objective for each, objective in hook.called if each == stage] for stage, _ in hook.called}
    for stage in ("transform_weights", "project"):  # what the network is does not depend on the objective
        assert by_stage.pop(stage) == ["first", "second"]
    assert len(by_stage) == 5
    assert all(objectives == ["second"] for objectives in by_stage.values()), by_stage
    assert int(hook.count) == 3
    values = loop.accumulators.read()
    assert {"second/count", "second/loss/extra"} <= values.keys()
    assert not {"first/count", "first/loss/extra"} & values.keys()
