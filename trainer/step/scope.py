"""Which tensors a graph that is being traced can use: its own, and those of the graphs around it."""

from __future__ import annotations

import tensorflow as tf


def with_outer_graphs(graph: tf.Graph) -> list[tf.Graph]:
    """Return a graph and those around it, up to that of the outermost function.

    Args:
        graph: of a function, branch or loop body; or one that nothing is around.
    """
    graphs = [graph]
    while isinstance(outer := getattr(graphs[-1], "outer_graph", None), tf.__internal__.FuncGraph):
        graphs.append(outer)
    return graphs


def stray_tensors() -> list[str]:
    """Return names of tensors that the graph being traced uses, and that belong to none of the graphs around it."""
    graph, functions = tf.compat.v1.get_default_graph(), tf.__internal__.FuncGraph
    if not isinstance(graph, functions):
        return []
    around = with_outer_graphs(graph)
    used = [tensor for tensor, _ in graph.captures if isinstance(getattr(tensor, "graph", None), functions)]
    return [tensor.name for tensor in used if tensor.graph not in around]
