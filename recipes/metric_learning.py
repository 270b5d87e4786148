"""Metric learning: distances, triplets, and measures and pictures of nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from hookline.trainer.input.source import HOST


def pairwise_distances(embeddings: tf.Tensor, *, squared: bool = False) -> tf.Tensor:
    """Return the Euclidean distances between all pairs of embeddings.

    They are computed from the differences, in memory of batch * batch * d: exactly 0 for equal embeddings, on every
    device. (The usual a^2 + b^2 - 2ab cancels where two are close, and a GPU may round its products to 10 bits.)

    The root has no derivative at 0, where TensorFlow gives infinity and NaN. Here it is 0: two equal embeddings pull in
    no direction.
    """
    differences = embeddings[:, tf.newaxis] - embeddings[tf.newaxis, :]
    squares = tf.reduce_sum(tf.square(differences), axis=-1)
    if squared:
        return squares
    apart = squares > 0.0
    return tf.where(apart, tf.sqrt(tf.where(apart, squares, 1.0)), 0.0)


@dataclass(frozen=True)
class Pairs:
    """Mark the pairs (anchor, other) of a batch: bool [batch, batch]."""

    positive: tf.Tensor  # two different examples of one class
    negative: tf.Tensor  # examples of two classes


def class_pairs(targets: tf.Tensor, weights: tf.Tensor) -> Pairs:
    """Return the pairs of the real examples."""
    real = weights > 0.0
    both_real = tf.logical_and(real[:, tf.newaxis], real[tf.newaxis, :])
    same = tf.equal(targets[:, tf.newaxis], targets[tf.newaxis, :])
    itself = tf.eye(tf.shape(targets)[0], dtype=tf.bool)
    positive = tf.logical_and(tf.logical_and(same, tf.logical_not(itself)), both_real)
    return Pairs(positive, tf.logical_and(tf.logical_not(same), both_real))


def mean_of(values: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Return the mean of the chosen values, 0 where there is none: float32 []."""
    count = tf.reduce_sum(tf.cast(chosen, tf.float32))
    return tf.math.divide_no_nan(tf.reduce_sum(tf.where(chosen, values, 0.0)), count)


