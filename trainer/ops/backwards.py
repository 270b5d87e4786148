"""The catalogue of named backward passes. Each function returns one; g is the gradient that arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.ops.backward import Backward
from trainer.ops.override_gradient import DIFFERENTIATE
from trainer.ops.pass_within import pass_within


def identity() -> Backward:
    """Return dL/dx = dL/dy, whatever forward does; outputs and inputs have one shape.

    The straight-through estimator of Bengio, Leonard and Courville 2013, arXiv 1308.3432. Surrogate: x.
    """
    return Backward("identity", lambda upstream: upstream, surrogate=tf.identity, second_backward=DIFFERENTIATE)


def round_through() -> Backward:
    """Return dL/dx = dL/dy, for a forward pass that rounds to any levels.

    Bengio, Leonard and Courville 2013, arXiv 1308.3432. Surrogate: x.
    """
    return Backward("round_through", lambda upstream: upstream, surrogate=tf.identity, second_backward=DIFFERENTIATE)


def hard_tanh_through(*, limit: float = 1.0) -> Backward:
    """Return dL/dx = dL/dy where |x| <= limit, else 0, for a forward pass such as the sign.

    Hubara et al. 2016, arXiv 1602.02830, equation 4. Surrogate: clip(x, -limit, limit).

    Args:
        limit: above 0.

    Raises:
        UserError: it is not.
    """
    limit = _above_zero("hard_tanh_through", "limit", limit)

    def function(upstream: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        return pass_within(upstream, inputs[0], limit)

    return Backward("hard_tanh_through", function, ("inputs",), surrogate=lambda x: tf.clip_by_value(x, -limit, limit))


def guided_relu() -> Backward:
    """Return dL/dx = dL/dy where x > 0 and dL/dy > 0, else 0: for pictures of what a network looks at.

    Springenberg et al. 2014, "Striving for Simplicity", arXiv 1412.6806, section 3.4. Surrogate: none, it is the
    derivative of no function.
    """

    def function(upstream: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.where(tf.logical_and(inputs[0] > 0, upstream > 0), upstream, tf.zeros_like(upstream))

    return Backward("guided_relu", function, ("inputs",))


def scale(*, factor: float | tf.Tensor = 1.0) -> Backward:
    """Return factor * g, with g forward's own gradient of each input.

    Surrogate: none, it changes the gradient on purpose.

    Args:
        factor: a number, or a float scalar tensor; 0 stops the gradient with zeros.
    """
    return _scaling("scale", factor, 1.0)


def reverse(*, factor: float | tf.Tensor = 1.0) -> Backward:
    """Return -factor * g, with g forward's own gradient of each input: what comes before works against the loss.

    Ganin et al. 2016, "Domain-Adversarial Training of Neural Networks", arXiv 1505.07818, equations 17 and 18, where
    factor is lambda. Surrogate: none, it changes the gradient on purpose.

    Args:
        factor: a number, or a float scalar tensor such as one that follows a schedule.
    """
    return _scaling("reverse", factor, -1.0)


def clip(*, limit: float = 1.0) -> Backward:
    """Return min(max(g, -limit), limit), entry by entry, with g forward's own gradient of each input.

    Surrogate: none, it changes the gradient on purpose.

    Args:
        limit: above 0.

    Raises:
        UserError: it is not.
    """
    limit = _above_zero("clip", "limit", limit)

    def function(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.clip_by_value(each, -limit, limit) for each in gradients]

    return Backward("clip", function, modifies=True, second_backward=DIFFERENTIATE)


BACKWARDS: dict[str, Callable[..., Backward]] = {
    function.__name__: function
    for function in (identity, clip, reverse, scale, guided_relu, round_through, hard_tanh_through)
}


def _scaling(name: str, factor: Any, sign: float) -> Backward:
    is_tensor = tf.is_tensor(factor)
    if not is_tensor:
        factor = _finite(name, "factor", factor)
    elif factor.shape.rank != 0 or not factor.dtype.is_floating:
        raise UserError(f"{name} received a factor of {factor.dtype.name} {factor.shape}. Expected a float scalar.")

    def function(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [sign * tf.cast(factor, each.dtype) * each for each in gradients]

    constants = (factor,) if is_tensor else ()
    return Backward(name, function, modifies=True, constants=constants, second_backward=DIFFERENTIATE)


def _finite(name: str, argument: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise UserError(f"Invalid {argument} {value!r} for {name}. Expected a finite number.")
    return float(value)


def _above_zero(name: str, argument: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise UserError(f"Invalid {argument} {value!r} for {name}. Expected a number above 0.")
    return float(value)
