"""The work of `what=training`; our own runs of it, as `train.py` makes them, and the limit of the machine."""

from __future__ import annotations

import math
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Done, Settings, Work

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from hookline.train import Job
    from hookline.trainer.run.control import Report
    from hookline.trainer.run.run import Run
    from hookline.trainer.step.trainer import Trainer

CLASSES = 10
LEARNING_RATE = 1e-3
TOTAL = 10**6
"""Steps of a run, and epochs without an evaluation: more than are ever made here."""
PRUNED, PRUNED_AT, MASKS_EVERY, POWER = 0.9, TOTAL // 2, 100, 3
"""Of the pruning: final sparsity, the step of it, steps between updates of the masks, power of the polynomial."""
GENERATED = 10_000
"""Images for training, where there is no file of that size of image."""
HELD_OUT = 1_000
DIGITS, COLOURED = (28, 28, 1), (32, 32, 3)
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Case:
    """Describe one work."""

    name: str  # `case=` of the command line
    model: str  # of `configs/model`
    batch_size: int = 100  # images per step
    images: tuple[int, int, int] = DIGITS  # height, width and channels
    many: int = 20  # `steps_per_execution` of Keras when it runs several steps at once: enough that more gain nothing

    @property
    def loss_steps(self) -> int:
        """Return the steps after which the loss is noted: the same for all, and whole executions."""
        return 4 * self.many


LENET_300_100 = Case("lenet_300_100", "lenet_300_100", many=100)
LENET_5 = Case("lenet_5", "lenet_5")
CNN = Case("cnn", "plain_cnn", images=COLOURED, many=5)
BNN = Case("bnn", "larq_tutorial_cnn", batch_size=64)
PRUNING = Case("pruning", "lenet_5")
HOOKS = Case("hooks", "lenet_5")
HOST_HOOKS = Case("host_hooks", "lenet_300_100")


