"""Retrieval: an embedding network, trained on triplets and evaluated by nearest neighbors.

Embeddings have length 1. The triplet loss brings an example (the anchor) nearer to one of its class (the positive)
than to one of another class (the negative); triplets are chosen within each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from hookline.recipes.model_checks import check_classes, check_inputs, check_one_output
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number
from hookline.trainer.input.data import HOST, Data
from hookline.trainer.network import Network
from hookline.trainer.objective import (
    Batch,
    Embedding,
    Examples,
    ForwardFunction,
    Objective,
    ObjectiveOutput,
    Shown,
    enlarged,
    hard_labels,
    sheet,
    thumbnails,
)
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.step.means import example_weights

PICTURED_QUERIES = 8
PROJECTED_EXAMPLES = 1000


class Retrieval(Objective):
    """Bring images of one class near each other, and images of different classes apart.

    The network's outputs are scaled to length 1, so distances lie in [0, 2] and the network cannot lower the loss by
    growing or shrinking all embeddings.

    An evaluation searches for neighbors in the whole split (see `retrieval_metrics`). Its triplet loss and triplet
    metrics use batches in the order of the split: compare them between evaluations, not with training.
    """

    name = "retrieval"
    trains = ("model",)

    def __init__(self, *, mining: str, margin: float | None, squared: bool, recall_at: Sequence[int]) -> None:
        self.mining, self.margin, self.squared, self.recall_at = mining, margin, squared, tuple(recall_at)

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return the triplet loss of the batch, and measures of whether the embeddings collapse.

        Metrics: `active_triplets`, the share of the mined triplets that still violate the margin; `positive_distance`
        and `negative_distance`, means of all such pairs, which both go to 0 if the network maps everything to one
        point; `anchors`, the share of examples with a positive and a negative in the batch.
        """
        embeddings = tf.math.l2_normalize(tf.cast(forward("model", batch["inputs"]), tf.float32), axis=-1)
        weights = example_weights(batch)
        positive, negative = class_pairs(hard_labels(batch, "The triplet loss"), weights)
        distances = pairwise_distances(embeddings, squared=self.squared)
        triplets = MININGS[self.mining](distances, positive, negative)
        anchors = tf.logical_and(_any(positive), _any(negative))
        return ObjectiveOutput(
            losses={"triplet": triplet_loss(triplets, self.margin, over_active=self.mining == "batch_all")},
            metrics={
                "active_triplets": mean_of(tf.cast(active_triplets(triplets, self.margin), tf.float32), triplets.valid),
                "positive_distance": mean_of(distances, positive),
                "negative_distance": mean_of(distances, negative),
                "anchors": tf.cast(anchors, tf.float32),
            },
            outputs=embeddings,
            collected={"embedding": embeddings, "target": batch["targets"], "index": batch["index"]},
        )

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return recall@k, map@r and r_precision of each half of the split searched in the other."""
        return retrieval_metrics(collected["embedding"], collected["target"], collected["index"], self.recall_at)

    def show(self, collected: dict[str, np.ndarray], examples: Examples) -> Shown:
        """Return some queries with their nearest neighbors, and an even sample of the embeddings with thumbnails."""
        if not collected:
            return Shown()
        targets = collected["target"]
        count = len(targets)
        rows = np.linspace(0, count - 1, min(count, PROJECTED_EXAMPLES)).round().astype(np.int64)
        inputs, pictures, images = examples(rows.tolist())["inputs"], {}, None
        if inputs.ndim == 4 and inputs.shape[-1] in (1, 3):
            images = thumbnails(tf.constant(inputs)).numpy()
            half = halves(tf.constant(targets), tf.constant(collected["index"])).numpy()
            queries = sorted({round(place) for place in np.linspace(0, count - 1, PICTURED_QUERIES)})
            found = nearest_neighbors(collected["embedding"], half, queries)
            nearest = [examples(positions.tolist())["inputs"] for positions in found]
            correct = [targets[positions] == targets[query] for query, positions in zip(queries, found, strict=True)]
            pictures["nearest_neighbours"] = neighbor_sheet(examples(queries)["inputs"], nearest, correct)
        return Shown(pictures, {"embedding": Embedding(collected["embedding"][rows], {"class": targets[rows]}, images)})


def retrieval(
    *,
    parts: Parts,
    embedding_size: int = 64,
    mining: str = "semi_hard",
    margin: float | None = 0.2,
    squared: bool = False,
    recall_at: Sequence[int] = (1, 5, 20),
) -> Recipe:
    """Build a network with as many outputs as the embedding has dimensions, and its retrieval objective.

    Any model of the config works: `embedding_size` replaces its number of classes. The arguments are described in
    `configs/task/retrieval.yaml`.

    Equation:
        e = f(x) / ||f(x)||,   d(a, b) = ||e_a - e_b||, or its square
        L = mean over triplets of max(0, d(anchor, positive) - d(anchor, negative) + margin)
        margin=null:  L = mean of log(1 + exp(d(anchor, positive) - d(anchor, negative)))
        batch_hard:   the farthest positive and the nearest negative of each anchor
        semi_hard:    for each pair of anchor and positive the nearest negative that is farther than the positive
        batch_all:    every triplet of the batch; the mean is over those that violate the margin

    Pitfalls:
        - With `mining=batch_hard` all images may collapse to one point early: `positive_distance` and
          `negative_distance` both fall to 0.
        - A batch without two images of a class has no triplet: set `trainer.classes_per_batch`; `anchors` should be 1.
        - With `trainer.accumulation_steps` triplets are found within a micro batch: they are fewer and easier.
    """
    check_integer("embedding_size", embedding_size, 2)
    check_choice("mining", mining, MININGS)
    if margin is not None:  # the soft margin
        check_number("margin", margin, 0, above_minimum=True)
    check_classes(parts.data, "retrieval")
    _check_recall(recall_at, parts.data)
    model = parts.build_model(input_shape=parts.data.input_shape, classes=embedding_size)
    check_inputs(model, parts.data)
    check_one_output(model, f"embeddings [batch, {embedding_size}]", (embedding_size,))
    network = Network("model", model, parts.build_optimizer())
    return Recipe([network], [Retrieval(mining=mining, margin=margin, squared=squared, recall_at=recall_at)])


def _check_recall(recall_at: Sequence[int], data: Data) -> None:
    for split in data.splits[1:]:
        half = halves(tf.constant(split.labels), tf.constant(split.indices)).numpy()
        gallery = int(np.bincount(half, minlength=2).min())
        if max(recall_at) > gallery:
            raise UserError(
                f"recall_at={list(recall_at)} received. The {split.name} split has {split.size} images, and each half "
                f"is searched for the queries of the other. Expected at most {gallery}, the size of the smaller half."
            )


def pairwise_distances(embeddings: tf.Tensor, *, squared: bool = False) -> tf.Tensor:
    """Return the Euclidean distances between all pairs of embeddings.

    They are computed from the differences, in batch * batch * d memory: exactly 0 for equal embeddings, where the usual
    a^2 + b^2 - 2ab cancels. The derivative of the square root at 0 is infinite in TensorFlow, and 0 here.
    """
    differences = embeddings[:, tf.newaxis] - embeddings[tf.newaxis, :]
    squares = tf.reduce_sum(tf.square(differences), axis=-1)
    if squared:
        return squares
    apart = squares > 0.0
    return tf.where(apart, tf.sqrt(tf.where(apart, squares, 1.0)), 0.0)


def class_pairs(targets: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return masks of the pairs (anchor, other) of one class, without self-pairs, and of two: bool [batch, batch]."""
    real = weights > 0.0
    both_real = tf.logical_and(real[:, tf.newaxis], real[tf.newaxis, :])
    same = tf.equal(targets[:, tf.newaxis], targets[tf.newaxis, :])
    itself = tf.eye(tf.shape(targets)[0], dtype=tf.bool)
    positive = tf.logical_and(tf.logical_and(same, tf.logical_not(itself)), both_real)
    return positive, tf.logical_and(tf.logical_not(same), both_real)


