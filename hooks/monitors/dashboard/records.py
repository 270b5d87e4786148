"""Records of TensorBoard, made on the host."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram_metadata
from tensorboard.plugins.image.metadata import create_summary_metadata as image_metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.util.tensor_util import make_tensor_proto

from hookline.hooks.monitors.pictures import encode_picture
from hookline.trainer.files import read_json
from hookline.trainer.run.directory import ENVIRONMENT
from hookline.trainer.run.results import format_value, metric_rows


def config_as_markdown(config: dict[str, Any]) -> str:
    """Return the resolved config as a fenced block of YAML."""
    return f"```yaml\n{OmegaConf.to_yaml(OmegaConf.create(config))}```"


def environment_as_markdown(directory: Path) -> str:
    """Return what `environment.json` says as a table of two columns; empty if a run has no such file."""
    try:
        environment = read_json(directory / ENVIRONMENT)
    except (OSError, ValueError):
        environment = None
    if not isinstance(environment, dict):
        return ""
    versions = [environment.pop(name, None) for name in ("packages", "plugins")]
    rows = {**environment, **{name: each[name] for each in versions if isinstance(each, Mapping) for name in each}}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {_as_cell(value)} |" for name, value in rows.items())])


def _as_cell(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or None
    return "none" if value is None else str(value).replace("|", "\\|")


def summary_as_markdown(summary: dict[str, Any]) -> str:
    """Return the result as a Markdown table of the metrics, followed by everything that `summary.json` holds."""
    lines = ["| | train (final) | validation (best) | test |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(map(format_value, values))} |" for name, *values in metric_rows(summary)]
    return "\n".join([*lines, "", "```json", json.dumps(summary, indent=2, default=str), "```"])


MOST_BYTES = 8 * 2**20  # a browser takes too long to lay out more
LARGE = 1_000  # bytes of a constant


def graph_event(graph: Any) -> Event | None:
    """Return the record of a graph; None, with a warning of one line, if it is too large to be viewed.

    Of a graph above 8 MB, constants of more than 1,000 bytes are left out.
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
    """Empty the values of large constants, in functions as well, and return how many there were."""
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    large = [node for node in nodes if node.op == "Const" and node.attr["value"].ByteSize() > LARGE]
    for node in large:
        tensor = node.attr["value"].tensor
        node.attr["value"].tensor.CopyFrom(type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape))
    return len(large)


BUCKETS = 30  # as many as TensorBoard shows


def scalar_summary(values: Mapping[str, float]) -> Summary:
    """Return values as one summary, marked for the scalars plugin."""
    summary = Summary()
    for name, value in values.items():
        summary.MergeFrom(scalar_pb(name, float(value)))
    return summary


def text_summary(texts: Mapping[str, str]) -> Summary:
    """Return texts as one summary, marked for the text plugin."""
    summary = Summary()
    for name, text in texts.items():
        summary.MergeFrom(text_pb(name, text))
    return summary


def picture_summary(pictures: Mapping[str, np.ndarray]) -> Summary:
    """Return pictures as one summary, marked for the images plugin."""
    summary = Summary()
    for name, picture in pictures.items():
        encoded = encode_picture(name, picture)
        height, width = picture.shape[:2]
        tensor = make_tensor_proto(np.array([str(width).encode(), str(height).encode(), encoded], dtype=object))
        summary.value.add(tag=name, metadata=image_metadata(display_name=name, description=""), tensor=tensor)
    return summary


def histogram_summary(arrays: Mapping[str, np.ndarray]) -> Summary:
    """Return histograms of arrays as one summary, marked for the histograms plugin."""
    summary = Summary()
    for name, values in arrays.items():
        tensor = make_tensor_proto(histogram(values))
        summary.value.add(tag=name, metadata=histogram_metadata(display_name=None, description=""), tensor=tensor)
    return summary


def histogram(values: np.ndarray) -> np.ndarray:
    """Return how many values lie in each of 30 equal parts of their range; values that are not finite are left out.

    TensorBoard's `histogram_pb` would compare each value with each part: 30 bytes a weight, and none may be infinite.
    """
    flat = np.asarray(values).ravel()
    flat = flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.float64)
    flat = flat if np.isfinite(flat.sum()) else flat[np.isfinite(flat)]
    if not flat.size:
        return np.zeros([0, 3])
    low, high = np.float64(flat.min()), np.float64(flat.max())  # edges in float32 may coincide, or overflow
    if low == high:
        parts = np.full([BUCKETS, 3], [low, low, 0.0])
        parts[-1, 2] = flat.size
        return parts
    counts, edges = np.histogram(flat, BUCKETS, (low, high))
    return np.stack([edges[:-1], edges[1:], counts], axis=1).astype(np.float64)
