"""recall@k, and pictures of neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from hookline.recipes.metric_learning.triplet_loss import halves
from hookline.trainer.input.source import HOST

NEIGHBOURS = 5
SMALLEST = 48  # pixels a side: smaller images are enlarged to at least this
FRAME, GAP = 3, 4  # pixels
RIGHT, WRONG = (0.1, 0.65, 0.2), (0.85, 0.1, 0.1)
PAPER = 1.0


def nearest_neighbours(
    embeddings: np.ndarray, half: np.ndarray, queries: Sequence[int], count: int = NEIGHBOURS
) -> list[np.ndarray]:
    """Return the positions of the nearest examples in the other half, nearest first, for each query."""
    found = []
    for query in queries:
        gallery = np.flatnonzero(half != half[query])
        similarity = embeddings[gallery] @ embeddings[query]
        found.append(gallery[np.argsort(-similarity, kind="stable")[:count]])
    return found


def neighbour_sheet(
    queries: np.ndarray, neighbours: Sequence[np.ndarray], correct: Sequence[Sequence[bool]]
) -> np.ndarray:
    """Return a picture: a row for each query, with the query to the left of its neighbours."""
    widest = max(len(images) for images in neighbours)
    rows = []
    for query, images, right in zip(queries, neighbours, correct, strict=True):
        tiles = [_framed(query, (PAPER,) * 3)]
        tiles += [_framed(image, RIGHT if good else WRONG) for image, good in zip(images, right, strict=True)]
        tiles += [np.full_like(tiles[0], PAPER)] * (widest - len(images))
        # A wider gap parts the query from its neighbours.
        rows.append(_joined([tiles[0], _gap(tiles[0], GAP), *tiles[1:]], axis=1))
    return _joined(rows, axis=0)


def _framed(image: np.ndarray, colour: tuple[float, float, float]) -> np.ndarray:
    """Return an image as RGB in [0, 1], enlarged where it is small, in a frame."""
    pixels = np.clip((image.astype(np.float32) + 1.0) / 2.0, 0.0, 1.0)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    times = max(1, math.ceil(SMALLEST / min(pixels.shape[:2])))
    pixels = pixels.repeat(times, axis=0).repeat(times, axis=1)
    framed = np.empty((pixels.shape[0] + 2 * FRAME, pixels.shape[1] + 2 * FRAME, 3), np.float32)
    framed[:] = colour
    framed[FRAME:-FRAME, FRAME:-FRAME] = pixels
    return framed


def _joined(tiles: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Return tiles side by side (axis 1) or one below the other (axis 0), with gaps around each."""
    parts = [_gap(tiles[0], GAP, axis)]
    for tile in tiles:
        parts += [tile, _gap(tile, GAP, axis)]
    return np.concatenate(parts, axis=axis)


def _gap(tile: np.ndarray, pixels: int, axis: int = 1) -> np.ndarray:
    shape = list(tile.shape)
    shape[axis] = pixels
    return np.full(shape, PAPER, np.float32)


QUERIES_AT_ONCE = 256
"""How many queries are ranked together: memory for that many rows of distances is needed."""


@dataclass(frozen=True)
class _Ranked:
    """Hold a split, ready to be searched.

    Attributes:
        embeddings: float32 [examples, d], of length 1.
        targets: integers [examples].
        half: int32 [examples].
        relevant: int32 [examples]: images of the same class in the other half.
        depth: int32 []: how many neighbours to look at.
    """

    embeddings: tf.Tensor
    targets: tf.Tensor
    half: tf.Tensor
    relevant: tf.Tensor
    depth: tf.Tensor


