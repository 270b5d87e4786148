"""The derivative of a backward pass, refused where it is not defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.ops.gradient_checks import is_differentiable


def differentiate(
    name: str, backward: Callable[..., Sequence[tf.Tensor]], tensors: Sequence[tf.Tensor], upstream: Any
) -> list[tf.Tensor | None]:
    """Return the gradients of backward(*tensors), one for each tensor; None for one that is not float.

    Args:
        name: of the op, for messages.
        backward: returns a tuple of float tensors.
        tensors: upstream gradients, inputs and outputs of the first derivative.
        upstream: dL/d(backward(*tensors)), a tuple.

    Returns:
        Zeros for a tensor that backward does not use.

    Raises:
        UserError: backward uses a tensor through ops that have no gradient only: a 0 would be an accident.
    """
    copies = [tf.identity(each) for each in tensors]  # the tape looks at these alone
    floats = [each for each in copies if is_differentiable(each)]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        gradients = backward(*copies)
    found = iter(tape.gradient(gradients, floats, output_gradients=list(upstream)))
    derivatives = [next(found) if is_differentiable(each) else None for each in copies]
    used = used_arguments(backward, tensors) if any(each is None for each in derivatives) else []
    for position, (tensor, derivative) in enumerate(zip(tensors, derivatives, strict=True)):
        if derivative is None and is_differentiable(tensor):
            if used[position]:
                raise UserError(
                    f"A second derivative of '{name}' was asked for, but its backward pass uses argument "
                    f"{position + 1} (of upstream, inputs and outputs) only through ops without a gradient, such as "
                    "comparisons. "
                    "Expected a function as second_backward."
                )
            derivatives[position] = tf.zeros_like(tensor)
    return derivatives


def used_arguments(function: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> list[bool]:
    """Return for each argument whether what a function returns depends on it.

    Args:
        function: of tensors; it is traced once more to be looked at.
        tensors: examples of its arguments.
    """
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    waiting = [tensor.op for tensor in graph.outputs]
    found = set(waiting)
    while waiting:
        operation = waiting.pop()
        for parent in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return [placeholder.op in found for placeholder in graph.inputs[: len(tensors)]]
