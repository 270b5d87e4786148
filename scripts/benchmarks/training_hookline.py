"""The work of `what=training`; our own runs of it, as `train.py` makes them, and the limit of the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Settings, Work, scratch

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from hookline.train import Job
    from hookline.trainer.run.run import Run

CLASSES = 10
LEARNING_RATE = 1e-3
TOTAL = 10**6
"""Steps of a run, and epochs without an evaluation: more than are ever made here."""
PRUNED, PRUNED_AT, MASKS_EVERY, POWER = 0.9, TOTAL // 2, 100, 3
"""Of the pruning: final sparsity, the step of it, steps between updates of the masks, power of the polynomial."""
GENERATED, HELD_OUT = 10_000, 1_000
"""Images for training and for the test, where there is no file with images of that size."""
DIGITS, COLOURED = (28, 28, 1), (32, 32, 3)
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Case:
    """One work."""

    name: str  # `case=` of the command line
    model: str  # of `configs/model`
    batch_size: int = 100
    images: tuple[int, int, int] = DIGITS  # height, width and channels
    many: int = 20  # `steps_per_execution` of Keras, where it runs several steps at once: more gain nothing


BINARY = ("recipe=bnn", "model.activation=linear", "model.logits_scale=false", "hooks.bnn_rounding.all_binary=true")
"""Larq's tutorial to the letter: no activation before its quantizers, no scale in its last batch norm."""
LENET_300_100 = Case("lenet_300_100", "lenet_300_100", many=100)
LENET_5 = Case("lenet_5", "lenet_5")
CNN = Case("cnn", "plain_cnn", images=COLOURED, many=5)
BNN = Case("bnn", "larq_tutorial_cnn", batch_size=64)
PRUNING = Case("pruning", "lenet_5")
HOOKS = Case("hooks", "lenet_5")
HOST_HOOKS = Case("host_hooks", "lenet_300_100")


