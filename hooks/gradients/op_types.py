"""Op types whose gradient is overridden."""

from __future__ import annotations

import inspect
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError, did_you_mean, unknown_name
from hookline.trainer.ops.backward import BACKWARDS, Backward
from hookline.trainer.ops.override_gradient import Override, compute_gradients, declare_override, is_differentiable


def parse_backward(given: Any) -> Backward:
    """Return the backward pass that a config names."""
    if isinstance(given, Backward):
        return given
    arguments = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise UserError(
            f"Invalid backward: {given!r}. Expected a name such as reverse, {{name: reverse, factor: 0.5}}, or "
            "{_target_: my_package.my_backward}, where that returns a Backward."
        )
    if name not in BACKWARDS:
        raise unknown_name("backward", name, BACKWARDS)
    known = inspect.signature(BACKWARDS[name]).parameters
    for argument in arguments:
        if argument not in known:
            raise unknown_name(f"argument of backward {name}", str(argument), known)
    return BACKWARDS[name](**arguments)


MARK = "_gradient_op_type"
MOST_LISTED = 40


def _gradients(
    backward: Backward, name: str, operation: tf.Operation, upstream: tuple[Any, ...]
) -> list[tf.Tensor | None]:
    inputs, outputs = tuple(operation.inputs), tuple(operation.outputs)
    given = tuple(
        tf.zeros_like(o) if u is None else tf.convert_to_tensor(u) for u, o in zip(upstream, outputs, strict=True)
    )
    declared: dict[str, Any] = {"constants": backward.constants, "second_backward": backward.second_backward}
    if not backward.modifies:
        override = Override(name, tf.identity, backward, inputs, **declared)
        return compute_gradients(override, given, inputs, outputs[0] if len(outputs) == 1 else outputs)
    own = ordinary_gradients(operation, given)
    floats = [(tensor, gradient) for tensor, gradient in zip(inputs, own, strict=True) if gradient is not None]
    tensors = tuple(tensor for tensor, _ in floats)
    override = Override(name, tf.identity, backward, tensors, **declared)
    found = iter(compute_gradients(override, tuple(gradient for _, gradient in floats), tensors, tensors))
    return [None if gradient is None else next(found) for gradient in own]


def ordinary_gradients(operation: tf.Operation, upstream: tuple[tf.Tensor, ...]) -> list[tf.Tensor | None]:
    """Return TensorFlow's own gradients of an op, one for each input, as if nothing were mapped."""
    inputs = [tf.identity(each) for each in operation.inputs]
    floats = [each for each in inputs if is_differentiable(each)]
    gradients = tf.gradients(repeat(operation, inputs), floats, grad_ys=list(upstream))
    found = {id(each): gradient for each, gradient in zip(floats, gradients, strict=True) if gradient is not None}
    return [tf.convert_to_tensor(found[id(each)]) if id(each) in found else None for each in inputs]


def repeat(operation: tf.Operation, inputs: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Return the outputs of an op of the same type and attributes on other inputs, without the mark."""
    attributes = {key: value for key, value in operation.node_def.attr.items() if key != MARK}
    dtypes = [each.dtype for each in operation.outputs]
    graph = tf.compat.v1.get_default_graph()
    return list(graph.create_op(operation.type, list(inputs), dtypes, attrs=attributes).outputs)


@contextmanager
def override_ops(op_type: str, backward: Backward, name: str) -> Iterator[None]:
    """Give the ops of a type that the block creates another gradient."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    key = f"hookline_{uuid.uuid4().hex}"  # the registry is the process's, and forgets nothing

    @tf.RegisterGradient(key)
    def gradient(operation: tf.Operation, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
        return _gradients(backward, f"{name}, {operation.name}", operation, upstream)

    with graph.gradient_override_map({op_type: key}):
        yield
    created = graph.get_operations()[before:]
    hidden = _inside_functions(graph, created)
    if hidden[op_type]:
        raise UserError(
            f"hooks.{name}.op_type={op_type} received, but {hidden[op_type]} ops of this type are inside a branch, a "
            "loop or another function, where no override reaches them. Expected layers=<pattern> in its place."
        )
    marked = [each for each in created if each.type == op_type]
    if not marked:
        types = sorted({each.type for each in created if any(map(is_differentiable, each.inputs))})
        raise UserError(
            f"hooks.{name}.op_type={op_type} received, but no such op occurs in the forward pass."
            f"{did_you_mean(op_type, types)} Expected one of: {', '.join(types[:MOST_LISTED])}."
        )
    for operation in marked:
        declare_override(f"{name}, {operation.name}", operation.inputs, operation.outputs, backward.surrogate)


def _inside_functions(graph: tf.Graph, operations: Iterable[tf.Operation]) -> Counter[str]:
    """Count the ops of each type inside the functions that ops call, such as the body of a loop."""
    nodes = [operation.node_def for operation in operations]
    waiting = _called(nodes)
    if not waiting:
        return Counter()
    library = {function.signature.name: function.node_def for function in graph.as_graph_def().library.function}
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen and name in library:
            seen.add(name)
            counts.update(node.op for node in library[name])
            waiting |= _called(library[name])
    return counts


def _called(nodes: Iterable[Any]) -> set[str]:
    return {
        function.name
        for node in nodes
        for value in node.attr.values()
        for function in (value.func, *value.list.func)
        if function.name
    }
