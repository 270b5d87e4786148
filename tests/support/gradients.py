"""Gradients taken in every way that TensorFlow knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.trainer.ops.override_gradient import override_gradient

X = np.array([[-1.5, 0.25, 2.0], [0.5, -0.75, 3.0]], np.float32)


def cube(x: Any, **options: Any) -> Any:
    """Return x^3 with the gradient 5 x: nobody else's, so that a test sees whose it is."""
    return override_gradient(
        lambda x: x**3, lambda upstream, inputs, outputs: 5.0 * inputs[0] * upstream, [x], **options
    )


def cube_of_numpy(x: Any, **options: Any) -> Any:
    spec = tf.TensorSpec(x.shape, x.dtype)
    return override_gradient(
        lambda x: x**3,
        lambda upstream, inputs, outputs: 5.0 * inputs[0] * upstream,
        [x],
        numpy_output=spec,
        **options,
    )


def with_tape(function: Callable[[tf.Tensor], Any], x: Any, *, persistent: bool = False) -> tuple[Any, Any]:
    x = tf.constant(x)
    with tf.GradientTape(persistent=persistent) as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)


def with_gradients(function: Callable[[tf.Tensor], Any], x: Any, *, jit: bool = False) -> tuple[Any, Any]:
    def traced(x: tf.Tensor) -> tuple[Any, Any]:
        y = function(x)
        return y, tf.gradients(y, x)[0]

    return tf.function(traced, autograph=False, jit_compile=jit)(tf.constant(x))


def tape_in_function(function: Callable[[tf.Tensor], Any], x: Any) -> tuple[Any, Any]:
    return tf.function(lambda x: with_tape_on(function, x), autograph=False)(tf.constant(x))


def with_tape_on(function: Callable[[tf.Tensor], Any], x: tf.Tensor) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)


def function_in_tape(function: Callable[[tf.Tensor], Any], x: Any) -> tuple[Any, Any]:
    return with_tape(tf.function(function, autograph=False), x)


WAYS = {
    "tape": with_tape,
    "persistent tape": lambda function, x: with_tape(function, x, persistent=True),
    "tf.gradients": with_gradients,
    "tape in a function": tape_in_function,
    "function in a tape": function_in_tape,
    "xla": lambda function, x: with_gradients(function, x, jit=True),
    "xla in a tape": lambda function, x: with_tape(tf.function(function, autograph=False, jit_compile=True), x),
}
