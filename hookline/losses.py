"""A loss and metrics as Keras takes them, as an objective of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.measures import Measures, beside, mean_of_each
from hookline.recipes.classification import Classification
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.final_activation import FinalActivation, check_logits, take_off
from hookline.trainer.input.data import Data
from hookline.trainer.model_checks import check_inputs, check_names, check_one_output
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, ForwardFunction, Objective, ObjectiveOutput
from hookline.trainer.recipe import Recipe

MODEL = "model"
SPARSE, ONE_HOT, BINARY = "sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"
CLASSES = {
    SPARSE: keras.losses.SparseCategoricalCrossentropy,
    ONE_HOT: keras.losses.CategoricalCrossentropy,
    BINARY: keras.losses.BinaryCrossentropy,
}
MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "auto")


class Loss:
    """Say what is minimised, from what the user gave.

    Attributes:
        given: a name, a `keras.losses.Loss`, or a function (y_true, y_pred).
        kind: SPARSE, ONE_HOT or BINARY where it is a cross-entropy that is computed from logits; None for another.
        name: under which it is reported.
    """

    def __init__(self, given: Any) -> None:
        """Resolve what was given."""
        self.given = given
        self.function = _resolved(given)
        reduction = getattr(self.function, "reduction", "auto")
        if reduction not in MEANS:
            raise UserError(
                f"loss={_name(given)} has reduction='{reduction}'. Expected 'sum_over_batch_size': a step minimises "
                "the mean over its examples."
            )
        self.kind = next((kind for kind, own in CLASSES.items() if _is_kind(self.function, kind, own)), None)
        self.name = self.kind or _name(given)

    @property
    def label_smoothing(self) -> float:
        """Return the share of each target that is spread over the classes."""
        return float(getattr(self.function, "label_smoothing", 0.0))

    @property
    def from_logits(self) -> bool:
        """Return whether the model's outputs are meant as logits."""
        return bool(getattr(self.function, "from_logits", False))

    def classifies(self, shape: Sequence[int | None]) -> bool:
        """Return whether the loss is that of `recipes.classification`, for outputs of a shape."""
        return self.kind in (SPARSE, ONE_HOT) and len(shape) == 2 and shape[1] is not None

    def each(self, targets: tf.Tensor, outputs: tf.Tensor, *, from_logits: bool) -> tf.Tensor:
        """Return the loss of each example, float32 [batch]; or [] where a function gives a mean."""
        outputs = tf.cast(outputs, tf.float32)
        targets = beside(targets, outputs)
        if isinstance(self.function, keras.losses.Loss) or not self.kind or (self.kind == BINARY and from_logits):
            targets = tf.cast(targets, tf.float32)
        if self.kind == BINARY and from_logits:
            smoothing = self.label_smoothing
            return mean_of_each(
                keras.losses.binary_crossentropy(targets, outputs, from_logits=True, label_smoothing=smoothing)
            )
        function = self.function.call if isinstance(self.function, keras.losses.Loss) else self.function
        return mean_of_each(function(targets, outputs))


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
    raise UserError(
        f"loss={given!r} received. Expected a name, a keras.losses.Loss, or a function (y_true, y_pred) of one value "
        "for each example."
    )


def _name(given: Any) -> str:
    if isinstance(given, str):
        return given
    return str(getattr(given, "name", None) or getattr(given, "__name__", type(given).__name__))


def _is_kind(function: Any, kind: str, own: Any) -> bool:
    if type(function) is own:
        config = function.get_config()
        return config.get("ignore_class") is None and config.get("axis", -1) == -1
    return function is getattr(keras.losses, kind)


class ClassLoss(Classification):
    """Minimise what `recipes.classification` does, and report the metrics that were asked for."""

    def __init__(self, *, classes: int, label_smoothing: float, measures: Measures) -> None:
        """Set the loss and the metrics."""
        super().__init__(classes=classes, label_smoothing=label_smoothing)
        self.measures = measures

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        output = super().compute(forward, batch)
        self.measures.add(output, batch, output.outputs, training=forward.training)
        return output

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self.measures.of_split(collected)


class KerasLoss(Objective):
    """Minimise a loss of Keras or of the user's, of one network."""

    name = "keras_loss"
    trains = (MODEL,)

    def __init__(self, loss: Loss, *, from_logits: bool, classes: int, measures: Measures) -> None:
        """Set the loss and the metrics."""
        self.loss, self.from_logits, self.measures = loss, from_logits, measures
        self.class_losses = (loss.name,) if classes else ()

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        outputs = forward(MODEL, batch["inputs"])
        values = self.loss.each(batch["targets"], outputs, from_logits=self.from_logits)
        output = ObjectiveOutput(losses={self.loss.name: values}, outputs=outputs)
        self.measures.add(output, batch, outputs, training=forward.training)
        return output

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self.measures.of_split(collected)


def recipe_of(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    loss: Loss,
    metrics: Sequence[Any],
    data: Data,
    output_shape: Sequence[int | None],
) -> Recipe:
    """Return the one network of a model with the objective of a loss.

    A final softmax or sigmoid is taken off where the loss has a form that takes logits: `final_activations` of the
    network name it.
    """
    check_names(model)
    activations: tuple[FinalActivation, ...] = ()
    classifies = loss.classifies(output_shape) and data.classes > 0
    if (classifies or loss.kind == BINARY) and not loss.from_logits:
        wanted = "sigmoid" if loss.kind == BINARY else "softmax"
        model, activations = take_off_only(model, wanted)
    if data.input_shape:
        check_inputs(model, data)
    check_one_output(model, "such as predictions [batch, ...]; for several, give objectives=")
    network = Network(MODEL, model, optimizer, final_activations=activations)
    activation = activations[0].name if activations else None
    one_hot = output_shape[-1] if loss.kind == ONE_HOT and classifies else None
    measures = Measures(metrics, output_shape, activation=activation, one_hot=one_hot, counted=classifies)
    if not classifies:
        from_logits = bool(activations) or loss.from_logits
        own = KerasLoss(loss, from_logits=from_logits, classes=data.classes, measures=measures)
        return Recipe([network], [own])
    check_logits(model, data)
    classes = int(output_shape[1] or 0)
    return Recipe([network], [ClassLoss(classes=classes, label_smoothing=loss.label_smoothing, measures=measures)])


def take_off_only(model: keras.Model, name: str) -> tuple[keras.Model, tuple[FinalActivation, ...]]:
    """Return a model without its final activation where that is the one of a loss, and what it lacks then."""
    stripped, found = take_off(model)
    if all(each.name == name for each in found):
        return stripped, found
    for each in found:
        if each.attribute:
            each.operation.activation = getattr(keras.activations, each.name)
    return model, ()
