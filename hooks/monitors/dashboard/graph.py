"""The graph of the traced step as a record of bounded size."""

from __future__ import annotations

import warnings
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event

MOST_BYTES = 8 * 2**20  # a browser lays out no more in good time
LARGE = 1_000  # bytes of a constant


def graph_event(graph: Any) -> Event | None:
    """Return the record of a graph; None where it is too large to be looked at, which is said in one line.

    Of a graph above 8 MB, constants of more than 1,000 bytes are left out.

    Args:
        graph: `GraphDef`; it is changed.
    """
    if (size := graph.ByteSize()) > MOST_BYTES:
        dropped = _drop_constants(graph)
        if (rest := graph.ByteSize()) > MOST_BYTES:
            warnings.warn(f"TensorBoard's GRAPHS tab stays empty: the step's graph has {rest:,} bytes.", stacklevel=2)
            return None
        warnings.warn(
            f"TensorBoard's GRAPHS tab leaves out {dropped} large constants of the step's {size:,} bytes.", stacklevel=2
        )
    return Event(graph_def=graph.SerializeToString())


def _drop_constants(graph: Any) -> int:
    """Empty the values of large constants, in functions as well, and return of how many."""
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    large = [node for node in nodes if node.op == "Const" and node.attr["value"].ByteSize() > LARGE]
    for node in large:
        tensor = node.attr["value"].tensor
        dtype, shape = tensor.dtype, type(tensor.tensor_shape).FromString(tensor.tensor_shape.SerializeToString())
        tensor.Clear()
        tensor.dtype = dtype
        tensor.tensor_shape.CopyFrom(shape)
    return len(large)
