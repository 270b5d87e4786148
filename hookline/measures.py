"""Metrics as Keras takes them: values of each example inside the step, others of a whole split at an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.objective import SAMPLE_WEIGHTS, SOFT_TARGETS, Batch, ObjectiveOutput

ACCURACY = ("accuracy", "acc")
TARGETS, OUTPUTS, WEIGHTS = "measured_targets", "measured_outputs", "measured_weights"


class Measures:
    """Compute metrics of Keras.

    A metric that is a mean of one value an example (`keras.metrics.MeanMetricWrapper`: accuracies, errors, functions)
    is computed in training and in evaluations. Another one (AUC, precision, a root of a mean) needs a whole split:
    evaluations alone have it.
    """

    def __init__(
        self,
        given: Sequence[Any],
        output_shape: Sequence[int | None],
        *,
        activation: str | None,
        one_hot: int | None,
        counted: bool,
    ) -> None:
        """Resolve what was given.

        Args:
            given: names, `keras.metrics.Metric` objects, or functions (y_true, y_pred).
            output_shape: of the model, the batch first.
            activation: that was taken off the model, and which metrics see again; None for none.
            one_hot: number of classes where the user's targets are one-hot rows; None for others.
            counted: whether the objective has "accuracy" itself.

        Raises:
            UserError: no such metric, or two of one name.
        """
        self._activation, self._one_hot = activation, one_hot
        self._of_each: dict[str, keras.metrics.Metric] = {}
        self._of_split: dict[str, keras.metrics.Metric] = {}
        self.renamed: dict[str, str] = {}
        for each in given:
            if counted and each in ACCURACY if isinstance(each, str) else False:
                self.renamed["accuracy"] = each
                continue
            metric = resolve(each, output_shape, one_hot=one_hot is not None)
            name = each if isinstance(each, str) else metric.name
            if name in (*self._of_each, *self._of_split, *self.renamed.values()):
                raise UserError(f"metrics has two of the name '{name}'. Expected names that differ: give name=.")
            kind = self._of_each if isinstance(metric, keras.metrics.MeanMetricWrapper) else self._of_split
            kind[name] = metric

    @property
    def names(self) -> list[str]:
        """Return the names of the metrics that were asked for."""
        return [*self.renamed.values(), *self._of_each, *self._of_split]

    def add(self, output: ObjectiveOutput, batch: Batch, outputs: tf.Tensor, *, training: bool) -> None:
        """Add the metrics of a batch to what an objective computed.

        Args:
            output: of the objective; its metrics and what it collects grow.
            batch: the batch.
            outputs: of the network.
            training: whether this is a step; otherwise whole splits are collected, too.
        """
        if SOFT_TARGETS in batch or not (self._of_each or (self._of_split and not training)):
            return
        targets, shown = self._targets(batch["targets"]), tf.cast(outputs, tf.float32)
        if self._activation is not None:
            shown = getattr(keras.activations, self._activation)(shown)
        if targets.shape.rank == (shown.shape.rank or 0) - 1 and shown.shape[-1] == 1:
            targets = targets[..., tf.newaxis]
        for name, metric in self._of_each.items():
            values = tf.cast(metric._fn(targets, shown, **metric._fn_kwargs), tf.float32)
            rank = values.shape.rank or 0
            output.metrics[name] = values if rank < 2 else tf.reduce_mean(values, axis=list(range(1, rank)))
        if self._of_split and not training:
            weights = batch.get(SAMPLE_WEIGHTS, tf.ones([tf.shape(shown)[0]]))
            output.collected |= {TARGETS: targets, OUTPUTS: shown, WEIGHTS: weights}

    def of_split(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the metrics of a whole split.

        Args:
            collected: over all its examples.
        """
        found = {}
        for name, metric in self._of_split.items():
            state = [tf.convert_to_tensor(each) for each in metric.stateless_reset_state()]
            weights = collected[WEIGHTS]
            state = metric.stateless_update_state(state, collected[TARGETS], collected[OUTPUTS], sample_weight=weights)
            found[name] = tf.reduce_mean(tf.cast(metric.stateless_result(state), tf.float32))
        return found

    def _targets(self, targets: tf.Tensor) -> tf.Tensor:
        return targets if self._one_hot is None else tf.one_hot(targets, self._one_hot)


def resolve(given: Any, output_shape: Sequence[int | None], *, one_hot: bool) -> keras.metrics.Metric:
    """Return a metric of Keras.

    Args:
        given: a name, a metric, or a function.
        output_shape: of the model, the batch first; tells which accuracy is meant.
        one_hot: whether targets are one-hot rows.

    Raises:
        UserError: no such metric.
    """
    if isinstance(given, str) and given.lower() in ACCURACY:
        if output_shape[-1] == 1:
            return keras.metrics.BinaryAccuracy(name=given)
        kind = keras.metrics.CategoricalAccuracy if one_hot else keras.metrics.SparseCategoricalAccuracy
        return kind(name=given)
    try:
        found = keras.metrics.get(given)
    except (ValueError, TypeError):
        found = None
    if found is None:
        known = [each for each in dir(keras.metrics) if each[:1].isupper()]
        raise unknown_name("metric", given if isinstance(given, str) else repr(given), [*ACCURACY, *known])
    if isinstance(found, keras.metrics.Metric):
        return found
    name = given if isinstance(given, str) else getattr(found, "__name__", type(found).__name__)
    return keras.metrics.MeanMetricWrapper(found, name=name)
