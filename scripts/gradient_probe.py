"""The overridden gradients of a step, compared with finite differences and with their declared surrogates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from hookline.trainer.objective import Batch
from hookline.trainer.ops.graph_walk import ancestors
from hookline.trainer.ops.override_gradient import OVERRIDES, Overridden, is_differentiable
from hookline.trainer.step.loop import PYTHON_OPS
from hookline.trainer.step.stage import python_errors
from hookline.trainer.step.trainer import Trainer

DIRECTIONS = 8
STEP = 1e-4  # of finite differences, relative to the root mean square of the input
EXACT = 2e-2  # float32 rounding and kinks of the function within a step stay below this
SAME = 1e-4  # between two formulas for the same derivative
MARK = "_gradient_op_type"
UNDECLARED = "undeclared"


@dataclass(frozen=True)
class Compared:
    """Distances of an overridden gradient from two others, each relative to the larger of the pair."""

    name: str  # of the override
    op: str  # the op that returns its output in the traced step
    surrogate: str  # "forward", "declared", "none" (changed on purpose) or "undeclared"
    # From the derivative of the forward pass, by central differences; None in half precision, which is too coarse.
    true: float | None
    declared: float | None  # from the derivative of the declared surrogate; None without one

    @property
    def verdict(self) -> str:
        """Return "exact", "surrogate", "on purpose", "undeclared", "not measured" or "wrong"."""
        if (self.declared is not None and not self.declared <= SAME) or self.true == float("inf"):
            return "wrong"
        if self.true is not None and self.true <= EXACT:
            return "exact"
        verdicts = {"declared": "surrogate", "none": "on purpose", UNDECLARED: "undeclared"}
        return verdicts.get(self.surrogate, "wrong" if self.true is not None else "not measured")


def compare_gradients(trainer: Trainer, batch: Callable[[tf.Tensor], Batch]) -> list[Compared]:
    """Compare every overridden or custom gradient of the first training step with the true and the declared one."""
    points: list[Overridden] = []

    def probe() -> list[tf.Tensor]:
        number = tf.constant(0, tf.int64)
        given = batch(number)
        for objective in trainer.objectives:
            trainer.losses(objective, trainer.forward(number, given, objective=objective.name, training=True), given)
        points[:] = find_points(tf.compat.v1.get_default_graph())
        return [tf.stack(_distances(point, index)) for index, point in enumerate(points)]

    with python_errors():
        found = tf.function(probe, autograph=False)()
    return [_compared(point, values.numpy().tolist()) for point, values in zip(points, found, strict=True)]


def _compared(point: Overridden, values: Sequence[float]) -> Compared:
    kind = "none" if point.surrogate is None else point.surrogate if isinstance(point.surrogate, str) else "declared"
    true, declared = (float("inf") if math.isnan(value) else value for value in values)
    op = point.outputs[0].op.name
    return Compared(point.name, op, kind, None if _is_coarse(point) else true, declared if kind == "declared" else None)


def _is_coarse(point: Overridden) -> bool:
    return any(tensor.dtype in (tf.float16, tf.bfloat16) for tensor in (*point.inputs, *point.outputs))


def _distances(point: Overridden, index: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the relative distances from the true gradient and from the surrogate's, float32 scalars."""
    upstream = [_normal(tensor, index, 1000 + position) for position, tensor in enumerate(point.outputs)]
    inputs = list(point.inputs)
    # One input may be computed from another, but the override returns the partial derivative of each.
    overridden = tf.gradients(list(point.outputs), inputs, grad_ys=upstream, stop_gradients=inputs)
    gradients = [_dense(gradient, tensor) for gradient, tensor in zip(overridden, inputs, strict=True)]
    true = tf.zeros([])
    if not _is_coarse(point):
        needed = {each for tensor in point.outputs for each in (tensor.op, *ancestors(tensor.op))}
        graph = tf.compat.v1.get_default_graph()
        steps = [each for each in graph.get_operations() if each in needed]  # inputs before their consumers
        each = [_from_differences(point, steps, index, i, upstream, gradients[i]) for i in range(len(inputs))]
        true = tf.reduce_max(each)
    if not callable(point.surrogate):
        return true, tf.zeros([])
    copies = [tf.identity(tensor) for tensor in inputs]
    values = point.surrogate(*copies)
    values = list(values) if isinstance(values, list | tuple) else [values]
    meant = tf.gradients(values, copies, grad_ys=upstream)
    pairs = [(gradients[i], _dense(meant[i], inputs[i])) for i in range(len(inputs))]
    return true, tf.reduce_max([_largest(ours - theirs, ours, theirs) for ours, theirs in pairs])


