"""Compare an export with the run that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.deploy.formats import Format, Predictor
from hookline.deploy.plain_model import (
    assign_seeds,
    draws_numbers,
    foreign_names,
    mixed_dtypes,
    plain_model,
    single_model,
    strip_model,
)
from hookline.trainer.errors import UserError
from hookline.trainer.final_activation import undo
from hookline.trainer.hook import Run
from hookline.trainer.step.trainer import Trainer

TOLERANCE = 1e-3  # of metrics; a different order of additions may change a prediction or two
LOSSY_TOLERANCE = 2e-2
ROUNDING = 1e-2  # of outputs, on average; a few signs of a binary network may flip
METRIC = "metric/"
KERAS = "keras"


@dataclass
class Difference:
    """Accumulate how much a file's outputs differ from those of the run's own model."""

    examples: int  # of the test split
    largest: float = 0.0  # absolute difference of outputs; NaN if an output of either is NaN
    classes: bool = False  # whether outputs are [batch, classes], so that a class is predicted
    total: float = 0.0  # sum of the absolute differences
    scale: float = 0.0  # sum of the absolute outputs of the run's own model
    others: set[int] = field(default_factory=set, repr=False)
    """Hashes of examples with a different predicted class; a set, as the last batch repeats examples to be full."""

    def add(self, inputs: np.ndarray, found: np.ndarray, expected: np.ndarray) -> None:
        if found.size:
            with np.errstate(invalid="ignore"):  # infinities of one sign are equal
                apart = np.where(found == expected, 0.0, np.abs(found - expected))
            self.largest = float(np.maximum(self.largest, apart.max()))
            self.total += float(apart.sum())
            self.scale += float(np.abs(expected).sum())
        self.classes = found.ndim == 2 and found.shape[1] > 1
        if self.classes:
            differ = found.argmax(axis=1) != expected.argmax(axis=1)
            self.others |= {hash(each.tobytes()) for each in inputs[differ]}

    @property
    def share(self) -> float:
        """Return the mean difference as a share of the mean absolute output."""
        return self.total / self.scale if self.scale else 0.0

    def __str__(self) -> str:
        text = f"outputs differ by {self.largest:.3g} at most"
        if not self.classes:
            return text
        return f"{text}; the predicted class differs for {len(self.others):,} of {self.examples:,} test examples"


class Stand(keras.layers.Layer):
    """Return the predictions of a file instead of those of a model."""

    def __init__(self, predict: Predictor, difference: Difference) -> None:
        super().__init__(dtype="float32", autocast=False)
        self._predict, self._difference = predict, difference

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        given, expected = inputs
        traced = getattr(self._predict, "traced", None)
        found = tf.cast(traced(given), tf.float32) if traced else tf.numpy_function(self._run, [given], tf.float32)
        found = tf.numpy_function(self._compared, [given, found, expected], tf.float32)
        return _with_gradient_of(tf.ensure_shape(found, expected.shape), expected)

    def _run(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(self._predict(inputs), np.float32)

    def _compared(self, inputs: np.ndarray, found: np.ndarray, expected: np.ndarray) -> np.ndarray:
        if found.shape != expected.shape:
            raise UserError(f"The file returns outputs of shape {found.shape}. Expected {expected.shape}.")
        self._difference.add(inputs, found, expected)
        return found

    def compute_output_shape(self, input_shape: list[tuple[int | None, ...]]) -> tuple[int | None, ...]:
        return input_shape[1]

    def compute_mask(self, inputs: list[tf.Tensor], previous_mask: list[tf.Tensor | None]) -> tf.Tensor | None:
        return previous_mask[1]


@tf.custom_gradient
def _with_gradient_of(found: tf.Tensor, expected: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    """Return `found` with the gradient of `expected`, which metrics such as a gradient penalty need."""
    return tf.identity(found), lambda upstream: (None, upstream)


def compare(
    run: Run, network: str, form: Format, predict: Predictor, *, tolerance: float | None = None, lossy: bool = False
) -> tuple[dict[str, float], Difference | None]:
    """Return a file's metrics on the test split, and its `Difference` or None, after checking that it matches the run.

    If the run computes in half precision, its plain model is compared with the run in half precision, and the file with
    the plain model in float32, so that the file and the model differ only by rounding.
    """
    expected = run.held_out["test"].run(run.step)
    limit = tolerance if tolerance is not None else (LOSSY_TOLERANCE if lossy else TOLERANCE)
    mixed = mixed_dtypes(strip_model(run.trainer, network))
    if mixed:
        with plain_model(run.trainer, run.step, network, full=False) as half:
            _check_hooks(_metrics(run, network, half), expected, tolerance)
    with plain_model(run.trainer, run.step, network) as plain:
        foreign, difference = foreign_names(plain), None
        model = getattr(predict, "model", None)
        if model is not None:
            assign_seeds(model, plain)
        if model is None or foreign:  # a user's class may be rebuilt as another layer
            difference = Difference(len(run.held_out["test"].split.indices))
            single = single_model(run, network, plain, form.name)
            outputs = Stand(predict, difference)([single.inputs[0], single.outputs[0]])
            model = keras.Model(single.inputs[0], outputs, name=plain.name)
        metrics = _metrics(run, network, model)
        by_loss = not any(METRIC in name for name in expected)
        if difference and np.isnan(difference.largest):
            raise UserError(f"The {form.name} file returns NaN on the test split. Expected numbers: another format.")
        expected = _metrics(run, network, plain) if mixed or by_loss else expected
        if wrong := _first_wrong(metrics, expected, limit):
            _check_hooks(_metrics(run, network, plain), expected, tolerance)
            _refuse_draws(run, plain, form)
            raise UserError(
                f"The {form.name} file has {wrong}={metrics[wrong]:.6g} on the test split, but the run has "
                f"{expected[wrong]:.6g}: more than tolerance={limit:g} apart. Expected a file as good as the run: "
                "another format or other options, or a higher tolerance."
            )
    if difference and not lossy and difference.share > max(limit, ROUNDING):
        _refuse_draws(run, plain, form)
        raise UserError(
            f"The outputs of the {form.name} file differ from the run's by {difference.share:.1%} on average, although "
            "its metrics agree. Expected only rounding differences: another format, or a higher tolerance."
        )
    if foreign and difference and form.name == KERAS and difference.largest > TOLERANCE:
        raise UserError(
            f"Keras loads the file as a model whose outputs differ from the run's by up to {difference.largest:.3g}. "
            f"Expected {', '.join(foreign)} with every argument in get_config, or format=saved_model."
        )
    return metrics, difference


def _first_wrong(metrics: Mapping[str, float], expected: Mapping[str, float], limit: float) -> str | None:
    def equal(one: float, other: float) -> bool:
        return bool(np.isclose(one, other, 0.0, limit * max(1.0, abs(other)), equal_nan=True))

    return next((name for name in metrics if not equal(metrics[name], expected[name])), None)


def _check_hooks(metrics: Mapping[str, float], expected: Mapping[str, float], tolerance: float | None) -> None:
    """Refuse a plain model with other metrics than its run."""
    limit = max(tolerance or 0.0, TOLERANCE)
    if wrong := _first_wrong({name: each for name, each in metrics.items() if METRIC in name}, expected, limit):
        raise UserError(
            f"The plain model has {wrong}={metrics[wrong]:.6g} on the test split, but the run has "
            f"{expected[wrong]:.6g}: a hook changes what evaluation sees in a way that no plain model can hold, or "
            "rounding alone changes the outputs (then they change with the batch size, too). Expected a run without "
            "such a hook, or a higher tolerance."
        )


def _refuse_draws(run: Run, plain: keras.Model, form: Format) -> None:
    """Refuse a file that differs because the network draws random numbers in inference."""
    inputs = run.held_out["test"].batch(tf.constant(0, tf.int64))["inputs"]
    if form.name != KERAS and draws_numbers(plain, inputs):
        raise UserError(
            f"'{plain.name}' draws random numbers in inference, and the {form.name} file draws others than the run: "
            "the two cannot be compared. Expected format=keras, or a higher tolerance."
        )


def with_model(trainer: Trainer, network: str, model: keras.Model) -> Trainer:
    """Return a trainer in which a model replaces a network and its hooks."""
    model = undo(model, trainer.networks[network].final_activations)
    networks: list[Any] = [
        replace(each, model=model, taps={}, tapped=None, final_activations=()) if name == network else each
        for name, each in trainer.networks.items()
    ]
    hooks = [hook for hook in trainer.hooks if hook.network != network]
    return Trainer(networks, trainer.objectives, hooks, seed=trainer.seed)


def _metrics(run: Run, network: str, model: keras.Model) -> dict[str, float]:
    """Return the metrics of a run on the test split if a model replaces a network and its hooks.

    Without metrics, return the losses, except the total and those of layers, which a file does not have.
    """
    found = run.held_out["test"].of(with_model(run.trainer, network, model)).run(run.step)
    left_out = ("loss/total", "loss/layers_")
    losses = {name: value for name, value in found.items() if "loss/" in name and not any(e in name for e in left_out)}
    return {name: value for name, value in found.items() if METRIC in name} or losses
