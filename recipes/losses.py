"""Keras or custom losses and metrics: per example inside the step, or over a whole split at an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from numbers import Real
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice, unknown_name
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, ObjectiveOutput

ONE = ""  # the output name of a network with a single output
SPARSE, ONE_HOT, BINARY = "sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"
CLASSES = {
    SPARSE: keras.losses.SparseCategoricalCrossentropy,
    ONE_HOT: keras.losses.CategoricalCrossentropy,
    BINARY: keras.losses.BinaryCrossentropy,
}
ENDS = {SPARSE: "softmax", ONE_HOT: "softmax", BINARY: "sigmoid"}  # the activation that makes logits probabilities
FOCAL = {"binary_focal_crossentropy": "sigmoid", "categorical_focal_crossentropy": "softmax"}  # applied to logits
OVERLAPS = ("dice", "tversky")  # take probabilities, from an activation that cannot be inferred


class Loss:
    """A loss to minimize; its `kind` is SPARSE, ONE_HOT or BINARY if it can be computed from logits, otherwise None."""

    def __init__(self, given: Any) -> None:
        """Resolve a name, a `keras.losses.Loss`, or a function (y_true, y_pred)."""
        self.given = given
        self.function = _resolved(given)
        own = type(self.function) if isinstance(self.function, keras.losses.Loss) else None
        if own is not None and own.__call__ is not keras.losses.Loss.__call__:  # it would be ignored
            raise UserError(
                f"The loss {own.__name__} overrides __call__. Expected call(self, y_true, y_pred), or a function "
                "(y_true, y_pred), that returns one value for each example."
            )
        reduction = getattr(self.function, "reduction", "auto")
        if reduction not in ("sum_over_batch_size", "mean", "auto"):
            raise UserError(
                f"loss={_name(given)} has reduction='{reduction}'. Expected 'sum_over_batch_size': over all examples, "
                "divided by their number."
            )
        self.kind = next((kind for kind, own in CLASSES.items() if _is_kind(self.function, kind, own)), None)
        self.name = self.kind or _name(given)
        self.of_keras = str(getattr(own or self.function, "__module__", "")).partition(".")[0] == "keras"
        self.end = ENDS.get(self.kind or "") or (FOCAL.get(self.name) if self.of_keras else None)
        self.overlaps = self.of_keras and self.name in OVERLAPS
        self.label_smoothing = float(getattr(self.function, "label_smoothing", 0.0))
        self.from_logits = bool(getattr(self.function, "from_logits", False))
        self.ignored: int | None = getattr(self.function, "ignore_class", None)  # the label to ignore
        ctc = _is_kind(self.function, "ctc", keras.losses.CTC)  # takes labels [batch, length], logits per step
        self.by_value = self.of_keras and not ctc  # whether outputs and targets have one shape

    def classifies(self, shape: Sequence[int | None]) -> bool:
        """Return whether `recipes.classification` computes this loss, for outputs of the given shape."""
        fits = len(shape) == 2 and shape[1] is not None
        return self.kind in (SPARSE, ONE_HOT) and fits and self.ignored is None

    def each(self, targets: tf.Tensor, outputs: tf.Tensor, *, from_logits: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return the loss of each example, float32 [batch], or [] if a function returns a mean; see `mean_of_each`."""
        mask = mask_of(outputs)
        outputs = tf.cast(outputs, tf.float32)
        targets, outputs = beside(targets, _column(outputs) if self.of_keras else outputs)
        if self.kind != SPARSE:
            targets = tf.cast(targets, tf.float32)
        options: dict[str, Any] = {}
        if self.kind:
            function = getattr(keras.losses, self.kind)
            options = {"from_logits": from_logits}
            if self.kind == SPARSE:
                options["ignore_class"] = self.ignored
            else:
                options["label_smoothing"] = self.label_smoothing
        else:
            function = self.function.call if isinstance(self.function, keras.losses.Loss) else self.function
            if self.end and from_logits and not self.from_logits:
                outputs = getattr(keras.activations, self.end)(outputs)
        values = function(targets, outputs, **options)
        counted = [each for each in (mask, mask_of(values)) if each is not None]  # Keras masks the class to ignore
        return mean_of_each(values, reduce(tf.logical_and, counted) if counted else None, self.name)


