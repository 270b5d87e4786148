"""Larq and TFMOT, the TensorFlow Model Optimization Toolkit: they stand on Keras 2, in environments of their own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Settings, Work
from hookline.scripts.benchmarks.training.case import (
    CLASSES,
    LEARNING_RATE,
    MASKS_EVERY,
    POWER,
    PRUNED,
    PRUNED_AT,
    Case,
    examples,
)
from hookline.scripts.benchmarks.training.keras_loops import fitted
from hookline.scripts.benchmarks.training.networks import legacy_larq_cnn, legacy_lenet_5

if TYPE_CHECKING:
    from types import ModuleType

KERAS_2 = "tf_keras"


def larq(settings: Settings, *, case: Case, many: int) -> Work:
    """Return steps of `fit` of a network with Larq's binary layers."""
    keras = importlib.import_module(KERAS_2)
    model = legacy_larq_cnn(keras, importlib.import_module("larq"), CLASSES)
    return _fit(keras, model, settings, case, many)


def tfmot(settings: Settings, *, case: Case, many: int) -> Work:
    """Return steps of `fit` of a network that is pruned on a polynomial schedule."""
    keras = importlib.import_module(KERAS_2)
    sparsity = importlib.import_module("tensorflow_model_optimization").sparsity.keras
    schedule = sparsity.PolynomialDecay(0.0, PRUNED, 0, PRUNED_AT, power=POWER, frequency=MASKS_EVERY)
    model = sparsity.prune_low_magnitude(legacy_lenet_5(keras, CLASSES), pruning_schedule=schedule)
    return _fit(keras, model, settings, case, many, sparsity.UpdatePruningStep())


def _fit(keras: ModuleType, model: Any, settings: Settings, case: Case, many: int, *callbacks: Any) -> Work:
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=many,
    )
    batch, arrays = settings.batch_size, examples(settings, case.images)
    return fitted(model, *arrays, batch_size=batch, many=many, callbacks=callbacks)
