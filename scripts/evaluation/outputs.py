"""The outputs of a network for every example of a split, and what is measured on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hookline.deploy.plain_model import card_of
from hookline.scripts.evaluation.choose_data import check_data, input_range, open_data
from hookline.scripts.evaluation.report import Measures, measure
from hookline.scripts.prediction.model import open_model
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Data, Split
from hookline.trainer.objective import Batch
from hookline.trainer.ops.probabilities import are_probabilities, as_logits
from hookline.trainer.run.finished import restore
from hookline.trainer.step.evaluate import Evaluator

if TYPE_CHECKING:
    from hookline.scripts.evaluate import Options

Outputs = Callable[[Batch], np.ndarray]


@dataclass
class Evaluation:
    """What was found."""

    data: str  # name of the data
    model: str  # what was evaluated
    metrics: dict[str, float]  # of the run's own evaluation, by name; empty for an export
    measures: Measures | None  # of a classifier; None for another network
    names: Sequence[str]  # of the classes
    warnings: Sequence[str] = ()  # lines for the user


def evaluate_run(options: Options, config: Mapping[str, Any], other: Mapping[str, Any] | None) -> Evaluation:
    """Return what a run reaches, with all its hooks."""
    run = restore(options.run, dict(config), options.checkpoint)
    own = run.data
    data = own if other is None else open_data(other, options.plugins)
    objective = next((each for each in run.trainer.objectives if each.class_losses), None)
    names, warned = _names(data), []
    if other is not None:
        network = objective.trains[0] if objective else next(iter(run.trainer.networks))
        names = card_of(run, network).classes
        warned = check_data(data, tuple(own.input_shape), names, input_range(own))
    split = getattr(data, options.split)
    batches = EvaluationBatches(split, batch_size=options.batch_size, placement="host")
    metrics = Evaluator(run.trainer, batches.batch, batches.count).run(run.step)
    model = f"{user_path(options.run, 'run').resolve().name} ({run.checkpoint}, step {run.step:,})"
    if objective is None:  # it learns no classes
        return Evaluation(data.name, model, metrics, None, (), warned)

    @tf.function(autograph=False)
    def logits(batch: Batch) -> tf.Tensor:  # as the run's own evaluations compute them: with all hooks
        forward = run.trainer.forward(tf.constant(run.step, tf.int64), batch, objective="", training=False)
        return tf.cast(objective.compute(forward, batch).outputs, tf.float32)

    outputs, labels = collect(lambda batch: logits(batch).numpy(), split, options.batch_size)
    return Evaluation(data.name, model, metrics, _measured(options, outputs, labels, names), names, warned)


def evaluate_model(options: Options, data: Data) -> Evaluation:
    """Return what an exported network reaches."""
    model = open_model(options.model, network="model", checkpoint=None, plugins=options.plugins)
    names, warned, card = _names(data), [], model.card
    if card is not None:
        if not card.classes:
            raise UserError(
                f"The outputs of {options.model} are not classes. Expected run=<run>, whose recipe judges them."
            )
        warned = check_data(data, card.shape, card.classes, input_range(card))
        names = card.classes if not data.class_names else names

    def predict(batch: Batch) -> np.ndarray:
        return np.asarray(model.predict(batch["inputs"].numpy()), np.float32)

    outputs, labels = collect(predict, getattr(data, options.split), options.batch_size)
    activation = card.activation if card is not None else "softmax" if are_probabilities(outputs) else None
    measures = _measured(options, as_logits(outputs, activation), labels, names)
    return Evaluation(data.name, Path(options.model).name, {}, measures, names, warned)


def collect(outputs: Outputs, split: Split, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs for every example of a split, in order, and their labels."""
    batches = EvaluationBatches(split, batch_size=batch_size, placement="host")
    found, labels = [], []
    for index in range(batches.count):
        batch = batches.batch(tf.constant(index, tf.int64))
        real = batch["weights"].numpy() > 0  # the last batch is filled up
        values = outputs(batch)
        if values.ndim != 2:
            raise UserError(f"The network returns outputs of shape {list(values.shape)}. Expected [batch, classes].")
        if not np.isfinite(values).all():
            raise UserError("The network returns NaN or infinite values, so it cannot be judged. Expected numbers.")
        found.append(values[real])
        labels.append(batch["targets"].numpy()[real])
    return np.concatenate(found), np.concatenate(labels).astype(np.int64)


def _names(data: Data) -> Sequence[str]:
    return data.class_names or tuple(str(label) for label in range(data.classes))


def _measured(options: Options, outputs: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> Measures:
    if outputs.shape[1] != len(names):
        raise UserError(f"The network returns {outputs.shape[1]} outputs for {len(names)} classes. Expected as many.")
    return measure(outputs, labels, names, bins=options.bins)
