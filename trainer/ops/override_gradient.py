"""Override the gradient of an op or a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.ops.gradient_checks import (
    check_gradients,
    check_outputs,
    differentiate,
    is_differentiable,
    run_numpy,
    watch_declared,
)

OVERRIDES = "hookline/overridden_gradients"
"""The graph collection that holds an `Overridden` for each declared override of a traced function."""

FORWARD = "forward"


@dataclass(frozen=True, eq=False)
class Overridden:
    """Describe an op of a traced function whose gradient is overridden."""

    name: str  # what it is called
    inputs: tuple[tf.Tensor, ...]  # tensors that get the gradients
    outputs: tuple[tf.Tensor, ...]  # tensors whose gradients these are computed from
    # the function of the inputs whose derivative the gradient is meant to be; "forward" for the forward pass itself;
    # None: it changes the gradient on purpose
    surrogate: Callable[..., Any] | str | None


def declare_override(
    name: str, inputs: Sequence[tf.Tensor], outputs: Any, surrogate: Callable[..., Any] | str | None
) -> None:
    """Record an op with an overridden gradient in the graph that is being traced; eagerly there is nothing to record.

    Args:
        name: what a table calls it.
        inputs: tensors that get the gradients.
        outputs: a tensor, or a tuple of them.
        surrogate: the function of the inputs whose derivative the gradient is meant to be, "forward", or None.
    """
    if not tf.executing_eagerly():
        flat = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
        tf.compat.v1.add_to_collection(OVERRIDES, Overridden(name, tuple(inputs), flat, surrogate))


DIFFERENTIATE = "differentiate"
Tensors: TypeAlias = "tuple[tf.Tensor, ...]"


@dataclass(frozen=True, eq=False)
class Override:
    """Hold the arguments of `override_gradient`, with what messages call its forward pass."""

    name: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inputs: Tensors
    constants: Tensors = ()
    numpy_output: Any = None
    second_backward: Callable[..., Any] | str | None = None
    role: str = "The forward pass"


def override_gradient(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    constants: Sequence[tf.Tensor] = (),
    numpy_output: tf.TensorSpec | Sequence[tf.TensorSpec] | None = None,
    second_backward: Callable[..., Any] | str | None = None,
    surrogate: Callable[..., Any] | str | None = FORWARD,
    name: str = "override_gradient",
) -> Any:
    """Return forward(*inputs), with the gradients that `backward` returns.

    Works eagerly, in a `tf.function`, in `tf.while_loop`, compiled by XLA (a TensorFlow forward only), with
    `tf.GradientTape` and with `tf.gradients`. Every tensor that backward needs is an input or a constant: a gradient
    reaches inputs alone, and would silently pass by anything else. So a trainable variable, or a float tensor of the
    surrounding graph, that forward or backward use without having declared it, is an error. Tensors with a value
    (eager ones) are constants.

    Args:
        forward: called as forward(*inputs); returns a float tensor, or a tuple of them.
        backward: called as backward(upstream, inputs, outputs) with dL/d(outputs) and the outputs, both as forward
            returns them, a tensor or a tuple, and the tuple of inputs. Made of TensorFlow ops. Returns one gradient
            for each input, in its shape and dtype, None for an input that is not float; a bare tensor for one input.
        inputs: tensors, or variables, which are read. Integers get no gradient.
        constants: float tensors that forward or backward use beside the inputs. They get no gradient.
        numpy_output: what a forward of NumPy returns: shape (None if unknown) and dtype of its array, or several
            of them. It gets arrays that it cannot write to. XLA cannot compile it.
        second_backward: the second derivative. None: asking for it is an error, also with a persistent tape around a
            `tf.function`. "differentiate": backward is differentiated, and refused where it uses an input through ops
            without a gradient, such as comparisons. A function: the backward pass of `backward`, called as
            second_backward(upstream, (*dL/d(outputs), *inputs, *outputs), gradients); it returns one gradient for each
            tensor of the second argument; the third derivative is an error.
        surrogate: the function of the inputs whose derivative backward is meant to be: "forward" itself, another
            function, or None if it changes the gradient on purpose. It is recorded for `declare_override`; nothing
            is computed with it here.
        name: what messages call this op.

    Raises:
        UserError: forward or backward return something else, or use what they were not given. Shapes that are not
            known when a function is traced are checked when it runs, and raise `tf.errors.InvalidArgumentError`.
    """
    if isinstance(second_backward, str) and second_backward != DIFFERENTIATE:
        raise unknown_name("second_backward", second_backward, [DIFFERENTIATE])
    tensors = tuple(tf.convert_to_tensor(each) for each in inputs)
    if not any(map(is_differentiable, tensors)):
        raise UserError(f"'{name}' received no float input. Expected at least one: nothing else gets a gradient.")
    if isinstance(surrogate, str) and surrogate != FORWARD:
        raise unknown_name("surrogate", surrogate, [FORWARD])
    outputs = apply_override(
        Override(name, forward, backward, tensors, tuple(constants), numpy_output, second_backward)
    )
    declare_override(name, tensors, outputs, surrogate)
    return outputs


def apply_override(override: Override) -> Any:
    """Return the outputs of an override, with its gradients."""
    result: list[Any] = []  # with the override's gradient: what backward computes from outputs is differentiated so

    @tf.custom_gradient
    def run(*inputs: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        return run_forward(override, inputs), lambda *upstream: compute_gradients(override, upstream, inputs, result[0])

    result.append(run(*override.inputs))
    return result[0]


def run_forward(override: Override, inputs: Tensors) -> Any:
    """Return forward's outputs for inputs, checked; with its own gradient, not the overriding one."""
    if override.numpy_output is not None:
        return run_numpy(override.forward, inputs, override.numpy_output, override.name)
    what = f"{override.role} of '{override.name}'"
    with watch_declared(what, (*inputs, *override.constants)):
        try:
            outputs = override.forward(*inputs)
        except NotImplementedError as error:
            raise UserError(
                f"{what} cannot work on tensors: {error}. Expected TensorFlow ops; for a forward of NumPy, give "
                "numpy_output=tf.TensorSpec(shape, dtype)."
            ) from error
    return check_outputs(what, outputs)


