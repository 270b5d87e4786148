"""Retrieval: one network that embeds, trained on triplets, judged by nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from hookline.recipes.metric_learning import (
    MININGS,
    active_triplets,
    class_pairs,
    halves,
    mean_of,
    nearest_neighbours,
    neighbour_sheet,
    pairwise_distances,
    retrieval_metrics,
    triplet_loss,
)
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data
from hookline.trainer.model_checks import check_classes, check_inputs, check_one_output
from hookline.trainer.network import Network
from hookline.trainer.objective import (
    Batch,
    Embedding,
    Examples,
    ForwardFunction,
    Objective,
    ObjectiveOutput,
    Shown,
    hard_labels,
)
from hookline.trainer.ops.thumbnails import thumbnails
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.step.metrics import example_weights

PICTURED_QUERIES = 8
PROJECTED_EXAMPLES = 1000


class Retrieval(Objective):
    """Bring images of one class near each other, and images of different classes apart.

    The network's outputs are scaled to length 1, so distances lie in [0, 2] and the network cannot lower the loss by
    growing or shrinking all embeddings.

    An evaluation searches neighbours in the split as a whole (see `retrieval_metrics`). Its triplet loss and triplet
    metrics are of batches in the order of the split, unlike training's. Compare them between evaluations, not with
    training. `anchors` near 0 says that they mean little: if images are sorted by class, a batch has few classes. With
    `trainer.accumulation_steps` triplets are mined within each micro batch: they are fewer and easier than those of the
    whole batch.
    """

    name = "retrieval"
    trains = ("model",)

    def __init__(
        self,
        *,
        mining: str = "semi_hard",
        margin: float | None = 0.2,
        squared: bool = False,
        recall_at: Sequence[int] = (1, 5, 20),
    ) -> None:
        """Set the loss and the measures; see `retrieval`."""
        self.mining, self.margin, self.squared, self.recall_at = mining, margin, squared, tuple(recall_at)

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return the triplet loss of the batch, and measures of whether the embeddings collapse.

        Metrics: `active_triplets`, the share of the mined triplets that still violate the margin; `positive_distance`
        and `negative_distance`, means of all such pairs, which both go to 0 if the network maps everything to one
        point; `anchors`, the share of examples with a positive and a negative in the batch.
        """
        embeddings = tf.math.l2_normalize(tf.cast(forward("model", batch["inputs"]), tf.float32), axis=-1)
        weights = example_weights(batch)
        pairs = class_pairs(hard_labels(batch, "The triplet loss"), weights)
        distances = pairwise_distances(embeddings, squared=self.squared)
        triplets = MININGS[self.mining](distances, pairs)
        anchors = tf.logical_and(tf.reduce_any(pairs.positive, axis=1), tf.reduce_any(pairs.negative, axis=1))
        return ObjectiveOutput(
            losses={"triplet": triplet_loss(triplets, self.margin, over_active=self.mining == "batch_all")},
            metrics={
                "active_triplets": mean_of(_as_float(active_triplets(triplets, self.margin)), triplets.valid),
                "positive_distance": mean_of(distances, pairs.positive),
                "negative_distance": mean_of(distances, pairs.negative),
                "anchors": _as_float(anchors),
            },
            outputs=embeddings,
            collected={"embedding": embeddings, "target": batch["targets"], "index": batch["index"]},
        )

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return recall@k, map@r and r_precision of each half of the split searched in the other."""
        return retrieval_metrics(collected["embedding"], collected["target"], collected["index"], self.recall_at)

    def show(self, collected: dict[str, np.ndarray], examples: Examples) -> Shown:
        """Return a sheet of some queries with their nearest neighbours, and the embeddings, evenly thinned out.

        Neighbours are framed green where the class is right; embeddings have the class and, of images, a thumbnail.
        """
        if not collected:
            return Shown()
        count = len(collected["target"])
        rows = np.linspace(0, count - 1, min(count, PROJECTED_EXAMPLES)).round().astype(np.int64)
        inputs = examples(rows.tolist())["inputs"]
        images = thumbnails(tf.constant(inputs)).numpy() if _are_images(inputs) else None
        embedding = Embedding(collected["embedding"][rows], {"class": collected["target"][rows]}, images)
        return Shown(_neighbours(collected, examples) if _are_images(inputs) else {}, {"embedding": embedding})


def _neighbours(collected: dict[str, np.ndarray], examples: Examples) -> dict[str, np.ndarray]:
    targets = collected["target"]
    half = halves(tf.constant(targets), tf.constant(collected["index"])).numpy()
    queries = sorted({round(place) for place in np.linspace(0, len(targets) - 1, PICTURED_QUERIES)})
    found = nearest_neighbours(collected["embedding"], half, queries)
    images = [examples(positions.tolist())["inputs"] for positions in found]
    correct = [targets[positions] == targets[query] for query, positions in zip(queries, found, strict=True)]
    return {"nearest_neighbours": neighbour_sheet(examples(queries)["inputs"], images, correct)}


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

    Any model of the config will do: `embedding_size` replaces its number of classes. The arguments are those of
    `configs/task/retrieval.yaml`.
    """
    if not is_whole_number(embedding_size) or embedding_size < 2:
        raise UserError(f"embedding_size={embedding_size} received. Expected a whole number of at least 2.")
    if mining not in MININGS:
        raise unknown_name("mining", mining, MININGS)
    if margin is not None and not 0.0 < margin < math.inf:
        raise UserError(f"margin={margin} received. Expected a number above 0, such as 0.2; null is the soft margin.")
    check_classes(parts.data, "retrieval")
    _check_recall(recall_at, parts.data)
    model = parts.build_model(input_shape=parts.data.input_shape, classes=embedding_size)
    check_inputs(model, parts.data)
    check_one_output(model, f"embeddings [batch, {embedding_size}]", (embedding_size,))
    network = Network("model", model, parts.build_optimizer())
    return Recipe([network], [Retrieval(mining=mining, margin=margin, squared=squared, recall_at=recall_at)])


def _check_recall(recall_at: Sequence[int], data: Data) -> None:
    if not recall_at or not all(is_whole_number(k) and k > 0 for k in recall_at) or len({*recall_at}) < len(recall_at):
        raise UserError(
            f"recall_at={list(recall_at)} received. Expected different whole numbers above 0, such as [1, 5, 20]."
        )
    for split in (data.validation, data.test):
        half = halves(tf.constant(split.labels), tf.constant(split.indices)).numpy()
        gallery = int(np.bincount(half, minlength=2).min())
        if max(recall_at) > gallery:
            raise UserError(
                f"recall_at={list(recall_at)} received. The {split.name} split has {split.size} images, and queries "
                f"are searched in halves of them: expected at most {gallery}, the size of the smaller half."
            )


def _as_float(condition: tf.Tensor) -> tf.Tensor:
    return tf.cast(condition, tf.float32)


def _are_images(inputs: np.ndarray) -> bool:
    return inputs.ndim == 4 and inputs.shape[-1] in (1, 3)
