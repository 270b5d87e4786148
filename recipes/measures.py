"""Metrics as Keras takes them: values of each example inside the step, others of a whole split at an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, ObjectiveOutput

ACCURACY = ("accuracy", "acc")
ACCURACY_METRIC = "metric/accuracy"
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
        kind: str | None,
        one_hot: int | None = None,
        counted: bool = False,
        prefix: str = "",
    ) -> None:
        """Resolve what was given.

        Args:
            given: names, metrics of Keras, functions.
            output_shape: of the network's output, the batch first.
            activation: what turns the output into what metrics see; None for the output itself.
            kind: the cross-entropy that is minimised; None for another loss.
            one_hot: classes of labels that were one-hot rows, which metrics see again.
            counted: whether the objective itself reports the accuracy.
            prefix: of all names, for one of several outputs.
        """
        self._activation, self._one_hot, self._prefix = activation, one_hot, prefix
        self._of_each: dict[str, keras.metrics.Metric] = {}
        self._of_split: dict[str, keras.metrics.Metric] = {}
        names: set[str] = set()
        for each in given:
            metric = resolve(each, output_shape, kind)
            name = prefix + (each if isinstance(each, str) else metric.name)
            if name in names:
                raise UserError(f"metrics has two of the name '{name}'. Expected names that differ: give name=.")
            names.add(name)
            if not (counted and isinstance(each, str) and each in ACCURACY):
                found = self._of_each if isinstance(metric, keras.metrics.MeanMetricWrapper) else self._of_split
                found[name] = metric

    def add(
        self, output: ObjectiveOutput, batch: Batch, targets: tf.Tensor, outputs: tf.Tensor, *, training: bool
    ) -> None:
        """Add the metrics of a batch to what an objective computed."""
        if not (self._of_each or (self._of_split and not training)):
            return
        shown = tf.cast(outputs, tf.float32)
        if self._one_hot is not None:
            targets = tf.one_hot(targets, self._one_hot)
        if self._activation is not None:
            shown = getattr(keras.activations, self._activation)(shown)
        targets = beside(targets, shown)
        for name, metric in self._of_each.items():
            output.metrics[name] = mean_of_each(metric._fn(targets, shown, **metric._fn_kwargs))
        if self._of_split and not training:
            own = {TARGETS: targets, OUTPUTS: shown}
            if SAMPLE_WEIGHTS in batch:
                own[WEIGHTS] = batch[SAMPLE_WEIGHTS]
            output.collected |= {self._prefix + name: each for name, each in own.items()}

    def of_split(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the metrics of a whole split."""
        found = {}
        for name, metric in self._of_split.items():
            targets, outputs = (collected[self._prefix + each] for each in (TARGETS, OUTPUTS))
            weights = collected.get(self._prefix + WEIGHTS)
            if weights is not None and (outputs.shape.rank or 0) > 2:  # what IoU counts are pixels
                ones = [1] * (outputs.shape.rank - 1)
                weights = tf.broadcast_to(tf.reshape(weights, [-1, *ones]), tf.shape(outputs))
            state = [tf.convert_to_tensor(each) for each in metric.stateless_reset_state()]
            state = metric.stateless_update_state(state, targets, outputs, sample_weight=weights)
            found[name] = tf.reduce_mean(tf.cast(metric.stateless_result(state), tf.float32))
        return found


def beside(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return targets [batch] as [batch, 1] where outputs are of that shape."""
    aside = targets.shape.rank == (outputs.shape.rank or 0) - 1 and outputs.shape[-1] == 1
    return targets[..., tf.newaxis] if aside else targets


def mean_of_each(values: tf.Tensor) -> tf.Tensor:
    """Return the mean of each example's values [batch, ...], float32; [] of a mean over all stays as it is."""
    rank = values.shape.rank or 0
    values = tf.cast(values, tf.float32)
    return values if rank < 2 else tf.reduce_mean(values, axis=list(range(1, rank)))


def resolve(given: Any, output_shape: Sequence[int | None], kind: str | None) -> keras.metrics.Metric:
    """Return a metric of Keras; the accuracy is that of a cross-entropy, which of several labels is one of each."""
    if isinstance(given, str) and given.lower() in ACCURACY:
        if kind == "binary_crossentropy" or output_shape[-1:] == (1,):
            return keras.metrics.BinaryAccuracy(name=given)
        one_hot = kind == "categorical_crossentropy"
        return (keras.metrics.CategoricalAccuracy if one_hot else keras.metrics.SparseCategoricalAccuracy)(name=given)
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
