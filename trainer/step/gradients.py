"""Where gradients are probed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hookline.trainer.ops.gradient_checks import is_differentiable
from hookline.trainer.ops.override_gradient import OVERRIDES, Overridden
from hookline.trainer.step.audit import ancestors

MARK = "_gradient_op_type"
UNDECLARED = "undeclared"


@dataclass(frozen=True, eq=False)
class Point:
    """Name one override in a traced graph.

    Attributes:
        name: what a table calls it.
        inputs: tensors that get the gradients, float ones.
        outputs: tensors whose gradients these are computed from.
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
        # `tf.custom_gradient` returns its results through it. It takes them, then the arguments; its outputs for the
        # arguments are unused.
        results = max((i + 1 for i, tensor in enumerate(outputs) if tensor.consumers()), default=0)
        inputs, outputs = _arguments(inputs[results:]), outputs[:results]
    floats = tuple(tensor for tensor in inputs if is_differentiable(tensor))
    outputs = [tensor for tensor in outputs if is_differentiable(tensor)]
    if not floats or not outputs:
        return None
    return Point(operation.name, floats, tuple(outputs), UNDECLARED)


def _arguments(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return tensors without unused results: those come first, and are computed from what follows."""
    first = 0
    while first < len(tensors) and _is_computed_from(tensors[first], tensors[first + 1 :]):
        first += 1
    return list(tensors[first:])


def _is_computed_from(tensor: tf.Tensor, others: Sequence[tf.Tensor]) -> bool:
    """Return whether others reach a tensor with no gradient of its own in between: then it need not be held fixed."""
    makers, given = ancestors(tensor.op), {each.op for each in others}
    if makers.isdisjoint(given):
        return False
    between = (makers | {tensor.op}).difference(given, *map(ancestors, given))
    return not any(MARK in operation.node_def.attr for operation in between)


KEPT_MARK = "_gradient_op_type"
PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def recompute(outputs: Sequence[tf.Tensor], values: Mapping[int, tf.Tensor]) -> list[tf.Tensor]:
    """Return tensors of the graph being traced, recomputed with other values in some places.

    Only what depends on these places is recomputed, without its overridden gradients. Random draws that depend on
    nothing but a shape, and other stateful ops, keep their values; Python functions run again.
    """
    known = dict(values)
    graph = tf.compat.v1.get_default_graph()
    for operation in _in_order([tensor.op for tensor in outputs], known):
        if not any(id(tensor) in known for tensor in operation.inputs) or _keeps(operation):
            continue
        attributes = {key: value for key, value in operation.node_def.attr.items() if key != KEPT_MARK}
        inputs = [known.get(id(tensor), tensor) for tensor in operation.inputs]
        dtypes = [tensor.dtype for tensor in operation.outputs]
        twin = graph.create_op(operation.type, inputs, dtypes, attrs=attributes)
        for old, new in zip(operation.outputs, twin.outputs, strict=True):
            known.setdefault(id(old), new)
    return [known.get(id(tensor), tensor) for tensor in outputs]


def _keeps(operation: tf.Operation) -> bool:
    return operation.op_def.is_stateful and operation.type not in PYTHON_OPS


def _in_order(ends: Sequence[tf.Operation], places: Mapping[int, tf.Tensor]) -> list[tf.Operation]:
    """Return the ends and the ops before them in topological order, but none before a place."""
    ordered: dict[tf.Operation, None] = {}
    waiting = [(operation, False) for operation in ends]
    while waiting:
        operation, is_ready = waiting.pop()
        if operation in ordered:
            continue
        if is_ready:
            ordered[operation] = None
            continue
        waiting.append((operation, True))
        waiting += [(tensor.op, False) for tensor in operation.inputs if id(tensor) not in places]
    return list(ordered)
