"""The limit: forward and backward alone, on one batch over and over, without input, optimizer, checks and metrics.

All gradients are computed in full. TensorFlow prunes unused results, whatever waits for them, so each gradient is put
into a variable: its memory is handed over, nothing is computed or copied. Functions that XLA compiles return them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Settings, Work
from hookline.scripts.benchmarks.training.case import Case, examples
from hookline.scripts.benchmarks.training.hookline import compose
from hookline.scripts.benchmarks.training.products import products

if TYPE_CHECKING:
    import tensorflow as tf

    from hookline.trainer.step.trainer import Trainer

TRIAL, ROUNDS = 0.1, 3
"""Seconds of a trial of a way, and how many trials each has, by turns; the fastest counts."""
SIDE, GPU_SIDE, PRODUCTS, TRIALS = 1024, 8192, 8, 10
"""Side of the matrices whose product is timed, also on a GPU, products in a row, how often; the fastest counts."""


def limit(settings: Settings, *, case: Case, overrides: Sequence[str] = ()) -> Work:
    """Return steps of forward and backward alone, with XLA or without, as is faster."""
    import tensorflow as tf

    from hookline.trainer.run.assembly import assemble

    with tempfile.TemporaryDirectory() as folder:
        trainer = assemble(compose(settings, case, overrides, Path(folder)).config).trainer
    (network,) = trainer.networks.values()
    images, labels = (tf.constant(each[: settings.batch_size]) for each in examples(settings, case.images))
    kept = [tf.Variable(tf.zeros(each.shape), trainable=False) for each in network.model.trainable_variables]
    ways = {f"XLA {'on' if xla else 'off'}": steps(trainer, images, labels, kept, xla=xla) for xla in (False, True)}
    taken = {name: _seconds(way, 1) for name, way in ways.items()}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            count = max(1, round(TRIAL / taken[name]))
            taken[name] = min(taken[name], _seconds(way, count) / count)
    note = min(ways, key=lambda name: taken[name])
    work = ways[note]

    def repeat(count: int) -> None:
        work(count)

    repeat.facts = {"note": note, "products": products(network.model), "peak": peak()}  # type: ignore[attr-defined]
    return repeat


def steps(
    trainer: Trainer, inputs: tf.Tensor, labels: tf.Tensor, kept: Sequence[tf.Variable], *, xla: bool
) -> Callable[[int], None]:
    """Return what makes so many forward and backward passes; it is set up."""
    import tensorflow as tf

    (name,), (objective,) = trainer.networks, trainer.objectives

    def gradients() -> list[tf.Tensor]:
        forward = trainer.forward(tf.constant(0, tf.int64), {}, objective=objective.name, training=True)
        outputs = tf.cast(forward(name, inputs), tf.float32)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
        found = trainer.compute_gradients(loss, forward.passes)[name]
        return [tf.convert_to_tensor(found[key]) for key in trainer.networks[name].trainable_variables]

    made = tf.function(gradients, autograph=False, jit_compile=True) if xla else gradients

    @tf.function(autograph=False)
    def run(count: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor) -> tf.Tensor:
            stored = [place.assign(each, read_value=False) for place, each in zip(kept, made(), strict=True)]
            with tf.control_dependencies(stored):
                return step + 1

        return tf.while_loop(lambda step: step < count, body, [tf.constant(0)], parallel_iterations=1)[0]

    def work(count: int) -> None:
        run(tf.constant(count)).numpy()
        for (
            place
        ) in kept:  # a GPU may still be at work when the loop's counter, which the host keeps, has come to its end
            tf.reshape(place, [-1])[0].numpy()

    work(1)
    return work


def peak() -> float:
    """Return the floating-point operations a second that one large product of float32 matrices reaches."""
    import tensorflow as tf

    side = GPU_SIDE if tf.config.list_physical_devices("GPU") else SIDE
    a = tf.random.stateless_uniform([side, side], [0, 0])
    b = 2.0 / side * a  # so that the product stays about as large

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        product = a
        for _ in range(PRODUCTS):
            product = tf.matmul(product, b)
        return product

    def work(count: int) -> None:
        for _ in range(count):
            run()[0, 0].numpy()

    work(1)
    fastest = min(_seconds(work, 1) for _ in range(TRIALS))
    return 2.0 * side**3 * PRODUCTS / fastest


def _seconds(work: Callable[[int], Any], count: int) -> float:
    start = time.perf_counter()
    work(count)
    return time.perf_counter() - start
