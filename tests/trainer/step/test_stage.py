"""Errors of Python inside a graph come out as they were raised."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.ops.override_gradient import override_gradient
from hookline.trainer.step.loop import python_ops
from hookline.trainer.step.stage import python_errors
from tests.support.refusals import assert_refused
from tests.support.toy import CountingHook, StatelessHook, ToyObjective, toy_batch, toy_loop


def of_numpy(x, dtype):
    spec = tf.TensorSpec(x.shape, x.dtype)
    return override_gradient(lambda x: x.astype(dtype), lambda u, i, o: u, [x], numpy_output=spec, name="mine")


def test_a_user_error_comes_out_of_the_traced_loop():
    def batch(step):  # whose Python XLA does not compile
        made = toy_batch(step)
        return {**made, "inputs": tf.ensure_shape(tf.numpy_function(np.copy, [made["inputs"]], tf.float32), [16, 6])}

    assert python_ops(toy_loop(batch=batch, xla=True).graph) == []
    for dtype in ("float32", "float64"):
        hook = StatelessHook("numpy")
        hook.transform_weights = lambda weights, context, d=dtype: {n: of_numpy(w, d) for n, w in weights.items()}
        loop = toy_loop([hook])
        assert sum("/numpy/numpy_forward" in name for name in python_ops(loop.graph)) == 6
        if dtype == "float32":  # as declared
            assert loop.run(0, 2) == (2, [])
        else:
            assert_refused("^The NumPy forward of 'mine' returned float64", loop.run, 0, 2)
    with pytest.raises(tf.errors.InvalidArgumentError), python_errors():
        tf.debugging.assert_equal(tf.constant(1), tf.constant(2))


STAGES = ("transform_weights", "add_losses", "transform_gradients", "veto", "project", "update_ops", "measure")


def test_an_objective_decides_about_the_stages_of_training():
    hook, called = CountingHook("probe"), []
    hook.objective = "second"
    hook.add_losses = lambda context: {"extra": tf.constant(0.25)}
    hook.measure = lambda context: {"count": tf.convert_to_tensor(hook.count)}

    def noted(stage, answer, *arguments):
        called.append((stage, arguments[-1].objective))
        return answer(*arguments)

    for stage in STAGES:
        setattr(hook, stage, partial(noted, stage, getattr(hook, stage)))
    loop = toy_loop([hook], objectives=[ToyObjective(name="first"), ToyObjective(name="second")])
    assert loop.run(0, 3) == (3, [])
    for stage in STAGES:  # what the network is does not depend on the objective
        objectives = ["first", "second"] if stage in ("transform_weights", "project") else ["second"]
        assert [objective for each, objective in called if each == stage] == objectives, stage
    assert int(hook.count) == 3
    values = loop.accumulators.read()
    assert {"second/count", "second/loss/extra"} <= values.keys()
    assert not {"first/count", "first/loss/extra"} & values.keys()
