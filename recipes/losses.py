"""Losses and metrics of Keras or of the user: of each example inside the step, of a whole split at an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice, unknown_name
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, ObjectiveOutput

ONE = ""  # the name of the output of a network that has one
SPARSE, ONE_HOT, BINARY = "sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"
CLASSES = {
    SPARSE: keras.losses.SparseCategoricalCrossentropy,
    ONE_HOT: keras.losses.CategoricalCrossentropy,
    BINARY: keras.losses.BinaryCrossentropy,
}
ENDS = {SPARSE: "softmax", ONE_HOT: "softmax", BINARY: "sigmoid"}  # the activation whose logits a cross-entropy takes


class Loss:
    """What is minimised; its `kind` is SPARSE, ONE_HOT or BINARY if it can be computed from logits, otherwise None."""

    def __init__(self, given: Any) -> None:
        """Resolve a name, a `keras.losses.Loss`, or a function (y_true, y_pred)."""
        self.given = given
        self.function = _resolved(given)
        reduction = getattr(self.function, "reduction", "auto")
        if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight", "auto"):
            raise UserError(f"loss={_name(given)} has reduction='{reduction}'. Expected 'sum_over_batch_size'.")
        self.kind = next((kind for kind, own in CLASSES.items() if _is_kind(self.function, kind, own)), None)
        self.name = self.kind or _name(given)
        self.label_smoothing = float(getattr(self.function, "label_smoothing", 0.0))
        self.from_logits = bool(getattr(self.function, "from_logits", False))
        self.ignored: int | None = getattr(self.function, "ignore_class", None)  # the label that no loss counts
        own = type(self.function) if isinstance(self.function, keras.losses.Loss) else self.function
        self.of_keras = str(getattr(own, "__module__", "")).partition(".")[0] == "keras"

    def classifies(self, shape: Sequence[int | None]) -> bool:
        """Return whether the loss is that of `recipes.classification`, for outputs of a shape."""
        fits = len(shape) == 2 and shape[1] is not None
        return self.kind in (SPARSE, ONE_HOT) and fits and self.ignored is None

    def each(self, targets: tf.Tensor, outputs: tf.Tensor, *, from_logits: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return the loss of each example, float32 [batch], or [] where a function gives a mean; see `mean_of_each`."""
        mask = mask_of(outputs)
        outputs = tf.cast(outputs, tf.float32)
        targets = beside(targets, outputs)
        if self.kind != SPARSE and (self.kind or isinstance(self.function, keras.losses.Loss)):
            targets = tf.cast(targets, tf.float32)
        options: dict[str, Any] = {}
        if self.kind:
            function = getattr(keras.losses, self.kind)
            options = {"from_logits": from_logits, "label_smoothing": self.label_smoothing}
            if self.kind == SPARSE:
                options = {"from_logits": from_logits, "ignore_class": self.ignored}
        else:
            function = self.function.call if isinstance(self.function, keras.losses.Loss) else self.function
        values = function(targets, outputs, **options)
        ignored = mask_of(values)
        both = mask is not None and ignored is not None
        return mean_of_each(values, mask & ignored if both else ignored if mask is None else mask, self.name)


def losses_of(given: Any, names: Sequence[str]) -> dict[str, Loss]:
    """Return the loss of each output, by ONE where there is one; `names` are those of a list of them."""
    if isinstance(given, list | tuple):
        if len(given) != len(names) or names == [ONE]:
            raise UserError(f"loss has {len(given)} losses. Expected {{name: loss}}, for the outputs of the model.")
        given = dict(zip(names, given, strict=True))
    return {str(name): Loss(each) for name, each in (given if isinstance(given, Mapping) else {ONE: given}).items()}


def metrics_of(given: Any, losses: Mapping[str, Loss]) -> dict[str, list[Any]]:
    """Return the metrics of each output."""
    if isinstance(given, str):
        raise UserError(f"metrics={given} received. Expected a list, such as [{given}].")
    if isinstance(given, Mapping):
        return {str(name): [each] if isinstance(each, str) else list(each) for name, each in given.items()}
    if given and ONE not in losses:
        raise UserError(f"metrics is a list. Expected {{name: [...]}} of the outputs {', '.join(losses)}.")
    return {ONE: list(given)} if given else {}


def weights_of(given: Mapping[str, float] | None, losses: Mapping[str, Loss]) -> dict[str, float]:
    """Return the factors of losses, by output."""
    weights = {str(name): float(weight) for name, weight in (given or {}).items()}
    for name in weights:
        check_choice("output in loss_weights", name, losses)
    return weights


def _resolved(given: Any) -> Callable[..., Any]:
    if isinstance(given, keras.losses.Loss):
        return given
    if isinstance(given, str):
        try:
            found = keras.losses.get(given)
        except ValueError:
            found = None
        if found is None:
            known = [each for each in dir(keras.losses) if each.islower() and not each.startswith("_")]
            raise unknown_name("loss", given, set(known) - {"get", "serialize", "deserialize"})
        return found
    if isinstance(given, type) and issubclass(given, keras.losses.Loss):
        return given()
    if callable(given):
        return given
    raise UserError(f"loss={given!r} received. Expected a name, a keras.losses.Loss, or a function (y_true, y_pred).")


def _name(given: Any) -> str:
    if isinstance(given, str):
        return given
    return str(getattr(given, "name", None) or getattr(given, "__name__", type(given).__name__))


