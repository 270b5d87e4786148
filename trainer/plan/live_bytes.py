"""How many bytes of tensors live at once while a graph runs: an estimate by walking its ops."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

SAME_BUFFER = frozenset(
    {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "CheckNumerics"}
    | {"Bitcast", "EnsureShape"}
)
"""Ops whose output lies where their input does."""
NO_BUFFER = frozenset({"ReadVariableOp", "Placeholder", "VarHandleOp"})
"""Ops whose output lies in a variable, or comes from an outer graph, where it counts."""
LOOP, BRANCH, CALL = ("body", "cond"), ("then_branch", "else_branch"), ("f",)
FUNCTIONS = {
    **dict.fromkeys(("While", "StatelessWhile"), LOOP),
    **dict.fromkeys(("If", "StatelessIf"), BRANCH),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), CALL),
}
"""Ops that run other graphs, with the attributes that name them."""


@dataclass(frozen=True)
class LiveBytes:
    """Hold an estimate.

    Attributes:
        peak: bytes of the tensors that live at once.
        unsized: how many tensors are left out, because their size shows only when they are made.
    """

    peak: int
    unsized: int


def live_bytes(graph: tf.Graph, *, open_size: int, leave_out: Collection[int] = ()) -> LiveBytes:
    """Return how many bytes of tensors live at once, if the ops run in the order in which they were traced.

    A tensor lives from its op to the last op that takes it; what a function returns, to its end. Branches and loops
    count with one pass of their largest graph. This is an estimate: several ops may run at the same time (more), an op
    may write over its input and XLA may fuse ops (less). Scratch memory inside an op, such as that of a convolution, is
    not counted, nor are variables.

    Args:
        graph: of a traced function.
        open_size: what an open dimension counts as, such as the batch.
        leave_out: identities of tensors that are counted elsewhere.
    """
    operations = _givers_first(graph)
    buffers, last_use = _buffers(operations)
    live = peak = unsized = 0
    ends: dict[int, int] = {}  # index of an op: bytes that nobody takes after it
    for index, operation in enumerate(operations):
        inner = [live_bytes(each, open_size=open_size, leave_out=leave_out) for each in inner_graphs(operation)]
        unsized += sum(each.unsized for each in inner)
        made = 0
        for tensor in operation.outputs:
            if buffers[id(tensor)] == id(tensor) and operation.type not in NO_BUFFER and id(tensor) not in leave_out:
                size = _size(tensor, open_size)
                unsized += size is None
                made += size or 0
                end = last_use[id(tensor)]
                ends[end] = ends.get(end, 0) + (size or 0)
        peak = max(peak, live + max([made, *(each.peak for each in inner)]))
        live += made - ends.pop(index, 0)
    return LiveBytes(peak, unsized)


def _givers_first(graph: tf.Graph) -> list[tf.Operation]:
    """Return a graph's ops in the order in which they were traced, but none before an op that it takes from.

    The gradient of a loop gives the loop, which was traced before it, lists to keep activations in.
    """
    ordered: list[tf.Operation] = []
    met: set[str] = set()
    for operation in graph.get_operations():
        waiting = [operation] if operation.name not in met else []
        while waiting:
            met.add(waiting[-1].name)
            giver = next((each.op for each in waiting[-1].inputs if each.op.name not in met), None)
            if giver is None:
                ordered.append(waiting.pop())
            else:
                waiting.append(giver)
    return ordered


def _buffers(operations: Sequence[tf.Operation]) -> tuple[dict[int, int], dict[int, int]]:
    """Return which tensor each one shares its memory with, and the index of the op that last takes that, by identity.

    A tensor with memory of its own shares it with itself.
    """
    buffers: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, operation in enumerate(operations):
        for tensor in operation.inputs:
            last_use[buffers[id(tensor)]] = index
        for number, tensor in enumerate(operation.outputs):
            shares = operation.type in SAME_BUFFER and number < len(operation.inputs)
            buffers[id(tensor)] = buffers[id(operation.inputs[number])] if shares else id(tensor)
            last_use[buffers[id(tensor)]] = index
    return buffers, last_use


def _size(tensor: tf.Tensor, open_size: int) -> int | None:
    """Return the bytes of a tensor; None where they cannot be known."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return None if tensor.dtype == tf.variant else 0
    if tensor.shape.rank is None:
        return None
    return math.prod(open_size if each is None else each for each in tensor.shape) * tensor.dtype.size


def inner_graphs(operation: tf.Operation) -> Iterator[tf.Graph]:
    """Yield the graphs that an op runs.

    Args:
        operation: of the graph of a traced function.
    """
    for attribute in FUNCTIONS.get(operation.type, ()):
        function = operation.graph._get_function(operation.get_attr(attribute).name)
        if (graph := getattr(function, "graph", None)) is not None:
            yield graph
