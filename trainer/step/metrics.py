"""Averages that accumulate over steps: every metric is a sum and a count until it is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, Objective, ObjectiveOutput

SumAndCount: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"


@dataclass
class Computed:
    """Hold what an objective computed for one batch, averaged over its examples.

    Attributes:
        losses: scalars by name, with those of layers and hooks, and "total".
        metrics: scalars by name.
        collected: tensors [batch, ...] by name that an evaluation keeps.
    """

    losses: dict[str, tf.Tensor]
    metrics: dict[str, tf.Tensor]
    collected: dict[str, tf.Tensor]


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
        raise ValueError(f"'{name}' has the shape {value.shape}. Expected [batch] or []: reduce the other axes.")
    return tf.math.divide_no_nan(tf.reduce_sum(value * weights), tf.reduce_sum(weights))


def average_output(output: ObjectiveOutput, batch: Batch) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Return the losses and the metrics of an objective, each averaged to a scalar.

    Sample weights count as in Keras: sum(w * loss) / n, and sum(w * metric) / sum(w).
    """
    weights, own = example_weights(batch), sample_weights(batch)
    losses = output.losses
    if SAMPLE_WEIGHTS in batch:
        each = tf.cast(batch[SAMPLE_WEIGHTS], tf.float32)
        losses = {name: _times(value, each) for name, value in losses.items()}
    means = {name: weighted_mean(name, value, weights) for name, value in losses.items()}
    metrics = {name: weighted_mean(name, value, own) for name, value in output.metrics.items()}
    return means, metrics


def _times(value: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float32) * weights if value.shape.rank == 1 else value


def check_sample_weights(objective: Objective, losses: Mapping[str, tf.Tensor], batch: Batch) -> None:
    """Refuse sample weights that an objective would not heed."""
    if SAMPLE_WEIGHTS in batch and all(value.shape.rank == 0 for value in losses.values()):
        raise UserError(
            f"The data has sample weights, but no loss of '{objective.name}' is one for each example: "
            f"{', '.join(losses)}. Expected data without, such as arrays without sample_weight_train."
        )


class Accumulators:
    """Sum metrics inside the graph; they are read and reset outside of it.

    The names become known when the step is traced, so the variable has an open shape until then.
    """

    def __init__(self) -> None:
        """Create the variable, without entries."""
        self.names: list[str] = []  # set while the step is traced
        self.variable = tf.Variable(
            tf.zeros([0, 2]), shape=tf.TensorShape([None, 2]), trainable=False, dtype=tf.float32, name="accumulators"
        )

    def add(self, sums: tf.Tensor) -> None:
        """Add sums and counts to the variable, inside the graph."""
        self.variable.assign_add(sums)

    def reset(self) -> None:
        """Set every sum and count to zero."""
        self.variable.assign(tf.zeros([len(self.names), 2]))

    def reset_others(self) -> None:
        """Set all to zero if the variable was given sums of other metrics, as a run of another version leaves them."""
        if self.variable.numpy().shape != (len(self.names), 2):
            self.reset()

    def read(self) -> dict[str, float]:
        """Return the averages by name; a metric without a count is left out."""
        values = self.variable.numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            means = values[:, 0] / values[:, 1]
        return {name: float(mean) for name, mean, count in zip(self.names, means, values[:, 1], strict=True) if count}