def mean_of(values: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Return the mean of the chosen values, 0 if there are none: float32 []."""
    count = tf.reduce_sum(tf.cast(chosen, tf.float32))
    return tf.math.divide_no_nan(tf.reduce_sum(tf.where(chosen, values, 0.0)), count)


def halves(targets: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Return the half, 0 or 1, of each example, int32 [examples]: those of a class alternate, starting with half 0."""
    by_order = tf.argsort(order)
    by_class = tf.gather(by_order, tf.argsort(tf.gather(targets, by_order), stable=True))
    sorted_targets = tf.gather(targets, by_class)
    start = tf.searchsorted(sorted_targets, sorted_targets, side="left")
    rank = tf.range(tf.size(targets)) - start
    return tf.gather(rank % 2, tf.math.invert_permutation(by_class))


FAR = 1e9  # further than any two embeddings of length 1; finite, so that its gradient is a number


@dataclass(frozen=True)
class Triplets:
    """Distances from anchors. All three tensors have the same shape; the first axis is that of anchors."""

    positive: tf.Tensor
    negative: tf.Tensor
    valid: tf.Tensor  # bool: False where there is no such triplet, and its distances are meaningless


def batch_hard(distances: tf.Tensor, positive: tf.Tensor, negative: tf.Tensor) -> Triplets:
    """Return for each anchor its farthest positive and its nearest negative: [batch].

    Hermans et al., In Defense of the Triplet Loss for Person Re-Identification, 2017, equation 5.
    """
    farthest = tf.reduce_max(tf.where(positive, distances, -FAR), axis=1)
    nearest = tf.reduce_min(tf.where(negative, distances, FAR), axis=1)
    return Triplets(farthest, nearest, tf.logical_and(_any(positive), _any(negative)))


def semi_hard(distances: tf.Tensor, positive: tf.Tensor, negative: tf.Tensor) -> Triplets:
    """Return for each positive pair the nearest negative that is farther than the positive: [batch, batch].

    Schroff et al., FaceNet, 2015, section 3.2. If no negative is farther, a case the paper leaves open, the farthest
    negative is used: the least hard of those that are all too hard.
    """
    to_negatives = distances[:, tf.newaxis, :]
    farther = tf.logical_and(negative[:, tf.newaxis, :], to_negatives > distances[:, :, tf.newaxis])
    nearest = tf.reduce_min(tf.where(farther, to_negatives, FAR), axis=2)
    farthest = tf.reduce_max(tf.where(negative, distances, -FAR), axis=1, keepdims=True)
    chosen = tf.where(_any(farther), nearest, farthest)
    return Triplets(distances, chosen, tf.logical_and(positive, _any(negative)[:, tf.newaxis]))


def batch_all(distances: tf.Tensor, positive: tf.Tensor, negative: tf.Tensor) -> Triplets:
    """Return every triplet [batch, batch, batch], anchors by positives by negatives (Hermans et al., equation 6)."""
    valid = tf.logical_and(positive[:, :, tf.newaxis], negative[:, tf.newaxis, :])
    shape = tf.shape(valid)
    return Triplets(
        tf.broadcast_to(distances[:, :, tf.newaxis], shape), tf.broadcast_to(distances[:, tf.newaxis, :], shape), valid
    )


Mining: TypeAlias = "Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Triplets]"
MININGS: dict[str, Mining] = {"batch_hard": batch_hard, "semi_hard": semi_hard, "batch_all": batch_all}


def _any(chosen: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(chosen, axis=-1)


def triplet_loss(triplets: Triplets, margin: float | None, *, over_active: bool) -> tf.Tensor:
    """Return the mean loss of triplets, 0 with a gradient of 0 if there are none: float32 [].

    One triplet costs max(0, positive - negative + margin) (Schroff et al. 2015, equation 3), or
    log(1 + exp(positive - negative)) with the soft margin (Hermans et al. 2017, section 2).
    """
    gap = _gap(triplets)
    losses = tf.nn.softplus(gap) if margin is None else tf.nn.relu(gap + margin)
    # With the soft margin every triplet costs something.
    counted = triplets.valid if margin is None or not over_active else active_triplets(triplets, margin)
    return mean_of(losses, counted)


def active_triplets(triplets: Triplets, margin: float | None) -> tf.Tensor:
    """Return which triplets still violate the margin: bool, in the shape of the triplets."""
    gap = _gap(triplets)
    return tf.logical_and(triplets.valid, gap >= 0.0 if margin is None else gap + margin > 0.0)


def _gap(triplets: Triplets) -> tf.Tensor:
    """Return how much farther the positive is than the negative; 0 where there is no triplet."""
    return tf.where(triplets.valid, triplets.positive - triplets.negative, 0.0)


NEIGHBORS = 5
SMALLEST = 48  # pixels per side: smaller images are enlarged to at least this
FRAME, GAP = 3, 4  # pixels
PAPER, RIGHT, WRONG = (1.0, 1.0, 1.0), (0.1, 0.65, 0.2), (0.85, 0.1, 0.1)


def nearest_neighbors(embeddings: np.ndarray, half: np.ndarray, queries: Sequence[int]) -> list[np.ndarray]:
    """Return the positions of the nearest examples in the other half, nearest first, for each query."""
    found = []
    for query in queries:
        gallery = np.flatnonzero(half != half[query])
        similarity = embeddings[gallery] @ embeddings[query]
        found.append(gallery[np.argsort(-similarity, kind="stable")[:NEIGHBORS]])
    return found


def neighbor_sheet(
    queries: np.ndarray, neighbors: Sequence[np.ndarray], correct: Sequence[Sequence[bool]]
) -> np.ndarray:
    """Return a picture: a row for each query, with the query to the left of its neighbors."""
    columns = 1 + max(len(images) for images in neighbors)
    rows = []
    for query, images, right in zip(queries, neighbors, correct, strict=True):
        tiles = enlarged(np.concatenate([query[np.newaxis], images]), SMALLEST)
        colors = np.array([PAPER, *(RIGHT if good else WRONG for good in right)], np.float32)
        count, height, width, _ = tiles.shape
        framed = np.ones((columns, height + 2 * FRAME, width + 2 * FRAME, 3), np.float32)
        framed[:count] = colors[:, np.newaxis, np.newaxis]
        framed[:count, FRAME:-FRAME, FRAME:-FRAME] = tiles
        rows.append(framed)
    return sheet(rows, GAP)


QUERIES_AT_ONCE = 256  # how many queries are ranked together: memory for that many rows of distances is needed


def retrieval_metrics(
    embeddings: tf.Tensor, targets: tf.Tensor, order: tf.Tensor, recall_at: Sequence[int]
) -> dict[str, tf.Tensor]:
    """Return how well examples find others of their class, as means over the examples.

    The split is halved (see `halves`); each example is a query to the half that it is not in, so that no query finds
    itself. With R the number of examples of the query's class in that half:

    - recall@k: whether one of the k nearest is of the query's class.
    - r_precision: the share of the query's class among the R nearest.
    - map@r: the mean over i = 1 .. R of the precision of the i nearest, counted where the i-th is of the class
      (Musgrave et al., A Metric Learning Reality Check, 2020, section 3.1).
    - unmatched: the number of queries with R = 0. They are left out of the means; if all are, the means are 0.

    Of two equally near examples, the one earlier in the split comes first.
    """
    # On the host: a GPU may round products to 10 bits, and its sort is not guaranteed to be stable.
    with tf.device(HOST):
        half, size = halves(targets, order), tf.size(targets)
        groups = 2 * tf.cast(targets, tf.int32) + half
        sizes = tf.math.bincount(groups, minlength=2 * (tf.cast(tf.reduce_max(targets), tf.int32) + 1))
        relevant = tf.gather(sizes, groups + 1 - 2 * half)
        depth = tf.minimum(tf.maximum(tf.reduce_max(relevant), max(recall_at)), size)

        def measure(queries: tf.Tensor) -> dict[str, tf.Tensor]:
            in_gallery = tf.not_equal(tf.gather(half, queries)[:, tf.newaxis], half)
            similarity = tf.matmul(tf.gather(embeddings, queries), embeddings, transpose_b=True)
            _, nearest = tf.math.top_k(tf.where(in_gallery, similarity, similarity.dtype.min), k=depth)
            # Ranks beyond the size of the gallery never count: every match has a lower rank.
            correct = tf.equal(tf.gather(targets, nearest), tf.gather(targets, queries)[:, tf.newaxis])
            wanted, rank = tf.gather(relevant, queries)[:, tf.newaxis], tf.range(1, depth + 1)
            hits = tf.cast(tf.logical_and(correct, rank <= wanted), tf.float32)
            precision = tf.cumsum(hits, axis=1) / tf.cast(rank, tf.float32)
            count = tf.cast(wanted[:, 0], tf.float32)
            found = {f"recall@{k}": tf.cast(tf.reduce_any(correct[:, :k], axis=1), tf.float32) for k in recall_at}
            found["map@r"] = tf.math.divide_no_nan(tf.reduce_sum(precision * hits, axis=1), count)
            found["r_precision"] = tf.math.divide_no_nan(tf.reduce_sum(hits, axis=1), count)
            return found

        blocks = (size + QUERIES_AT_ONCE - 1) // QUERIES_AT_ONCE
        queries = tf.reshape(tf.minimum(tf.range(blocks * QUERIES_AT_ONCE), size - 1), [blocks, QUERIES_AT_ONCE])
        names = [*(f"recall@{k}" for k in recall_at), "map@r", "r_precision"]
        signature = dict.fromkeys(names, tf.TensorSpec([QUERIES_AT_ONCE], tf.float32))
        found = tf.map_fn(measure, queries, fn_output_signature=signature, parallel_iterations=1)
        matched = relevant > 0
        means = {name: mean_of(tf.reshape(value, [-1])[:size], matched) for name, value in found.items()}
        return {**means, "unmatched": tf.reduce_sum(tf.cast(tf.logical_not(matched), tf.float32))}
