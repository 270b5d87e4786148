import math

import keras
import pytest
import tensorflow as tf

from hookline.hooks.monitors.nan_guard import NanGuard
from hookline.trainer.errors import NonFiniteError
from hookline.trainer.network import Network
from hookline.trainer.step.context import StepContext

LOSSES, GRADIENT, STATE = {"loss/data", "loss/total"}, {"gradient/dense/kernel"}, {"state/norm/moving_mean"}


def context_of(optimizer=None) -> StepContext:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    network = Network("model", model, optimizer or keras.optimizers.SGD())
    return StepContext(tf.constant(0, tf.int64), 0, True, "objective", network, {})


def guarded(optimizer=None, jit_compile=False, dtype=tf.float32):
    """Return a function that runs a traced step on given values and returns the names that the guard vetoes."""
    names: list[str] = []
    optimizer = optimizer or keras.optimizers.SGD()

    def step(values: tf.Tensor) -> tf.Tensor:
        values, context = tf.cast(values, dtype), context_of(optimizer)
        context.losses = {"data": values[0], "total": values[0] + tf.cast(1.0, dtype)}
        kernel = tf.stack([tf.zeros([3], dtype), tf.ones([3], dtype) * values[1]])
        context.gradients = {"dense/kernel": kernel, "dense/bias": tf.zeros([3], dtype), "unused/kernel": None}
        context.new_state = {"norm/moving_mean": tf.reshape(values[2], [1]), "seed": tf.constant([1, 2], tf.uint32)}
        found = NanGuard().veto(context)
        names[:] = found
        return tf.stack(list(found.values()))

    traced = tf.function(step, autograph=False, jit_compile=jit_compile)

    def vetoes(loss=1.0, gradient=1.0, state=1.0):
        flags = traced(tf.constant([loss, gradient, state], tf.float32)).numpy()
        return {name for name, flag in zip(names, flags, strict=True) if flag}

    return vetoes


def test_nonfinite_losses_gradients_and_state_are_named():
    for bad, jit_compile in ((math.nan, True), (-math.inf, False)):
        vetoes = guarded(jit_compile=jit_compile)
        assert vetoes(loss=bad) == LOSSES
        assert vetoes(gradient=bad) == GRADIENT
        assert vetoes(state=bad) == STATE
        assert vetoes(loss=3e38, gradient=-3e38, state=1e-45) == set()
    assert vetoes(loss=math.inf, gradient=-math.inf) == LOSSES | GRADIENT  # they do not cancel
    for dtype in (tf.float16, tf.bfloat16):
        vetoes = guarded(dtype=dtype)
        assert vetoes() == set()
        assert vetoes(gradient=math.nan) == GRADIENT


def test_rows_of_a_sparse_gradient_are_checked():
    optimizer = keras.optimizers.SGD()

    def step(value: tf.Tensor) -> tf.Tensor:
        context = context_of(optimizer)
        slices = tf.IndexedSlices(tf.reshape(value, [1, 1]), tf.constant([2]), tf.constant([5, 1]))
        context.gradients = {"embedding": slices}
        return NanGuard().veto(context)["gradient/embedding"]

    traced = tf.function(step, autograph=False)
    assert [bool(traced(tf.constant(value))) for value in (math.nan, 1.0)] == [True, False]


def test_overflow_under_loss_scaling_is_left_to_the_optimizer():
    vetoes = guarded(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    assert vetoes(gradient=math.inf) == set()
    assert vetoes(loss=math.nan) == LOSSES
    assert vetoes(state=math.nan) == STATE


def test_error_names_the_step_and_the_nonfinite_values(make_run):
    run, guard = make_run(step=41), NanGuard()
    guard.on_veto(run)
    run.control.vetoes = ["mask/empty"]
    guard.on_veto(run)  # a veto of another hook
    run.control.vetoes = ["gan/loss/total", "mask/empty", *(f"gan/critic/gradient/layer_{index}" for index in range(8))]
    with pytest.raises(NonFiniteError, match="at step 41 in gan/loss/total, gan/.*/layer_3 and 4 more. .*withheld"):
        guard.on_veto(run)
