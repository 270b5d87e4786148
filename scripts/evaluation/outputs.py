"""The outputs of a network for every example of a split, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Split
from hookline.trainer.objective import Batch, Objective
from hookline.trainer.run.finished import FinishedRun
from hookline.trainer.step.evaluate import Evaluator

if TYPE_CHECKING:
    from hookline.deploy.formats import Predictor

Outputs = Callable[[Batch], np.ndarray]


def class_objective(run: FinishedRun) -> Objective | None:
    """Return the objective by which a run learns classes; None if it learns something else."""
    return next((each for each in run.parts.trainer.objectives if each.class_losses), None)


def outputs_of_run(run: FinishedRun, objective: Objective) -> Outputs:
    """Return the function that gives a run's logits for a batch, as its own evaluations do: with all hooks."""
    trainer = run.parts.trainer

    @tf.function(autograph=False)
    def logits(batch: Batch) -> tf.Tensor:
        forward = trainer.forward(tf.constant(run.step, tf.int64), batch, objective="", training=False)
        return tf.cast(objective.compute(forward, batch).outputs, tf.float32)

    return lambda batch: logits(batch).numpy()


def outputs_of_model(predict: Predictor) -> Outputs:
    """Return the function that gives an exported network's outputs for a batch."""
    return lambda batch: np.asarray(predict(batch["inputs"].numpy()), np.float32)


def collect(outputs: Outputs, split: Split, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs for every example of a split, and their labels."""
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


def metrics_of_run(run: FinishedRun, split: Split, batch_size: int) -> dict[str, float]:
    """Return what a run's own evaluation reports of a split, by name."""
    batches = EvaluationBatches(split, batch_size=batch_size, placement="host")
    return Evaluator(run.parts.trainer, batches.batch, batches.count).run(run.step)
