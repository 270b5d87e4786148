"""The record of the graph stays small enough to be looked at, and says in one line what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.monitors.dashboard import records as module
from hookline.hooks.monitors.dashboard.records import graph_event


def test_large_constants_are_left_out(monkeypatch) -> None:
    with tf.Graph().as_default() as made:
        tf.constant(np.arange(5000, dtype=np.float32) + 0.5, name="table")
        tf.constant([1.0, 2.0], name="small")
    graph = made.as_graph_def()

    def nodes() -> dict:
        event = graph_event(graph)
        assert len(event.graph_def) < module.MOST_BYTES
        return {node.name: node for node in tf.compat.v1.GraphDef.FromString(event.graph_def).node}

    assert nodes()["table"] == graph.node[0]  # a warning would be an error
    monkeypatch.setattr(module, "MOST_BYTES", 5_000)
    with pytest.warns(UserWarning, match=r"leaves out 1 large constants"):
        found = nodes()
    table = found["table"].attr["value"].tensor
    assert (table.tensor_shape.dim[0].size, table.dtype) == (5000, tf.float32.as_datatype_enum)
    assert tf.make_ndarray(found["small"].attr["value"].tensor).tolist() == [1.0, 2.0]
    monkeypatch.setattr(module, "MOST_BYTES", 50)
    with pytest.warns(UserWarning, match=r"stays empty: the step's graph has \d+ bytes"):
        assert graph_event(graph) is None