def losses_of(given: Any, names: Mapping[str, str]) -> dict[str, Loss]:
    """Return the loss of each output, by output; the key of a single output is ONE.

    `names` maps the name of each output in the model to its key, ONE for a single output; it is empty if unknown.
    """
    if isinstance(given, list | tuple):
        if len(given) != len(names):
            raise UserError(f"loss has {len(given)} losses. Expected {{name: loss}}, for the outputs of the model.")
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, Mapping):
        if names and ONE not in names.values():
            raise UserError(
                f"The model has the outputs {', '.join(names)}, and there is one loss. Expected a loss for each by "
                f"name, such as loss={{{next(iter(names))}: mean_squared_error}}."
            )
        return {ONE: Loss(given)}
    if without := [str(name) for name, each in given.items() if each is None]:
        raise UserError(
            f"loss of '{without[0]}' is None. Expected loss={{name: loss}} without outputs that have no loss."
        )
    return {name: Loss(each) for name, each in _by_output("loss", given, names).items()}


def metrics_of(given: Any, losses: Mapping[str, Loss], names: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return the metrics of each output; `names` is as for `losses_of`."""
    if isinstance(given, Mapping):
        if ONE in losses and not names:
            raise UserError(f"metrics has {', '.join(map(str, given))}, and there is one loss. Expected a list.")
        return {name: _listed(each) for name, each in _by_output("metrics", given, names).items()}
    listed = _listed(given)
    if listed and ONE not in losses:
        if len(listed) != len(names) or not all(isinstance(each, list | tuple) for each in listed):
            raise UserError(f"metrics is a list. Expected {{name: [...]}} of the outputs {', '.join(losses)}.")
        return {name: list(each) for name, each in zip(names, listed, strict=True) if each}
    return {ONE: listed} if listed else {}


def weights_of(given: Any, losses: Mapping[str, Loss], names: Mapping[str, str]) -> dict[str, float]:
    """Return the factors of losses, by output; a list is in the order of `names`, see `losses_of`."""
    if not given:
        return {}
    if ONE in losses:
        raise UserError("loss_weights received for one loss. Expected none, or several outputs with a loss each.")
    if isinstance(given, Sequence) and len(given) == len(names):
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, Mapping) or not all(isinstance(each, Real) for each in given.values()):
        raise UserError(f"loss_weights={given!r} received. Expected {{name: number}} of {', '.join(names or losses)}.")
    return {check_choice("output in loss_weights", str(name), losses): float(each) for name, each in given.items()}


def _by_output(what: str, given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        names[check_choice(f"output in {what}", str(name), names)] if names else str(name): each
        for name, each in given.items()
    }


def _listed(given: Any) -> list[Any]:
    """Return metrics as a list; a single one may come without a list."""
    if given is None or (isinstance(given, Sequence) and not isinstance(given, str)):
        return list(given or ())
    if isinstance(given, str) or callable(given):
        return [given]
    raise UserError(f"metrics={given!r} received. Expected names, keras.metrics.Metric objects or functions in a list.")


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
    """Compute Keras metrics.

    A metric that is a mean of one value per example (`keras.metrics.MeanMetricWrapper`: accuracies, errors, functions)
    is computed in training and in evaluations. Any other (AUC, precision, a root of a mean) needs a whole split and is
    computed only in evaluations.
    """

    def __init__(
        self,
        given: Sequence[Any],
        *,
        activation: str | None,
        kind: str | None,
        one_hot: bool = False,  # whether metrics get rows of class probabilities, not labels
        counted: bool = False,  # whether the objective itself reports the accuracy
        prefix: str = "",  # of all names, if there are several outputs
    ) -> None:
        """Resolve names, Keras metrics and functions; they get the output after the activation, if one is given."""
        self._activation, self.one_hot, self._prefix = activation, one_hot, prefix
        self._of_each: dict[str, keras.metrics.Metric] = {}
        self._of_split: dict[str, keras.metrics.Metric] = {}
        names: set[str] = set()
        for each in given:
            metric = resolve(each, kind)
            if isinstance(metric, keras.metrics.IoU):  # Keras counts in integers: weights below 1 would become 0
                metric = type(metric).from_config({**metric.get_config(), "dtype": "float64"})
            name = prefix + (each if isinstance(each, str) else metric.name)
            if name in names:
                raise UserError(f"metrics has two of the name '{name}'. Expected names that differ: give name=.")
            names.add(name)
            if not (counted and isinstance(each, str) and each in ACCURACY):
                mean, own = keras.metrics.MeanMetricWrapper, type(metric)
                is_mean = own.update_state is mean.update_state and own.result is mean.result
                found = self._of_each if is_mean else self._of_split
                found[name] = metric

    def add(
        self, output: ObjectiveOutput, batch: Batch, targets: tf.Tensor, outputs: tf.Tensor, *, training: bool
    ) -> None:
        """Add the metrics of a batch to what an objective computed."""
        if not (self._of_each or (self._of_split and not training)):
            return
        shown = tf.cast(outputs, tf.float32)
        if self._activation is not None:
            shown = getattr(keras.activations, self._activation)(shown)
        (targets, shown), mask = beside(targets, _column(shown)), mask_of(outputs)
        for name, metric in self._of_each.items():
            values = metric._fn(tf.cast(targets, tf.float32), shown, **metric._fn_kwargs)
            output.metrics[name], counts = mean_of_each(values, mask, name)
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
            counts = isinstance(metric, keras.metrics.IoU)  # pixels or labels, each with a weight
            whole = counts and not metric.sparse_y_pred  # it takes the argmax of the outputs of each pixel
            shape = tf.shape(outputs)[:-1] if whole else tf.shape(outputs)
            rank = (outputs.shape.rank or 0) - whole
            if weights is not None and rank > (1 if counts else 2):
                weights = tf.broadcast_to(_beside_axes(weights, rank), shape)
            state = [tf.convert_to_tensor(each) for each in metric.stateless_reset_state()]
            state = metric.stateless_update_state(state, targets, outputs, sample_weight=weights)
            with keras.StatelessScope(list(zip(metric.variables, state, strict=True))):  # it may return a variable
                result = metric.result()
                if isinstance(result, Mapping):
                    raise UserError(
                        f"The metric '{name}' gives {', '.join(result)}. Expected a metric for each of them."
                    )
                found[name] = tf.reduce_mean(tf.cast(result, tf.float32))
        return found


def beside(targets: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return both with equal rank if they differ only in a last axis of size 1, as in Keras."""
    more = (targets.shape.rank or 0) - (outputs.shape.rank or 0)
    if more == -1 and outputs.shape[-1] == 1:
        return targets[..., tf.newaxis], outputs
    if more == 1 and targets.shape[-1] == 1:
        return (targets, _column(outputs)) if outputs.shape.rank == 1 else (targets[..., 0], outputs)
    return targets, outputs


def _column(values: tf.Tensor) -> tf.Tensor:
    """Return values [batch] as [batch, 1], since Keras functions average over the last axis."""
    return values[:, tf.newaxis] if values.shape.rank == 1 else values


def mask_of(outputs: Any) -> tf.Tensor | None:
    """Return the mask that Keras attached to a tensor, bool [batch, ...]; None if there is none."""
    return getattr(outputs, "_keras_mask", None)


def mean_of_each(
    values: tf.Tensor, mask: tf.Tensor | None = None, name: str = ""
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return the mean of each example's values [batch, ...], float32 [batch]; a scalar [] stays as it is.

    With a mask, average only the values that count, and also return their number, float32 [batch].
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
    """Return weights [batch, ...] with trailing axes of size 1 up to the rank."""
    return tf.reshape(weights, tf.concat([tf.shape(weights), [1] * (rank - weights.shape.rank)], axis=0))


def accuracy(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return the accuracy that Keras chooses for targets and outputs of these shapes."""
    if outputs.shape[-1] == 1:
        return keras.metrics.binary_accuracy(targets, outputs)
    sparse = targets.shape.rank < outputs.shape.rank or targets.shape[-1] == 1
    return (keras.metrics.sparse_categorical_accuracy if sparse else keras.metrics.categorical_accuracy)(
        targets, outputs
    )


def resolve(given: Any, kind: str | None) -> keras.metrics.Metric:
    """Return a Keras metric; accuracy with a binary cross-entropy is that of each label."""
    if isinstance(given, str) and given.lower() in ACCURACY:
        function = keras.metrics.binary_accuracy if kind == BINARY else accuracy
        return keras.metrics.MeanMetricWrapper(function, name=given)
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