def compute_gradients(override: Override, upstream: Tensors, inputs: Tensors, outputs: Any) -> list[tf.Tensor | None]:
    """Return one gradient for each input, checked; their gradients are the second derivative, or its refusal.

    The upstream gradients are a tuple also for one output; the outputs are as forward returned them.
    """
    is_single = not isinstance(outputs, tuple)
    outputs = (outputs,) if is_single else outputs
    # Some ops hand back slices of a gradient; a backward function gets all of it. The identity takes tensors of the
    # forward function's graph into this one: the next derivative, in yet another graph, would not find them there.
    given = tuple(tf.identity(tf.convert_to_tensor(each)) for each in (*upstream, *inputs, *outputs))
    ends = len(upstream), len(upstream) + len(inputs)
    role = "The backward pass" if override.role == Override.role else f"{override.role} differentiated"

    def split(tensors: Tensors) -> tuple[Any, Tensors, Any]:
        above, middle, below = tensors[: ends[0]], tensors[ends[0] : ends[1]], tensors[ends[1] :]
        return (above[0] if is_single else above), middle, (below[0] if is_single else below)

    def backward(*tensors: tf.Tensor) -> Tensors:
        gradients = override.backward(*split(tensors))
        checked = check_gradients(f"{role} of '{override.name}'", gradients, tensors[ends[0] : ends[1]])
        return tuple(each for each in checked if each is not None)

    found = iter(apply_override(_second(override, replace(override, forward=backward, inputs=given, role=role))))
    return [next(found) if is_differentiable(each) else None for each in inputs]


def _second(override: Override, gradients: Override) -> Override:
    """Return the computation of an override's gradients with its own backward pass: the second derivative."""
    second = override.second_backward

    def refuse(upstream: Any, inputs: Tensors, outputs: Any) -> None:
        raise UserError(
            f"A second derivative of '{override.name}' was asked for, and none is defined. Expected first derivatives "
            'only, or second_backward="differentiate", or a function for it.'
        )

    def derivative(upstream: Tensors, inputs: Tensors, outputs: Tensors) -> list[tf.Tensor | None]:
        return differentiate(override.name, gradients.forward, inputs, upstream)

    if second == DIFFERENTIATE:
        return replace(gradients, numpy_output=None, backward=derivative)
    backward = second if callable(second) else refuse
    return replace(gradients, numpy_output=None, backward=backward, second_backward=None)
