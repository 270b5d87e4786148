"""Backward passes that replace or modify an op's own gradient, or stop the gradient of some entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError, check_number
from hookline.trainer.ops.estimators import ste_gate
from hookline.trainer.ops.override_gradient import DIFFERENTIATE, declare_override, is_differentiable, override_gradient


@dataclass(frozen=True, eq=False)
class Backward:
    """A backward pass that can be attached to any forward pass.

    Attributes:
        name: such as "reverse".
        function: called as function(upstream, **needs); returns one gradient per input, or a bare tensor for a single
            input. `upstream` is dL/d(outputs), structured as forward returns its outputs. If `modifies`, it is the
            tuple of forward's own gradients, dL/d(inputs), instead.
        needs: which of "inputs" (a tuple) and "outputs" function takes besides upstream. If `modifies`, there are no
            "outputs": function changes the gradients of the inputs of forward.
        modifies: whether it modifies forward's own gradients (True) or replaces them (False).
        constants: further float tensors that function uses, such as a factor that follows a schedule.
        surrogate: the function of the inputs whose derivative this is intended to be; None if there is none because the
            gradient is changed on purpose.
        second_backward: the second derivative, as in `override_gradient`.
    """

    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    modifies: bool = False
    constants: tuple[tf.Tensor, ...] = ()
    surrogate: Callable[..., Any] | None = None
    second_backward: Callable[..., Any] | str | None = None

    def __call__(self, upstream: Any, inputs: Sequence[tf.Tensor], outputs: Any) -> Any:
        given = {"inputs": tuple(inputs), "outputs": outputs}
        return self.function(upstream, **{need: given[need] for need in self.needs})


def modify_gradients(backward: Backward, inputs: Sequence[Any], *, name: str | None = None) -> tuple[tf.Tensor, ...]:
    """Return the inputs unchanged; a backward pass with `modifies` transforms the gradients that flow back to them."""
    tensors = [tf.convert_to_tensor(each) for each in inputs]
    passed = override_gradient(
        lambda *given: tuple(tf.identity(each) for each in given),
        backward,
        [each for each in tensors if is_differentiable(each)],
        constants=backward.constants,
        second_backward=backward.second_backward,
        surrogate=None,
        name=name or backward.name,
    )
    waiting = iter(passed)
    return tuple(next(waiting) if is_differentiable(each) else each for each in tensors)


def identity() -> Backward:
    """Return dL/dx = dL/dy for any forward pass with outputs of the same shape as its inputs.

    The straight-through estimator of Bengio, Leonard and Courville 2013, arXiv 1308.3432. Surrogate: x.
    """
    return Backward("identity", lambda upstream: upstream, surrogate=tf.identity, second_backward=DIFFERENTIATE)


def round_through() -> Backward:
    """Return dL/dx = dL/dy, for a forward pass that rounds to any levels: `identity` under another name."""
    return replace(identity(), name="round_through")


def hard_tanh_through(*, limit: float = 1.0) -> Backward:
    """Return dL/dx = dL/dy where |x| <= limit, else 0, for a forward pass such as the sign.

    Courbariaux et al. 2016, arXiv 1602.02830, equation 4. Surrogate: clip(x, -limit, limit), with a limit above 0.
    """
    limit = check_number("limit of hard_tanh_through", limit, 0, above_minimum=True)

    def function(upstream: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        return ste_gate(upstream, inputs[0], limit)

    return Backward("hard_tanh_through", function, ("inputs",), surrogate=lambda x: tf.clip_by_value(x, -limit, limit))


def guided_relu() -> Backward:
    """Return dL/dx = dL/dy where x > 0 and dL/dy > 0, else 0: for visualizing what a network looks at.

    Springenberg et al. 2014, "Striving for Simplicity", arXiv 1412.6806, section 3.4. Surrogate: none.
    """

    def function(upstream: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.where(tf.logical_and(inputs[0] > 0, upstream > 0), upstream, tf.zeros_like(upstream))

    return Backward("guided_relu", function, ("inputs",))


def scale(*, factor: float | tf.Tensor = 1.0) -> Backward:
    """Return factor * g, where g is forward's own gradient of each input. Surrogate: none.

    Args:
        factor: a number, or a float scalar tensor; 0 stops the gradient with zeros.
    """
    return _scaling("scale", factor, 1.0)


def reverse(*, factor: float | tf.Tensor = 1.0) -> Backward:
    """Return -factor * g, where g is forward's own gradient of each input: earlier layers work against the loss.

    Ganin et al. 2016, "Domain-Adversarial Training of Neural Networks", arXiv 1505.07818, equations 17 and 18, where
    factor is lambda. Surrogate: none.

    Args:
        factor: a number, or a float scalar tensor such as one that follows a schedule.
    """
    return _scaling("reverse", factor, -1.0)


def clip(*, limit: float = 1.0) -> Backward:
    """Return g clipped to [-limit, limit], where g is forward's own gradient of each input. Surrogate: none."""
    limit = check_number("limit of clip", limit, 0, above_minimum=True)

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
        factor = check_number(f"factor of {name}", factor)
    elif factor.shape.rank != 0 or not factor.dtype.is_floating:
        raise UserError(f"{name} received a factor of {factor.dtype.name} {factor.shape}. Expected a float scalar.")

    def function(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [sign * tf.cast(factor, each.dtype) * each for each in gradients]

    constants = (factor,) if is_tensor else ()
    return Backward(name, function, modifies=True, constants=constants, second_backward=DIFFERENTIATE)


def entry_stop_gradients(target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return `target` bit for bit, with gradient mask * upstream: 0 where the mask is 0, even for infinity and NaN.

    The classic form, stop_gradient(|mask - 1| * target) + mask * target, turns infinity into NaN, and rounds where the
    mask is between 0 and 1. The mask itself gets no gradient.

    Args:
        target: any shape and float dtype.
        mask: bool (True: the gradient passes) or numbers (a factor, usually 0 or 1), of target's shape or one that
            broadcasts to it.

    Raises:
        ValueError: the mask's shape does not broadcast to target's.
    """
    target, mask = tf.convert_to_tensor(target), tf.convert_to_tensor(mask)
    if not tf.broadcast_static_shape(mask.shape, target.shape).is_compatible_with(target.shape):
        raise ValueError(f"The mask has the shape {mask.shape}. Expected one that broadcasts to {target.shape}.")

    @tf.custom_gradient
    def stop(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.math.multiply_no_nan(upstream, tf.cast(mask, upstream.dtype))

        return tf.identity(value), gradient

    stopped = stop(target)
    declare_override("entry_stop_gradients", [target], stopped, None)
    return stopped