def _is_kind(function: Any, kind: str, own: Any) -> bool:
    if type(function) is own:
        return function.get_config().get("axis", -1) == -1
    return function is getattr(keras.losses, kind)


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
        one_hot: int | None = None,  # classes of labels that were one-hot rows, and are so for metrics
        counted: bool = False,  # whether the objective itself reports the accuracy
        prefix: str = "",  # of all names, for one of several outputs
    ) -> None:
        """Resolve names, metrics of Keras, and functions; they see the output behind an activation, if one is given."""
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
        targets, mask = beside(targets, shown), mask_of(outputs)
        for name, metric in self._of_each.items():
            output.metrics[name], counts = mean_of_each(metric._fn(targets, shown, **metric._fn_kwargs), mask, name)
            output.counts |= {} if counts is None else {f"metric/{name}": counts}
        if self._of_split and not training:
            own = {TARGETS: targets, OUTPUTS: shown}
            if SAMPLE_WEIGHTS in batch:
                own[WEIGHTS] = batch[SAMPLE_WEIGHTS]
            if mask is not None:
                each = tf.cast(mask, tf.float32)
                own[WEIGHTS] = each * _beside_axes(own[WEIGHTS], mask.shape.rank) if WEIGHTS in own else each
            output.collected |= {self._prefix + name: each for name, each in own.items()}

    def of_split(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the metrics of a whole split."""
        found = {}
        for name, metric in self._of_split.items():
            targets, outputs = (collected[self._prefix + each] for each in (TARGETS, OUTPUTS))
            weights = collected.get(self._prefix + WEIGHTS)
            if weights is not None and (outputs.shape.rank or 0) > 2:  # what IoU counts are pixels
                weights = tf.broadcast_to(_beside_axes(weights, outputs.shape.rank), tf.shape(outputs))
            state = [tf.convert_to_tensor(each) for each in metric.stateless_reset_state()]
            state = metric.stateless_update_state(state, targets, outputs, sample_weight=weights)
            found[name] = tf.reduce_mean(tf.cast(metric.stateless_result(state), tf.float32))
        return found


def beside(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return targets [batch] as [batch, 1] where outputs are of that shape."""
    aside = targets.shape.rank == (outputs.shape.rank or 0) - 1 and outputs.shape[-1] == 1
    return targets[..., tf.newaxis] if aside else targets


def mask_of(outputs: Any) -> tf.Tensor | None:
    """Return the mask that Keras attached to a tensor, bool [batch, ...]; None where all of it counts."""
    return getattr(outputs, "_keras_mask", None)


def mean_of_each(
    values: tf.Tensor, mask: tf.Tensor | None = None, name: str = ""
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return the mean of each example's values [batch, ...], float32; [] of a mean over all stays as it is.

    With a mask it is that of the values that count, beside their number, float32 [batch].
    """
    rank, values = values.shape.rank or 0, tf.cast(values, tf.float32)
    axes = list(range(1, rank))
    if mask is None:
        return (values if rank < 2 else tf.reduce_mean(values, axis=axes)), None
    if mask.shape.rank == rank + 1 and mask.shape[-1] == 1:
        mask = mask[..., 0]
    if mask.shape.rank > rank:
        raise UserError(
            f"'{name}' gives values {values.shape}, and the outputs have a mask {mask.shape}, as of mask_zero=True. "
            "Expected a value for each entry of the mask, or mask_zero=False."
        )
    counted = tf.broadcast_to(_beside_axes(tf.cast(mask, tf.float32), rank), tf.shape(values))
    counts = tf.reduce_sum(counted, axis=axes)
    return tf.math.divide_no_nan(tf.reduce_sum(values * counted, axis=axes), counts), counts


def _beside_axes(weights: tf.Tensor, rank: int) -> tf.Tensor:
    """Return weights [batch, ...] with axes of 1 behind their own."""
    return tf.reshape(weights, tf.concat([tf.shape(weights), [1] * (rank - weights.shape.rank)], axis=0))


def resolve(given: Any, output_shape: Sequence[int | None], kind: str | None) -> keras.metrics.Metric:
    """Return a metric of Keras; the accuracy is that of a cross-entropy, which of several labels is one of each."""
    if isinstance(given, str) and given.lower() in ACCURACY:
        if kind == BINARY or output_shape[-1:] == (1,):
            return keras.metrics.BinaryAccuracy(name=given)
        one_hot = kind == ONE_HOT
        return (keras.metrics.CategoricalAccuracy if one_hot else keras.metrics.SparseCategoricalAccuracy)(name=given)
    try:
        found = keras.metrics.get(given)
    except (ValueError, TypeError):
        found = None
    if found is None:
        known = [each for each in dir(keras.metrics) if each[:1].isupper()]
        raise unknown_name("metric", given if isinstance(given, str) else repr(given), [*ACCURACY, *known])
    if isinstance(found, keras.metrics.Metric):
        if kind == SPARSE and type(found).__module__.rpartition(".")[2] in ("confusion_metrics", "f_score_metrics"):
            raise UserError(
                f"The metric {found.name} needs one-hot targets, and {SPARSE} takes class numbers. Expected "
                f"keras.utils.to_categorical(y) with loss={ONE_HOT}, or other metrics."
            )
        return found
    name = given if isinstance(given, str) else getattr(found, "__name__", type(found).__name__)
    return keras.metrics.MeanMetricWrapper(found, name=name)
