"""Losses of Keras or of the user: of each example, and from logits where a cross-entropy has that form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.recipes.measures import beside, mean_of_each
from hookline.trainer.errors import UserError, unknown_name

ONE = ""
"""The name of the output of a network that has one."""
SPARSE, ONE_HOT, BINARY = "sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"
CLASSES = {
    SPARSE: keras.losses.SparseCategoricalCrossentropy,
    ONE_HOT: keras.losses.CategoricalCrossentropy,
    BINARY: keras.losses.BinaryCrossentropy,
}
ENDS = {SPARSE: "softmax", ONE_HOT: "softmax", BINARY: "sigmoid"}
"""The activation whose logits a cross-entropy takes."""
MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "auto")


class Loss:
    """Say what is minimised, from what the user gave.

    Attributes:
        given: a name, a `keras.losses.Loss`, or a function (y_true, y_pred).
        kind: SPARSE, ONE_HOT or BINARY where it is a cross-entropy that is computed from logits; None for another.
        name: under which it is reported.
        of_keras: whether Keras defines it.
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
        own = type(self.function) if isinstance(self.function, keras.losses.Loss) else self.function
        self.of_keras = str(getattr(own, "__module__", "")).partition(".")[0] == "keras"

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
        if self.kind != SPARSE and (self.kind or isinstance(self.function, keras.losses.Loss)):
            targets = tf.cast(targets, tf.float32)
        if self.kind == SPARSE:
            each = keras.losses.sparse_categorical_crossentropy
            return mean_of_each(each(targets, outputs, from_logits=from_logits))
        if self.kind:
            function = getattr(keras.losses, self.kind)
            smoothing = self.label_smoothing
            return mean_of_each(function(targets, outputs, from_logits=from_logits, label_smoothing=smoothing))
        function = self.function.call if isinstance(self.function, keras.losses.Loss) else self.function
        return mean_of_each(function(targets, outputs))


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
        if name not in losses:
            raise unknown_name("output in loss_weights", name, losses)
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