def halves(targets: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Return the half, 0 or 1, of each example: int32 [examples].

    The examples of each class alternate between the two halves, the first one in half 0. So the halves share no image,
    and each holds half of every class, to within one example.
    """
    by_order = tf.argsort(order)
    by_class = tf.gather(by_order, tf.argsort(tf.gather(targets, by_order), stable=True))
    sorted_targets = tf.gather(targets, by_class)
    start = tf.searchsorted(sorted_targets, sorted_targets, side="left")
    rank = tf.range(tf.size(targets)) - start
    return tf.gather(rank % 2, tf.math.invert_permutation(by_class))


FAR = 1e9  # further than any two embeddings of length 1; finite, so that its gradient is a number


@dataclass(frozen=True)
class Triplets:
    """Hold distances from anchors. All three tensors have one shape; the first axis is the anchor's."""

    positive: tf.Tensor
    negative: tf.Tensor
    valid: tf.Tensor  # bool: False where there is no such triplet; the distances there mean nothing


Mining: TypeAlias = "Callable[[tf.Tensor, Pairs], Triplets]"
"""Called with distances [batch, batch] and the pairs."""


def batch_hard(distances: tf.Tensor, pairs: Pairs) -> Triplets:
    """Return for each anchor its farthest positive and its nearest negative: [batch].

    Hermans et al., In Defense of the Triplet Loss for Person Re-Identification, 2017, equation 5.
    """
    positive = tf.reduce_max(tf.where(pairs.positive, distances, -FAR), axis=1)
    negative = tf.reduce_min(tf.where(pairs.negative, distances, FAR), axis=1)
    return Triplets(positive, negative, tf.logical_and(_any(pairs.positive), _any(pairs.negative)))


def semi_hard(distances: tf.Tensor, pairs: Pairs) -> Triplets:
    """Return for each positive pair the nearest negative that is farther than the positive: [batch, batch].

    Schroff et al., FaceNet, 2015, section 3.2. If no negative is farther, a case the paper leaves open, the farthest
    negative is used: the least hard of those that are all too hard.
    """
    to_negatives = distances[:, tf.newaxis, :]
    negative = pairs.negative[:, tf.newaxis, :]
    farther = tf.logical_and(negative, to_negatives > distances[:, :, tf.newaxis])
    nearest = tf.reduce_min(tf.where(farther, to_negatives, FAR), axis=2)
    farthest = tf.reduce_max(tf.where(pairs.negative, distances, -FAR), axis=1, keepdims=True)
    chosen = tf.where(_any(farther), nearest, farthest)
    return Triplets(distances, chosen, tf.logical_and(pairs.positive, _any(pairs.negative)[:, tf.newaxis]))


def batch_all(distances: tf.Tensor, pairs: Pairs) -> Triplets:
    """Return every triplet of the batch: [batch, batch, batch], anchors by positives by negatives.

    Hermans et al. 2017, equation 6.
    """
    valid = tf.logical_and(pairs.positive[:, :, tf.newaxis], pairs.negative[:, tf.newaxis, :])
    shape = tf.shape(valid)
    return Triplets(
        tf.broadcast_to(distances[:, :, tf.newaxis], shape), tf.broadcast_to(distances[:, tf.newaxis, :], shape), valid
    )


MININGS: dict[str, Mining] = {"batch_hard": batch_hard, "semi_hard": semi_hard, "batch_all": batch_all}


def _any(chosen: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(chosen, axis=-1)


def triplet_loss(triplets: Triplets, margin: float | None, *, over_active: bool) -> tf.Tensor:
    """Return the mean loss of triplets, 0 with a gradient of 0 where there is none: float32 [].

    One triplet costs max(0, positive - negative + margin) (Schroff et al. 2015, equation 3), or
    log(1 + exp(positive - negative)) with the soft margin (Hermans et al. 2017, section 2).
    """
    gap = _gap(triplets)
    losses = tf.nn.softplus(gap) if margin is None else tf.nn.relu(gap + margin)
    # With the soft margin every triplet costs something.
    counted = triplets.valid if margin is None or not over_active else active_triplets(triplets, margin)
    return mean_of(losses, counted)


def active_triplets(triplets: Triplets, margin: float | None) -> tf.Tensor:
    """Return which triplets still violate the margin: bool, of their shape."""
    gap = _gap(triplets)
    wrong = gap >= 0.0 if margin is None else gap + margin > 0.0
    return tf.logical_and(triplets.valid, wrong)


def _gap(triplets: Triplets) -> tf.Tensor:
    """Return how much farther the positive is than the negative; 0 where there is no triplet."""
    return tf.where(triplets.valid, triplets.positive - triplets.negative, 0.0)


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
        rows.append(_joined([tiles[0], _paper(tiles[0], GAP), *tiles[1:]], axis=1))
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
    parts = [_paper(tiles[0], GAP, axis)]
    for tile in tiles:
        parts += [tile, _paper(tile, GAP, axis)]
    return np.concatenate(parts, axis=axis)


def _paper(tile: np.ndarray, pixels: int, axis: int = 1) -> np.ndarray:
    shape = list(tile.shape)
    shape[axis] = pixels
    return np.full(shape, PAPER, np.float32)


QUERIES_AT_ONCE = 256
"""How many queries are ranked together: memory for that many rows of distances is needed."""


@dataclass(frozen=True)
class _Ranked:
    """Hold a split, ready to be searched."""

    embeddings: tf.Tensor  # float32 [examples, d], of length 1
    targets: tf.Tensor  # integers [examples]
    half: tf.Tensor  # int32 [examples]
    relevant: tf.Tensor  # int32 [examples]: images of the same class in the other half
    depth: tf.Tensor  # int32 []: how many neighbours to look at


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
        means = {name: mean_of(value, matched) for name, value in found.items()}
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