def pixels(settings: Settings, shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Return images [n, height, width, channels] uint8 and labels [n] int64 for training and for the test, by `KEYS`.

    They come from the file that the command line names, if it holds images of this shape. Else they are generated: one
    noisy pattern per class, so that there is something to learn.
    """
    import numpy as np

    from hookline.recipes.data.array_files import read_npz

    if settings.data:
        arrays = read_npz(settings.data, KEYS)
        images = arrays["x_train"]
        if images.shape[1:] in (shape, shape[:2] if shape[2] == 1 else shape):
            reshaped = {key: arrays[key].reshape(-1, *shape) for key in KEYS if key.startswith("x")}
            return reshaped | {key: arrays[key].reshape(-1).astype(np.int64) for key in KEYS if key.startswith("y")}
    generator = np.random.default_rng(0)
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
"""Those that do almost nothing between the beginning and the evaluations, but could end the run."""


def ours(settings: Settings, *, case: Case, overrides: Sequence[str] = ()) -> Work:
    """Return steps of a run without files and evaluations."""
    silent = [f"hooks.{name}=null" for name in (*BESIDE, *WATCHING)]
    fit = start(settings, case, [f"trainer.evaluate_every_epochs={TOTAL}", *silent, *overrides])
    train = open_gate(fit)

    def work(count: int) -> Done:
        fit.loop.accumulators.reset()
        start = time.perf_counter()
        train(count)
        since_report = fit.loop.accumulators.read()  # nothing, where a report falls on the last step
        seconds = time.perf_counter() - start  # only what is read is done: a GPU may still be at work before
        return Done(seconds, (since_report or fit.journal.final)["loss/total"])

    (network,) = fit.networks.values()
    work.facts = {"products": products(network.model)}  # type: ignore[attr-defined]
    return work


def whole_epochs(settings: Settings, *, case: Case, watched: bool) -> Work:
    """Return steps of a run in whole epochs, evaluated; with a checkpoint at each, or without host hooks."""
    silent = [f"hooks.{name}=null" for name in (*BESIDE, *(() if watched else WATCHING))]
    fit = start(settings, case, [*silent, "hooks.checkpoint.every_seconds=0"] if watched else silent)
    train, made = open_gate(fit), 0

    def work(count: int) -> Done:
        nonlocal made
        each = fit.steps_per_epoch
        steps = math.ceil((made + max(1, round(count / each))) * each) - fit.step
        made = round((fit.step + steps) / each)
        return Done(train(steps) * count / steps)

    return work


def open_gate(fit: Run) -> Callable[[int], float]:
    """Start a fit in a thread, held at its beginning; return what lets it make steps and returns their seconds."""
    from hookline.trainer.hook import HostHook

    asked: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[BaseException | None] = SimpleQueue()

    class Gate(HostHook):
        """Hold a run after each piece of work. State saved: none."""

        def __init__(self) -> None:
            self.name, self.end = "gate", 0

        def state_dict(self) -> dict[str, Any]:
            return {}

        def next_step(self, step: int) -> int:
            return self.end

        def on_fit_begin(self, run: Run) -> None:
            done.put(None)
            self.end = run.step + asked.get()

        def on_chunk_end(self, run: Run, report: Report | None) -> None:
            if run.step == self.end:
                self.on_fit_begin(run)

    def run() -> None:
        try:
            fit.fit()
            raise RuntimeError("The run ended.")
        except BaseException as error:  # noqa: BLE001 - raised again where the work is asked for
            done.put(error)

    def work(steps: int) -> float:
        start = time.perf_counter()
        asked.put(steps)
        if (error := done.get()) is not None:
            raise error
        return time.perf_counter() - start

    fit.hooks = [*fit.hooks, Gate()]
    threading.Thread(target=run, daemon=True).start()
    if (error := done.get()) is not None:
        raise error
    return work


def start(settings: Settings, case: Case, overrides: Sequence[str]) -> Run:
    """Return a fit that is ready to train, as `hookline.trainer.run.session.execute` makes it."""
    from hookline.trainer.run.directory import make_directory
    from hookline.trainer.run.session import open_store, prepare

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job = compose(settings, case, overrides, folder)
        directory = folder / "run"
        make_directory(directory, job.config, job.overrides)
        fit = prepare(job.config, job.recipe, directory=directory, store=open_store(directory, ""))
        weakref.finalize(fit, stack.pop_all().close)
    return fit


def compose(settings: Settings, case: Case, overrides: Sequence[str], folder: Path) -> Job:
    """Return the job of a command line of `train.py`."""
    import numpy as np

    from hookline.train import check

    arrays: dict[str, Any] = {**pixels(settings, case.images)}
    np.savez(folder / "data.npz", **arrays)
    given = {
        "recipe": "baseline",
        "model": case.model,
        "schedule": "constant",
        "optimizer.learning_rate": LEARNING_RATE,
        "data": "keras_dataset",
        "data.name": "cifar10" if case.images == COLOURED else "mnist",
        "data.path": folder / "data.npz",
        "data.validation_size": HELD_OUT,
        "trainer.steps": TOTAL,
        "trainer.epochs": "null",
        "trainer.batch_size": settings.batch_size,
    }
    again = {override.partition("=")[0] for override in overrides}
    kept = [f"{key}={value}" for key, value in given.items() if key not in again]
    (job,) = check([*kept, *overrides])
    return job


def products(model: keras.Model) -> int:
    """Return how many multiplications with an addition one example takes, forward and backward.

    Those of dense layers and convolutions: the size of the kernel, for each place of the output that it is applied to.
    The gradient of the kernel takes as many again, and so does that of the inputs, which the first layer needs not.
    """
    layers = [layer for layer in model._flatten_layers(include_self=False) if hasattr(layer, "kernel")]
    forward = [math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1]) for layer in layers]
    return 3 * sum(forward) - forward[0]


TRIAL, ROUNDS = 0.1, 3
"""Seconds of a trial of a way, and how many trials each has, by turns; the fastest counts."""
SIDE, GPU_SIDE, PRODUCTS, TRIALS = 1024, 8192, 8, 10
"""Side of the matrices whose product is timed, also on a GPU, products in a row, how often; the fastest counts."""


def limit(settings: Settings, *, case: Case, overrides: Sequence[str] = ()) -> Work:
    """Return steps of forward and backward alone, with XLA or without, as is faster.

    They run on one batch over and over, without input, optimizer, checks and metrics.
    """
    import tensorflow as tf

    from hookline.trainer.run.session import prepare

    with tempfile.TemporaryDirectory() as folder:
        trainer = prepare(compose(settings, case, overrides, Path(folder)).config).trainer
    (network,) = trainer.networks.values()
    images, labels = (tf.constant(each[: settings.batch_size]) for each in examples(settings, case.images))
    ways = {f"XLA {'on' if xla else 'off'}": steps(trainer, images, labels, xla=xla) for xla in (False, True)}
    taken = {name: _seconds(way, 1) for name, way in ways.items()}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            count = max(1, round(TRIAL / taken[name]))
            taken[name] = min(taken[name], _seconds(way, count) / count)
    note = min(ways, key=lambda name: taken[name])
    work = ways[note]
    work.facts = {"note": note, "products": products(network.model), "peak": peak()}  # type: ignore[attr-defined]
    return work


def steps(trainer: Trainer, inputs: tf.Tensor, labels: tf.Tensor, *, xla: bool) -> Work:
    """Return what makes so many forward and backward passes; it is set up.

    All gradients are computed in full. TensorFlow prunes unused results, whatever waits for them, so each gradient is
    put into a variable: its memory is handed over, nothing is computed or copied. Functions that XLA compiles return
    them.
    """
    import tensorflow as tf

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
        for place in kept:  # a GPU may still be at work when the loop's counter, on the host, has come to its end
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
