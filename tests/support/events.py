"""Event files read back, by TensorBoard's own readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.util import tensor_util

from hookline.trainer.run.run import Run


def events(run: Run, split: str) -> Iterator[Event]:
    """Return the events of a split that have a summary."""
    for path in sorted((run.directory / "tensorboard" / split).iterdir()):
        yield from (event for event in EventFileLoader(str(path)).Load() if event.HasField("summary"))


def values(run: Run, split: str, plugin: str = "scalars") -> list[tuple[int, str, Any]]:
    """Return (step, tag, value) of the records that are marked for a plugin."""
    return [
        (event.step, value.tag, tensor_util.make_ndarray(value.tensor).item())
        for event in events(run, split)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == plugin
    ]


def read(run: Run, split: str) -> EventAccumulator:
    """Return TensorBoard's reader of a split."""
    reader = EventAccumulator(str(run.directory / "tensorboard" / split))
    reader.Reload()
    return reader


def curve(run: Run, split: str) -> list[tuple[int, float]]:
    """Return what TensorBoard keeps of the total loss."""
    kept = read(run, split).Tensors("loss/total")
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in kept]


def small_graph() -> Any:
    """Return a graph of one op, as a `GraphDef`."""
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="forward/model/one")
    return graph.as_graph_def()