def _from_differences(
    point: Overridden,
    steps: Sequence[tf.Operation],
    index: int,
    position: int,
    upstream: list[tf.Tensor],
    gradient: tf.Tensor,
) -> tf.Tensor:
    """Return the relative distance of a gradient from central differences, over several random directions."""
    tensor = point.inputs[position]
    wide = tf.cast(tensor, tf.float32)
    size = tf.cast(STEP * tf.maximum(tf.sqrt(tf.reduce_mean(tf.square(wide))), 1e-3), tensor.dtype)
    ours, true = [], []
    for number in range(DIRECTIONS):
        direction = _normal(tensor, index, 10 * position + number)
        changes = []
        for sign in (1.0, -1.0):
            values = {id(each): each for each in point.inputs} | {id(tensor): tensor + sign * size * direction}
            moved = recompute(point.outputs, values, steps)
            changes.append([tf.cast(each, tf.float32) for each in moved])
        slopes = [
            tf.reduce_sum(tf.cast(g, tf.float32) * (up - down)) for g, up, down in zip(upstream, *changes, strict=True)
        ]
        true.append(tf.add_n(slopes) / (2.0 * tf.cast(size, tf.float32)))
        ours.append(tf.reduce_sum(tf.cast(gradient * direction, tf.float32)))
    ours, true = tf.stack(ours), tf.stack(true)
    return tf.math.divide_no_nan(_root_mean_square(ours - true), tf.maximum(*map(_root_mean_square, (ours, true))))


def _normal(tensor: tf.Tensor, *seed: int) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal(tf.shape(tensor), seed), tensor.dtype)


def _dense(gradient: Any, tensor: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(tensor) if gradient is None else tf.convert_to_tensor(gradient)


def _root_mean_square(values: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(values)))


def _largest(difference: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
    largest, *scales = (tf.reduce_max(tf.abs(tf.cast(each, tf.float32))) for each in (difference, *others))
    return tf.math.divide_no_nan(largest, tf.maximum(*scales))


def find_points(graph: tf.Graph) -> list[Overridden]:
    """Return the overrides in a graph, in its order: declared ones, `tf.custom_gradient`, and others.

    Only inputs that can have a gradient are kept. Overrides inside a branch, a loop or another function are not found.
    """
    points = [
        replace(each, inputs=tuple(filter(is_differentiable, each.inputs)))
        for each in graph.get_collection(OVERRIDES)
        if each.outputs[0].graph is graph
    ]
    known = {tensor.op for point in points for tensor in point.outputs}
    points += [
        point
        for operation in graph.get_operations()
        if MARK in operation.node_def.attr and operation not in known and (point := _undeclared(operation)) is not None
    ]
    order = {operation: position for position, operation in enumerate(graph.get_operations())}
    return sorted(points, key=lambda point: order[point.outputs[0].op])


def _undeclared(operation: tf.Operation) -> Overridden | None:
    inputs, outputs = list(operation.inputs), list(operation.outputs)
    if operation.type == "IdentityN":
        # `tf.custom_gradient` passes its results, followed by its arguments, through this op; the outputs for the
        # arguments are unused. An unused last result counts as an argument.
        results = max((i + 1 for i, tensor in enumerate(outputs) if tensor.consumers()), default=0)
        inputs, outputs = inputs[results:], outputs[:results]
    given, returned = (tuple(filter(is_differentiable, each)) for each in (inputs, outputs))
    return Overridden(operation.name, given, returned, UNDECLARED) if given and returned else None


def recompute(
    outputs: Sequence[tf.Tensor], values: Mapping[int, tf.Tensor], steps: Sequence[tf.Operation]
) -> list[tf.Tensor]:
    """Recompute tensors of the graph being traced by repeating `steps`, with some tensors replaced: {id: value}.

    Only ops that depend on the replaced tensors are repeated, without overridden gradients. Stateful ops, such as
    random draws, keep their values; Python functions run again.
    """
    known, graph = dict(values), tf.compat.v1.get_default_graph()
    for operation in steps:
        keeps = operation.op_def.is_stateful and operation.type not in PYTHON_OPS
        if keeps or not any(id(tensor) in known for tensor in operation.inputs):
            continue
        attributes = {key: value for key, value in operation.node_def.attr.items() if key != MARK}
        inputs = [known.get(id(tensor), tensor) for tensor in operation.inputs]
        dtypes = [tensor.dtype for tensor in operation.outputs]
        again = graph.create_op(operation.type, inputs, dtypes, attrs=attributes)
        for old, new in zip(operation.outputs, again.outputs, strict=True):
            known.setdefault(id(old), new)
    return [known.get(id(tensor), tensor) for tensor in outputs]
