"""The record of the graph stays small enough to be looked at, and says in one line what it leaves out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf

from hooks.monitors.dashboard import graph as module
from hooks.monitors.dashboard.graph import graph_event


def graph_with(entries: int):
    with tf.Graph().as_default() as graph:
        tf.constant(np.arange(entries, dtype=np.float32) + 0.5, name="table")
        tf.constant([1.0, 2.0], name="small")
    return graph.as_graph_def()


def nodes_of(event):
    definition = tf.compat.v1.GraphDef.FromString(event.graph_def)
    return {node.name: node for node in definition.node}


def test_a_small_graph_is_written_as_it_is() -> None:
    graph = graph_with(5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        event = graph_event(graph)
    assert nodes_of(event)["table"] == graph.node[0]


def test_large_constants_are_left_out_in_one_line(monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 5_000)
    with pytest.warns(UserWarning, match=r"leaves out 1 large constants of the step's 20,\d+ bytes") as caught:
        event = graph_event(graph_with(5000))
    nodes = nodes_of(event)
    assert len(caught) == 1
    assert len(event.graph_def) < 1_000
    assert nodes["table"].attr["value"].tensor.tensor_shape.dim[0].size == 5000
    assert nodes["table"].attr["value"].tensor.dtype == tf.float32.as_datatype_enum
    assert tf.make_ndarray(nodes["small"].attr["value"].tensor).tolist() == [1.0, 2.0]


def test_what_is_still_too_large_is_not_written(monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 50)
    with pytest.warns(UserWarning, match=r"GRAPHS tab stays empty: the step's graph has \d+ bytes") as caught:
        assert graph_event(graph_with(5000)) is None
    assert len(caught) == 1
