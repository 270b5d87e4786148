"""Means over the examples of a batch, weighted per example and by the number of values that count in each."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, ObjectiveOutput


class Parts:
    """A batch split into equal parts; entries without one row per example are passed whole to each part."""

    def __init__(self, batch: Batch, count: int, received: str) -> None:
        examples = tf.nest.flatten(batch["inputs"])[0].shape[0]
        if examples is None or examples % count:
            raise UserError(
                f"{received} received for batches of {examples or 'an unknown number of'} examples per replica. "
                f"Expected as many examples in each part: give a trainer.batch_size that {count} divides, also after "
                "replicas have shared it."
            )
        self.count, self._size = count, examples // count
        self._examples, self._batch = examples, batch
        self._parts = tf.nest.map_structure(lambda each: self.cut(each) if self._is_cut(each) else each, batch)

    def _is_cut(self, tensor: tf.Tensor) -> bool:
        return bool(tensor.shape.rank) and tensor.shape[0] == self._examples

    def cut(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return [examples, ...] as [count, size, ...]."""
        return tf.reshape(tensor, tf.concat([[self.count, self._size], tf.shape(tensor)[1:]], axis=0))

    def part(self, index: tf.Tensor | int) -> Batch:
        """Return one part as a batch."""
        return tf.nest.map_structure(
            lambda each, whole: each[index] if self._is_cut(whole) else each, self._parts, self._batch
        )


def example_weights(batch: Batch) -> tf.Tensor:
    """Return float32 weights [batch]: the batch's own "weights" (0 marks padding), or ones."""
    if "weights" in batch:
        return tf.cast(batch["weights"], tf.float32)
    return tf.ones([tf.shape(tf.nest.flatten(batch["inputs"])[0])[0]], tf.float32)


def sample_weights(batch: Batch) -> tf.Tensor:
    """Return float32 weights [batch]: how much each example counts, 0 for padding."""
    weights = example_weights(batch)
    if SAMPLE_WEIGHTS not in batch:
        return weights
    if (given := batch[SAMPLE_WEIGHTS].shape).rank != 1:
        raise UserError(
            f"The data has {SAMPLE_WEIGHTS} of shape {given}. Expected [batch]: one number for each example."
        )
    return weights * tf.cast(batch[SAMPLE_WEIGHTS], tf.float32)


def weighted_mean(name: str, value: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the float32 mean of a loss or metric over the real examples of a batch."""
    value = tf.cast(value, tf.float32)
    if value.shape.rank == 0:
        return value
    if value.shape.rank != 1:
        raise UserError(f"'{name}' has the shape {value.shape}. Expected [batch] or []: reduce the other axes.")
    return tf.math.divide_no_nan(tf.reduce_sum(value * weights), tf.reduce_sum(weights))


def check_examples(kind: str, values: Mapping[str, tf.Tensor], batch: Batch) -> None:
    """Raise an error if losses or metrics have more or fewer values than the batch has examples."""
    examples = tf.nest.flatten(batch["inputs"])[0].shape[0]
    for name, value in values.items():
        shape = tf.convert_to_tensor(value).shape
        if shape.rank and examples is not None and shape[0] not in (None, 1, examples):
            raise UserError(
                f"The {kind} '{name}' has the shape {shape} for {examples} examples. Expected [batch, ...] or a scalar."
            )


def any_of_batch(values: Mapping[str, tf.Tensor]) -> bool:
    """Return whether any loss or metric is a scalar for the whole batch."""
    return any(tf.convert_to_tensor(value).shape.rank == 0 for value in values.values())


def average_output(output: ObjectiveOutput, batch: Batch) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Return the losses, sum(w * loss) / n, and the metrics, sum(w * metric) / sum(w), as with Keras sample weights."""
    weights, own = example_weights(batch), sample_weights(batch)
    losses = output.losses
    if SAMPLE_WEIGHTS in batch:
        each = tf.cast(batch[SAMPLE_WEIGHTS], tf.float32)
        losses = {
            name: tf.cast(value, tf.float32) * each if value.shape.rank == 1 else value
            for name, value in losses.items()
        }
    counts = mean_counts(output, batch)

    def mean(kind: str, name: str, value: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        key = f"{kind}/{name}"
        if key in counts:
            value = tf.math.divide_no_nan(tf.cast(value, tf.float32) * output.counts[key], counts[key])
        return weighted_mean(name, value, weights)

    means = {name: mean("loss", name, value, weights) for name, value in losses.items()}
    metrics = {name: mean("metric", name, value, own) for name, value in output.metrics.items()}
    return means, metrics


COUNTS = "mean_counts/"
"""Prefix of the `mean_counts` of a whole batch (scalars) in a batch that is a part of it."""


def mean_counts(output: ObjectiveOutput, batch: Batch) -> dict[str, tf.Tensor]:
    """Return the means of `counts` over a batch, or the batch it is a part of, by "loss/<name>" and "metric/<name>"."""
    kinds = (("loss", output.losses, example_weights(batch)), ("metric", output.metrics, sample_weights(batch)))
    found: dict[str, tf.Tensor] = {}
    for kind, table, weights in kinds:
        for key in (f"{kind}/{name}" for name in table if f"{kind}/{name}" in output.counts):
            whole = batch.get(COUNTS + key)
            found[key] = weighted_mean(key, output.counts[key], weights) if whole is None else whole
    return found
