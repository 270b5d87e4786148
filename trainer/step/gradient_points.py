"""Where the gradients of a traced step are not TensorFlow's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.ops.gradient_checks import is_differentiable
from trainer.ops.overridden import OVERRIDES, Overridden
from trainer.step.audit import ancestors

MARK = "_gradient_op_type"
UNDECLARED = "undeclared"


@dataclass(frozen=True, eq=False)
class Point:
    """Name one override in a traced graph.

    Attributes:
        name: what a table calls it.
        inputs: tensors that get the gradients, float ones.
        outputs: tensors whose gradients these are made of.
        surrogate: the function of the inputs that the gradient belongs to; "forward", None (it is changed on purpose),
            or "undeclared".
    """

    name: str
    inputs: tuple[tf.Tensor, ...]
    outputs: tuple[tf.Tensor, ...]
    surrogate: Callable[..., Any] | str | None


def find_points(graph: tf.Graph) -> list[Point]:
    """Return every override of a graph, in the order of the graph: those that were declared, and all others.

    Others are `tf.custom_gradient` and `gradient_override_map` in code that declares nothing, such as a user's layer.
    Those inside a branch, a loop or another function are not found.

    Args:
        graph: in which a forward pass was traced, and no gradient yet.
    """
    declared: list[Overridden] = graph.get_collection(OVERRIDES)
    points = [_declared(each) for each in declared if each.outputs[0].graph is graph]
    known = {tensor.op for point in points for tensor in point.outputs}
    points += [
        point
        for operation in graph.get_operations()
        if MARK in operation.node_def.attr and operation not in known and (point := _undeclared(operation)) is not None
    ]
    order = {operation: position for position, operation in enumerate(graph.get_operations())}
    return sorted(points, key=lambda point: order[point.outputs[0].op])


def _declared(each: Overridden) -> Point:
    inputs = tuple(tensor for tensor in each.inputs if is_differentiable(tensor))
    return Point(each.name, inputs, each.outputs, each.surrogate)


def _undeclared(operation: tf.Operation) -> Point | None:
    inputs, outputs = list(operation.inputs), list(operation.outputs)
    if operation.type == "IdentityN":
        # `tf.custom_gradient` hands its results out through it. It takes them, then the arguments; what comes out for
        # the arguments is used by nobody.
        results = max((i + 1 for i, tensor in enumerate(outputs) if tensor.consumers()), default=0)
        inputs, outputs = _arguments(inputs[results:]), outputs[:results]
    floats = tuple(tensor for tensor in inputs if is_differentiable(tensor))
    outputs = [tensor for tensor in outputs if is_differentiable(tensor)]
    if not floats or not outputs:
        return None
    return Point(operation.name, floats, tuple(outputs), UNDECLARED)


def _arguments(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return tensors without results that nobody uses: these come first, and are computed from what follows."""
    first = 0
    while first < len(tensors) and _is_computed_from(tensors[first], tensors[first + 1 :]):
        first += 1
    return list(tensors[first:])


def _is_computed_from(tensor: tf.Tensor, others: Sequence[tf.Tensor]) -> bool:
    """Return whether others lead to a tensor with no gradient of its own between: then it need not be held fixed."""
    makers, given = ancestors(tensor.op), {each.op for each in others}
    if makers.isdisjoint(given):
        return False
    between = (makers | {tensor.op}).difference(given, *map(ancestors, given))
    return not any(MARK in operation.node_def.attr for operation in between)