def pixels(settings: Settings, shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Return images [n, *shape] uint8 and labels [n] int64 by `KEYS`; generated where no file holds such images."""
    import numpy as np

    from hookline.recipes.data.array_files import read_npz

    arrays = read_npz(settings.data, KEYS) if settings.data else {}
    if arrays and arrays["x_train"].shape[1:] in (shape, shape[:2] if shape[2] == 1 else shape):
        images = {key: arrays[key].reshape(-1, *shape) for key in KEYS if key.startswith("x")}
        return images | {key: arrays[key].reshape(-1).astype(np.int64) for key in KEYS if key.startswith("y")}
    generator = np.random.default_rng(0)  # one noisy pattern per class: there is something to learn
    patterns = generator.integers(0, 128, (CLASSES, *shape), np.uint8)
    found = {}
    for part, count in (("train", GENERATED), ("test", HELD_OUT)):
        labels = generator.integers(0, CLASSES, count)
        found[f"x_{part}"] = patterns[labels] + generator.integers(0, 128, (count, *shape), np.uint8)
        found[f"y_{part}"] = labels.astype(np.int64)
    return found


def examples(settings: Settings, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the images for training, float32 in [-1, 1], and their labels: what other frameworks are given."""
    arrays = pixels(settings, shape)
    return arrays["x_train"].astype("float32") * (2.0 / 255) - 1.0, arrays["y_train"]


WATCHING = ("progress", "tensorboard", "pictures", "projector", "metrics_jsonl", "checkpoint", "final_table")
"""Of the hooks that every run has, those that work for the user's eyes, or write files."""
BESIDE = ("randomness_guard", "advisor", "early_stopping")
"""Those that do almost nothing while steps are made, but could end the run."""


def ours(settings: Settings, *, case: Case, overrides: Sequence[str] = ()) -> Work:
    """Return steps of a run without files and evaluations."""
    silent = [f"hooks.{name}=null" for name in (*BESIDE, *WATCHING)]
    run = start(settings, case, [f"trainer.evaluate_every_epochs={TOTAL}", *silent, *overrides])
    train = steps_of(run)

    def work(count: int) -> None:
        train(count)
        run.loop.accumulators.read()  # waits for a GPU that is still at work

    (network,) = run.networks.values()
    work.products = products(network.model)  # type: ignore[attr-defined]
    return work


def whole_epochs(settings: Settings, *, case: Case, watched: bool) -> Work:
    """Return steps of a run in whole epochs, evaluated; with a checkpoint at each, or without host hooks."""
    silent = [f"hooks.{name}=null" for name in (*BESIDE, *(() if watched else WATCHING))]
    run = start(settings, case, [*silent, "hooks.checkpoint.every_seconds=0"] if watched else silent)
    train, made = steps_of(run), 0

    def work(count: int) -> float:
        nonlocal made
        each = run.steps_per_epoch
        steps = math.ceil((made + max(1, round(count / each))) * each) - run.step
        made = round((run.step + steps) / each)
        begun = time.perf_counter()
        train(steps)
        return (time.perf_counter() - begun) * count / steps

    return work


def steps_of(run: Run) -> Callable[[int], None]:
    """Begin a fit, and return what makes so many of its steps; it is `Run.fit` in pieces."""
    run._begin()

    def train(steps: int) -> None:
        end = run.step + steps
        while run.step < end:
            edge = run.cadence.next_edge(run.step, run.host_hooks, run.times.seconds_per_step)
            run._train_to(min(end, edge))

    return train


def start(settings: Settings, case: Case, overrides: Sequence[str]) -> Run:
    """Return a run that is ready to train, as `hookline.trainer.run.session.execute` makes it."""
    from hookline.trainer.run.directory import make_directory
    from hookline.trainer.run.session import open_store, prepare

    directory = scratch() / "run"
    job = compose(settings, case, overrides)
    make_directory(directory, job.config, job.overrides)
    return prepare(job.config, job.recipe, directory=directory, store=open_store(directory, ""))


def compose(settings: Settings, case: Case, overrides: Sequence[str]) -> Job:
    """Return the job of a command line of `train.py`."""
    import numpy as np

    from hookline.train import check

    arrays: dict[str, Any] = {**pixels(settings, case.images)}
    path = scratch() / "data.npz"
    np.savez(path, **arrays)
    given = {
        "recipe": "baseline",
        "model": case.model,
        "schedule": "constant",
        "optimizer.learning_rate": LEARNING_RATE,
        "data": "keras_dataset",
        "data.name": "cifar10" if case.images == COLOURED else "mnist",
        "data.path": path,
        "data.validation_size": HELD_OUT,
        "trainer.steps": TOTAL,
        "trainer.epochs": "null",
        "trainer.batch_size": settings.batch_size,
    }
    own = {override.partition("=")[0] for override in overrides}
    (job,) = check([*(f"{key}={value}" for key, value in given.items() if key not in own), *overrides])
    return job


def products(model: keras.Model) -> int:
    """Return how many multiply-accumulates one example takes in dense layers and convolutions, forward and backward."""
    # Both gradients take as many as the forward pass; the first layer needs none of its inputs.
    layers = [layer for layer in model._flatten_layers(include_self=False) if hasattr(layer, "kernel")]
    forward = [math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1]) for layer in layers]
    return 3 * sum(forward) - forward[0]


def limit(settings: Settings, *, case: Case, xla: bool, overrides: Sequence[str] = ()) -> Work:
    """Return forward and backward passes alone, on one batch, without input, optimizer, checks and metrics.

    All gradients are computed in full. TensorFlow prunes unused results, so each gradient is put into a variable: its
    memory is handed over, nothing is computed or copied. Functions that XLA compiles return them.
    """
    import tensorflow as tf

    from hookline.trainer.run.session import prepare

    trainer = prepare(compose(settings, case, overrides).config).trainer
    inputs, labels = (tf.constant(each[: settings.batch_size]) for each in examples(settings, case.images))
    (name,), (objective,) = trainer.networks, trainer.objectives
    trainable = trainer.networks[name].trainable_variables
    kept = [tf.Variable(tf.zeros(each.shape), trainable=False) for each in trainable.values()]

    def gradients() -> list[tf.Tensor]:
        forward = trainer.forward(tf.constant(0, tf.int64), {}, objective=objective.name, training=True)
        outputs = tf.cast(forward(name, inputs), tf.float32)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
        found = trainer.compute_gradients(loss, forward.passes)[name]
        return [tf.convert_to_tensor(found[key]) for key in trainable]

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
        for place in kept:  # a GPU may still be at work when the loop's counter, on the host, has reached its end
            tf.reshape(place, [-1])[0].numpy()

    work.products = products(trainer.networks[name].model)  # type: ignore[attr-defined]
    return work