def retrieval_metrics(
    embeddings: tf.Tensor, targets: tf.Tensor, order: tf.Tensor, recall_at: Sequence[int]
) -> dict[str, tf.Tensor]:
    """Return how well examples find others of their class, as means over the examples.

    The split is halved (see `halves`); each example is a query to the half that it is not in, so that no query finds
    itself. With R the number of the query's class in that half:

    - recall@k: whether one of the k nearest is of the query's class.
    - r_precision: the share of the query's class among the R nearest.
    - map@r: the mean over i = 1 .. R of the precision of the i nearest, counted where the i-th is of the class
      (Musgrave et al., A Metric Learning Reality Check, 2020, section 3.1).
    - unmatched: how many queries have R = 0. They are in no mean; where all are, the means are 0.

    Of two that are equally near, the one earlier in the split comes first.
    """
    # On the host: a GPU may round products to 10 bits, and its sort does not promise to be stable.
    with tf.device(HOST):
        split = _prepare(embeddings, targets, order, recall_at)
        found = _over_blocks(split, recall_at)
        matched = split.relevant > 0
        count = tf.reduce_sum(tf.cast(matched, tf.float32))
        means = {
            name: tf.math.divide_no_nan(tf.reduce_sum(tf.where(matched, value, 0.0)), count)
            for name, value in found.items()
        }
        return {**means, "unmatched": tf.cast(tf.size(targets), tf.float32) - count}


def _prepare(embeddings: tf.Tensor, targets: tf.Tensor, order: tf.Tensor, recall_at: Sequence[int]) -> _Ranked:
    half = halves(targets, order)
    groups = 2 * tf.cast(targets, tf.int32) + half
    sizes = tf.math.bincount(groups, minlength=2 * (tf.cast(tf.reduce_max(targets), tf.int32) + 1))
    relevant = tf.gather(sizes, groups + 1 - 2 * half)
    depth = tf.minimum(tf.maximum(tf.reduce_max(relevant), max(recall_at)), tf.size(targets))
    return _Ranked(embeddings, targets, half, relevant, depth)


def _over_blocks(split: _Ranked, recall_at: Sequence[int]) -> dict[str, tf.Tensor]:
    """Return the measures of every query: float32 [examples] by name."""
    size = tf.size(split.targets)
    blocks = (size + QUERIES_AT_ONCE - 1) // QUERIES_AT_ONCE
    queries = tf.reshape(tf.minimum(tf.range(blocks * QUERIES_AT_ONCE), size - 1), [blocks, QUERIES_AT_ONCE])
    names = [*(f"recall@{k}" for k in recall_at), "map@r", "r_precision"]
    signature = dict.fromkeys(names, tf.TensorSpec([QUERIES_AT_ONCE], tf.float32))

    def measure(block: tf.Tensor) -> dict[str, tf.Tensor]:
        return _measure(split, block, recall_at)

    found = tf.map_fn(measure, queries, fn_output_signature=signature, parallel_iterations=1)
    return {name: tf.reshape(value, [-1])[:size] for name, value in found.items()}


def _measure(split: _Ranked, queries: tf.Tensor, recall_at: Sequence[int]) -> dict[str, tf.Tensor]:
    """Return the measures of some queries (positions, int32 [n]): float32 [n] by name."""
    in_gallery = tf.not_equal(tf.gather(split.half, queries)[:, tf.newaxis], split.half)
    similarity = tf.matmul(tf.gather(split.embeddings, queries), split.embeddings, transpose_b=True)
    _, nearest = tf.math.top_k(tf.where(in_gallery, similarity, similarity.dtype.min), k=split.depth)
    # Places beyond the gallery's end never count: a query with a match finds it before.
    correct = tf.equal(tf.gather(split.targets, nearest), tf.gather(split.targets, queries)[:, tf.newaxis])
    relevant = tf.gather(split.relevant, queries)[:, tf.newaxis]
    rank = tf.range(1, split.depth + 1)
    hits = tf.cast(tf.logical_and(correct, rank <= relevant), tf.float32)
    precision = tf.cumsum(hits, axis=1) / tf.cast(rank, tf.float32)
    count = tf.cast(relevant[:, 0], tf.float32)
    found = {f"recall@{k}": tf.cast(tf.reduce_any(correct[:, :k], axis=1), tf.float32) for k in recall_at}
    found["map@r"] = tf.math.divide_no_nan(tf.reduce_sum(precision * hits, axis=1), count)
    found["r_precision"] = tf.math.divide_no_nan(tf.reduce_sum(hits, axis=1), count)
    return found
