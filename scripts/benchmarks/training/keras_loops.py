"""What users of Keras write: `fit` in its settings, and a loop by hand."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Done, Settings, Work
from hookline.scripts.benchmarks.training.case import (
    CLASSES,
    CNN,
    LEARNING_RATE,
    LENET_5,
    LENET_300_100,
    Case,
    examples,
)

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

MODELS = {
    LENET_300_100.model: "hookline.recipes.models.lenet",
    LENET_5.model: "hookline.recipes.models.lenet",
    CNN.model: "hookline.scripts.benchmarks.training.networks",
}
"""Modules by the name of the model that they build."""


def build(case: Case) -> keras.Model:
    """Return the model of a case, as our own runs have it."""
    return getattr(importlib.import_module(MODELS[case.model]), case.model)(case.images, CLASSES)


def fit(settings: Settings, *, case: Case, jit: bool, many: int) -> Work:
    """Return steps of `model.fit`."""
    import keras

    model = build(case)
    compiled = {"jit_compile": True} if jit else {}
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=many,
        **compiled,
    )
    return fitted(model, *examples(settings, case.images), batch_size=settings.batch_size, many=many)


def fitted(
    model: Any, images: np.ndarray, labels: np.ndarray, *, batch_size: int, many: int, callbacks: tuple[Any, ...] = ()
) -> Work:
    """Return steps of `fit` of a compiled model, of Keras 2 or 3.

    Each epoch, or a part of one, is a call of `fit`. What such a call has to set up is not counted, nor is its first
    execution.
    """
    import tensorflow as tf

    model.make_train_function()
    execute, clock = model.train_function, _Clock()
    model.train_function = clock.around(execute)
    with tf.device("CPU"):
        inputs, targets = tf.constant(images), tf.constant(labels)
    longest = len(images) // batch_size // many

    def work(count: int) -> Done:
        left, timed, seconds, loss = max(2, -(-count // many)), 0, 0.0, 0.0
        while left:
            executions = left if left <= longest else min(longest, left - 2)  # at most an epoch, and never one alone
            left, timed = left - executions, timed + executions - 1
            clock.restart()
            history = model.fit(
                inputs,
                targets,
                batch_size=batch_size,
                steps_per_epoch=executions * many,
                shuffle=True,
                verbose=0,
                callbacks=list(callbacks),
            )
            seconds += clock.seconds()
            loss = float(history.history["loss"][-1])
        return Done(seconds * count / (timed * many), loss)

    return work


class _Clock:
    """Note when the first execution of a call of `fit` is done."""

    def __init__(self) -> None:
        self._first: float | None = None

    def restart(self) -> None:
        self._first = None

    def seconds(self) -> float:
        """Return the seconds since then."""
        assert self._first is not None
        return time.perf_counter() - self._first

    def around(self, execute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed(iterator: Any) -> Any:
            logs = execute(iterator)
            if self._first is None:
                float(logs["loss"])  # an accelerator may still be at work
                self._first = time.perf_counter()
            return logs

        return timed


def by_hand(settings: Settings, *, case: Case) -> Work:
    """Return steps of a traced function that is called once for each, with a tape and a Keras optimizer."""
    import keras
    import numpy as np
    import tensorflow as tf

    step = step_by_hand(build(case), keras.optimizers.Adam(LEARNING_RATE))
    images, labels = map(tf.constant, examples(settings, case.images))
    total, size = tf.Variable(0.0), settings.batch_size
    generator, order = np.random.default_rng(0), np.zeros([0], np.int64)

    @tf.function(autograph=False)
    def train(rows: tf.Tensor) -> None:
        total.assign_add(step(tf.gather(images, rows), tf.gather(labels, rows)))

    def work(count: int) -> Done:
        nonlocal order
        total.assign(0.0)
        for _ in range(count):
            if len(order) < size:
                order = generator.permutation(len(images))
            rows, order = order[:size], order[size:]
            train(tf.constant(rows))
        return Done(loss=float(total) / count)

    return work


def step_by_hand(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Callable[..., tf.Tensor]:
    """Return one step of training, to be traced: it takes inputs and labels, and returns the loss."""
    import keras
    import tensorflow as tf

    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = criterion(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step
