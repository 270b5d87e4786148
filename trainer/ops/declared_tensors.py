"""Whether a function uses tensors from around it that were not declared: no gradient would reach them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.ops.gradient_checks import describe, is_differentiable

CONSTANT_OPS = ("Const", "StopGradient")
REMEDY = "Expected it among the inputs, where it gets a gradient, or among the constants"


@contextmanager
def watch_declared(what: str, declared: Sequence[tf.Tensor]) -> Iterator[None]:
    """Refuse what the code in the block uses from outside and was not given.

    Args:
        what: begins the messages, such as "The forward pass of 'sign'".
        declared: tensors that the code may use.

    Raises:
        UserError: a trainable variable was read, or a float tensor of the surrounding graph was used.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = len(graph.get_operations()) if graph is not None else 0
    with tf.GradientTape() as tape:  # it sees every trainable variable that is read
        yield
    if variables := sorted(variable.name for variable in tape.watched_variables()):
        raise UserError(
            f"{what} reads the trainable variable {variables[0]}, and no gradient would reach it. {REMEDY}: give it "
            "as an argument."
        )
    if graph is not None and (tensor := _undeclared(graph, before, declared)) is not None:
        raise UserError(f"{what} uses the tensor {tensor.name}, {describe(tensor)}, from outside. {REMEDY}.")


def _undeclared(graph: tf.Graph, before: int, declared: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Return a tensor that the ops after the first `before` ones use, and that is not declared."""
    created = set(graph.get_operations()[before:])
    known = {id(each) for tensor in declared for each in _origins(tensor)}
    for operation in created:
        captured = operation.type == "Placeholder"
        for tensor in operation.outputs if captured else operation.inputs:
            if (captured or tensor.op not in created) and not any(id(each) in known for each in _origins(tensor)):
                origin = _origins(tensor)[-1]
                if _may_need_gradient(origin):
                    return origin
    return None


def _may_need_gradient(tensor: Any) -> bool:
    if not isinstance(getattr(tensor, "graph", None), tf.Graph):  # an eager tensor: it has its value
        return False
    return is_differentiable(tensor) and tensor.op.type not in CONSTANT_OPS


def _origins(tensor: Any) -> list[Any]:
    """Return a tensor, and the tensors of outer graphs that it was captured from, the outermost last."""
    found = [tensor]
    while isinstance(graph := getattr(tensor, "graph", None), tf.__internal__.FuncGraph):
        captured = {id(internal): external for external, internal in graph.captures}
        if id(tensor) not in captured:
            break
        tensor = captured[id(tensor)]
        found.append(tensor)
    return found
