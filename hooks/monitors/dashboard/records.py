"""Scalars, pictures, texts and histograms as TensorBoard's records, made on the host."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram_metadata
from tensorboard.plugins.image.metadata import create_summary_metadata as image_metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.util.tensor_util import make_tensor_proto

from hooks.monitors.pictures import encode_picture

BUCKETS = 30  # as many as TensorBoard shows


def scalar_summary(values: Mapping[str, float]) -> Summary:
    """Return values as one summary, marked for the scalars plugin.

    Args:
        values: numbers by name.
    """
    summary = Summary()
    for name, value in values.items():
        summary.MergeFrom(scalar_pb(name, float(value)))
    return summary


def text_summary(texts: Mapping[str, str]) -> Summary:
    """Return texts as one summary, marked for the text plugin.

    Args:
        texts: Markdown by name.
    """
    summary = Summary()
    for name, text in texts.items():
        summary.MergeFrom(text_pb(name, text))
    return summary


def picture_summary(pictures: Mapping[str, np.ndarray]) -> Summary:
    """Return pictures as one summary, marked for the images plugin.

    Args:
        pictures: float [height, width, channels] in [0, 1], 1 or 3 channels, by name.
    """
    summary = Summary()
    for name, picture in pictures.items():
        encoded = encode_picture(name, picture)
        height, width = picture.shape[:2]
        tensor = make_tensor_proto(np.array([str(width).encode(), str(height).encode(), encoded], dtype=object))
        summary.value.add(tag=name, metadata=image_metadata(display_name=name, description=""), tensor=tensor)
    return summary


def histogram_summary(arrays: Mapping[str, np.ndarray]) -> Summary:
    """Return histograms of arrays as one summary, marked for the histograms plugin.

    Args:
        arrays: numbers of any shape, by name.
    """
    summary = Summary()
    for name, values in arrays.items():
        tensor = make_tensor_proto(histogram(values))
        summary.value.add(tag=name, metadata=histogram_metadata(display_name=None, description=""), tensor=tensor)
    return summary


def histogram(values: np.ndarray) -> np.ndarray:
    """Return how many values lie in each of 30 equal parts of their range; values that are not finite are left out.

    Args:
        values: numbers of any shape.

    Returns:
        float64 [parts, 3]: left edge, right edge, count. Of values that are all the same, all are in the last part,
        whose edges are that value; without any value, there are no parts.
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
