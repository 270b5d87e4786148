"""Traversal of traced graphs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def ancestors(operation: tf.Operation) -> set[tf.Operation]:
    """Return every op that runs before `operation`, through inputs and control inputs, within its graph."""
    found: set[tf.Operation] = set()
    waiting = [operation]
    while waiting:
        current = waiting.pop()
        for parent in (*(tensor.op for tensor in current.inputs), *current.control_inputs):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def origins(tensor: Any) -> list[Any]:
    """Return a tensor, and the tensors of outer graphs that it was captured from, the outermost last."""
    found = [tensor]
    while isinstance(graph := getattr(found[-1], "graph", None), tf.__internal__.FuncGraph):
        captured = {id(internal): external for external, internal in graph.captures}
        if id(found[-1]) not in captured:
            break
        found.append(captured[id(found[-1])])
    return found


def with_outer_graphs(graph: tf.Graph) -> list[tf.Graph]:
    """Return a graph and the graphs that enclose it, up to that of the outermost function."""
    graphs = [graph]
    while isinstance(outer := getattr(graphs[-1], "outer_graph", None), tf.__internal__.FuncGraph):
        graphs.append(outer)
    return graphs
