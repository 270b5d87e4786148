"""A part of a traced graph, computed again on other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

KEPT_MARK = "_gradient_op_type"
PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def recompute(outputs: Sequence[tf.Tensor], values: Mapping[int, tf.Tensor]) -> list[tf.Tensor]:
    """Return tensors of the graph being traced as they would be with other values in some places.

    Only what depends on the places is computed again, without the gradients that were overridden in it. Random draws
    that depend on nothing but a shape, and other ops with a state, stay what they were; functions of Python run again.

    Args:
        outputs: of the graph.
        values: in the places of tensors of the graph, by their identity, in their shapes and dtypes.
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
    """Return the ops before the ends, and these, each after those that it takes from; none before a place."""
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
