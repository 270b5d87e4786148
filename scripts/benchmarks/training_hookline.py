"""The cases of `what=training`; our own runs of them, as `train.py` makes them, and the limit of the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.worker import Settings, Work, scratch

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from hookline.train import Job
    from hookline.trainer.run.run import Run

CLASSES = 10
LEARNING_RATE = 1e-3
TOTAL = 10**6
"""Steps of a run, and epochs between evaluations: more than are ever trained here."""
PRUNED, PRUNED_AT, MASKS_EVERY, POWER = 0.9, TOTAL // 2, 100, 3
"""Pruning: final sparsity, the step at which it is reached, steps between mask updates, power of the polynomial."""
GENERATED, HELD_OUT = 20_000, 1_000
"""Generated images for training and for the test, if there is no file with images of that size."""
DIGITS, COLORED = (28, 28, 1), (32, 32, 3)
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Case:
    """What to train: a model, and the shape of its batches."""

    model: str  # of `configs/model`
    batch_size: int = 100
    images: tuple[int, int, int] = DIGITS  # height, width and channels
    many: int = 20  # `steps_per_execution` of Keras to run several steps at once: more gain nothing


BINARY = ("recipe=bnn", "model.activation=linear", "model.logits_scale=false", "hooks.bnn_rounding.all_binary=true")
"""Larq's tutorial to the letter: no activation before its quantizers, no scale in its last batch norm."""
LENET_300_100 = Case("lenet_300_100", many=100)
LENET_5 = Case("lenet_5")
CNN = Case("plain_cnn", images=COLORED, many=5)
BNN = Case("larq_tutorial_cnn", batch_size=64)


def data_file(settings: Settings, shape: tuple[int, int, int]) -> Path:
    """Return the npz file of the command line if it holds images of that shape, otherwise a generated one."""
    import numpy as np

    from hookline.recipes.data.array_files import read_npz

    if settings.data:
        found = read_npz(settings.data, KEYS)["x_train"].shape[1:]
        if found == shape or (*found, 1) == shape:
            return Path(settings.data).absolute()
    generator = np.random.default_rng(0)  # one noisy pattern per class: there is something to learn
    patterns = generator.integers(0, 128, (CLASSES, *shape), np.uint8)
    arrays: dict[str, Any] = {}
    for part, count in (("train", GENERATED), ("test", HELD_OUT)):
        labels = generator.integers(0, CLASSES, count)
        arrays[f"x_{part}"] = patterns[labels] + generator.integers(0, 128, (count, *shape), np.uint8)
        arrays[f"y_{part}"] = labels
    path = scratch() / "data.npz"
    np.savez(path, **arrays)
    return path


def arrays_of(settings: Settings, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the training images, [n, *shape] uint8, and their labels, [n] int64."""
    from hookline.recipes.data.array_files import read_npz

    arrays = read_npz(str(data_file(settings, shape)), KEYS)
    return arrays["x_train"].reshape(-1, *shape), arrays["y_train"].reshape(-1).astype("int64")


def examples(settings: Settings, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the training images, float32 in [-1, 1], and their labels, as they are passed to other frameworks."""
    images, labels = arrays_of(settings, shape)
    return images.astype("float32") * (2.0 / 255) - 1.0, labels


WATCHING = ("progress", "tensorboard", "pictures", "projector", "metrics_jsonl", "checkpoint", "final_table")
"""Hooks of every run that show something to the user, or write files."""
BESIDE = ("randomness_guard", "advisor", "early_stopping")
"""Hooks of every run that do almost nothing during steps, but could end the run."""


def ours(settings: Settings, *, case: Case, overrides: Sequence[str] = ()) -> Work:
    """Return work that trains a run without files and evaluations."""
    silent = [f"hooks.{name}=null" for name in (*BESIDE, *WATCHING)]
    run = start(settings, case, [f"trainer.evaluate_every_epochs={TOTAL}", *silent, *overrides])
    train = steps_of(run)

    def work(count: int) -> None:
        train(count)
        run.loop.accumulators.read()  # waits for a GPU

    return work


def whole_epochs(settings: Settings, *, watched: bool) -> Work:
    """Return work that trains LeNet-300-100 in whole evaluated epochs, with a checkpoint each or without host hooks."""
    silent = [f"hooks.{name}=null" for name in (*BESIDE, *(() if watched else WATCHING))]
    run = start(settings, LENET_300_100, [*silent, "hooks.checkpoint.every_seconds=0"] if watched else silent)
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
    """Begin a fit, and return a function that runs a number of its steps: `Run.fit` in pieces."""
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
    from hookline.train import check
    from hookline.trainer.config.overrides import quoted

    given: dict[str, Any] = {
        "recipe": "baseline",
        "model": case.model,
        "schedule": "constant",
        "optimizer.learning_rate": LEARNING_RATE,
        "trainer.steps": TOTAL,
        "trainer.epochs": "null",
        "trainer.batch_size": settings.batch_size or case.batch_size,
    }
    own = {override.partition("=")[0] for override in overrides}
    if "data" not in own:
        given |= {"data": "keras_dataset", "data.name": "cifar10" if case.images == COLORED else "mnist"}
        given |= {"data.path": quoted(data_file(settings, case.images)), "data.validation_size": HELD_OUT}
    (job,) = check([*(f"{key}={value}" for key, value in given.items() if key not in own), *overrides])
    return job


def limit(settings: Settings, *, case: Case, xla: bool, overrides: Sequence[str] = ()) -> Work:
    """Return work of forward and backward passes only, on one batch, without input, optimizer, checks and metrics.

    All gradients are computed in full. TensorFlow prunes unused results, so each gradient is assigned to a variable,
    which takes over its memory without computing or copying. Functions compiled by XLA return the gradients.
    """
    import tensorflow as tf

    trainer = start(settings, case, overrides).trainer
    size = settings.batch_size or case.batch_size
    inputs, labels = (tf.constant(each[:size]) for each in examples(settings, case.images))
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
        for place in kept:  # a GPU may still be busy when the loop counter, on the host, has reached its end
            tf.reshape(place, [-1])[0].numpy()

    return work
