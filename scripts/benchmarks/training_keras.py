"""What users of Keras write: `fit` in its settings, and a loop by hand; Larq and TFMOT, which stand on Keras 2."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Done, Settings, Work
from hookline.scripts.benchmarks.training_hookline import (
    CLASSES,
    CNN,
    LEARNING_RATE,
    MASKS_EVERY,
    POWER,
    PRUNED,
    PRUNED_AT,
    Case,
    examples,
)

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

KERAS_2 = "tf_keras"


def build(case: Case) -> keras.Model:
    """Return the model of a case, as our own runs have it."""
    from hookline.recipes.models import lenet
    from hookline.recipes.models.plain_cnn import plain_cnn

    model: keras.Model = (plain_cnn if case == CNN else getattr(lenet, case.model))(case.images, CLASSES)
    return model


def fit(settings: Settings, *, case: Case, jit: bool, many: int) -> Work:
    """Return steps of `model.fit`."""
    keras = importlib.import_module("keras")
    return _fitted(keras, build(case), settings, case, many, **({"jit_compile": True} if jit else {}))


def larq(settings: Settings, *, case: Case, many: int) -> Work:
    """Return steps of `fit` of a network with Larq's binary layers."""
    keras = importlib.import_module(KERAS_2)
    return _fitted(keras, _larq_cnn(keras, importlib.import_module("larq")), settings, case, many)


def tfmot(settings: Settings, *, case: Case, many: int) -> Work:
    """Return steps of `fit` of a network that TFMOT prunes on a polynomial schedule."""
    keras = importlib.import_module(KERAS_2)
    sparsity = importlib.import_module("tensorflow_model_optimization").sparsity.keras
    schedule = sparsity.PolynomialDecay(0.0, PRUNED, 0, PRUNED_AT, power=POWER, frequency=MASKS_EVERY)
    model = sparsity.prune_low_magnitude(_lenet_5(keras), pruning_schedule=schedule)
    return _fitted(keras, model, settings, case, many, sparsity.UpdatePruningStep())


def _fitted(
    keras: Any, model: Any, settings: Settings, case: Case, many: int, *callbacks: Any, **compiled: Any
) -> Work:
    """Return steps of `fit` of a model, of Keras 2 or 3.

    Each epoch, or a part of one, is a call of `fit`. What such a call has to set up is not counted, nor is its first
    execution.
    """
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(LEARNING_RATE), loss, steps_per_execution=many, **compiled)
    model.make_train_function()
    execute = model.train_function
    first: list[float] = []  # when the first execution of a call of fit was done

    def timed(iterator: Any) -> Any:
        logs = execute(iterator)
        if not first:
            float(logs["loss"])  # an accelerator may still be at work
            first.append(time.perf_counter())
        return logs

    model.train_function = timed
    with tf.device("CPU"):
        inputs, targets = map(tf.constant, examples(settings, case.images))
    longest = len(inputs) // settings.batch_size // many
    always = {"batch_size": settings.batch_size, "shuffle": True, "verbose": 0, "callbacks": [*callbacks]}

    def work(count: int) -> Done:
        left, counted, seconds, loss = max(2, -(-count // many)), 0, 0.0, 0.0
        while left:
            executions = left if left <= longest else min(longest, left - 2)  # at most an epoch, and never one alone
            left, counted = left - executions, counted + executions - 1
            first.clear()
            history = model.fit(inputs, targets, steps_per_epoch=executions * many, **always)
            seconds += time.perf_counter() - first[0]
            loss = float(history.history["loss"][-1])
        return Done(seconds * count / (counted * many), loss)

    return work


def by_hand(settings: Settings, *, case: Case) -> Work:
    """Return steps of a traced function that is called once for each, with a tape and a Keras optimizer."""
    import keras
    import numpy as np
    import tensorflow as tf

    model, optimizer = build(case), keras.optimizers.Adam(LEARNING_RATE)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)
    images, labels = map(tf.constant, examples(settings, case.images))
    total, size = tf.Variable(0.0), settings.batch_size
    generator, order = np.random.default_rng(0), np.zeros([0], np.int64)

    @tf.function(autograph=False)
    def train(rows: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = criterion(tf.gather(labels, rows), model(tf.gather(images, rows), training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        total.assign_add(loss)

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


def _lenet_5(keras: Any) -> Any:
    """Return what `hookline.recipes.models.lenet` has, in Keras 2."""
    layers = keras.layers
    first, second = layers.Conv2D(20, 5, input_shape=(28, 28, 1)), layers.Conv2D(50, 5)
    dense = [layers.Dense(500, activation="relu"), layers.Dense(CLASSES)]
    return keras.Sequential([first, layers.MaxPooling2D(2), second, layers.MaxPooling2D(2), layers.Flatten(), *dense])


def _larq_cnn(keras: Any, larq: Any) -> Any:
    """Return the network of Larq's MNIST tutorial, without its softmax: the loss takes logits."""
    binary = {"kernel_quantizer": "ste_sign", "kernel_constraint": "weight_clip", "use_bias": False}
    inner = {"input_quantizer": "ste_sign", **binary}
    layers = keras.layers
    return keras.Sequential(
        [
            larq.layers.QuantConv2D(32, 3, input_shape=(28, 28, 1), **binary),
            layers.MaxPooling2D(2),
            layers.BatchNormalization(scale=False),
            larq.layers.QuantConv2D(64, 3, **inner),
            layers.MaxPooling2D(2),
            layers.BatchNormalization(scale=False),
            larq.layers.QuantConv2D(64, 3, **inner),
            layers.BatchNormalization(scale=False),
            layers.Flatten(),
            larq.layers.QuantDense(64, **inner),
            layers.BatchNormalization(scale=False),
            larq.layers.QuantDense(CLASSES, **inner),
            layers.BatchNormalization(scale=False),
        ]
    )
