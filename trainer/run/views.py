"""Evaluations of held-out splits, and the pictures, embeddings and distributions of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import tensorflow as tf

from hookline.trainer.hook import Arrays, GraphHook, Report, Run
from hookline.trainer.input.batches import EvaluationBatches, TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.network import Network
from hookline.trainer.objective import Shown, in_rows, sheet
from hookline.trainer.step.evaluate import Evaluator, Observer
from hookline.trainer.step.stage import ask
from hookline.trainer.step.trainer import Trainer

LATENT, FORWARD = "latent", "forward"
BIAS = "/bias"  # of parallel layers, it has two dimensions


def weight_distributions(networks: Mapping[str, Network], used: Mapping[str, Mapping[str, np.ndarray]]) -> Arrays:
    """Return the latent weights of every kernel, and those that the forward pass uses instead, if they differ."""
    found: Arrays = {}
    for name, network in networks.items():
        scope = f"{name}/" if len(networks) > 1 else ""
        for path, variable in network.trainable_variables.items():
            if len(variable.shape) < 2 or path.endswith(BIAS):
                continue
            latent, forward = variable.value.numpy(), used[name][path]
            found[f"{scope}weights/{path}/{LATENT}"] = latent
            if not np.array_equal(latent, forward, equal_nan=True):
                found[f"{scope}weights/{path}/{FORWARD}"] = forward
    return found


MOST_FILTERS = 64
SMALLEST = 24  # pixels a side: smaller filters are enlarged by an integer factor
GAP = 2


def first_kernel(network: Network) -> str | None:
    """Return the name of the first kernel of a network whose input is an image; None if it cannot be shown."""
    inputs = getattr(network.model, "inputs", None) or []  # a subclassed model has none
    kernels = ((name, each.shape) for name, each in network.trainable_variables.items() if len(each.shape) > 1)
    nothing: tuple[str | None, tuple[int, ...]] = (None, ())
    name, shape = next(kernels, nothing)
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[3] not in (1, 3):
        return None
    image = inputs[0].shape[1:]
    slides = len(shape) == 4 and shape[2] == image[2] and shape[:2] != (1, 1)  # a convolution of more than one pixel
    weighs = len(shape) == 2 and None not in image and shape[0] == math.prod(image)  # a row for each value of an image
    return name if slides or weighs else None


def first_filters(network: Network, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a picture of the first kernel that sees an image, with a tile for each output channel or unit."""
    if (kernel := first_kernel(network)) is None:
        return {}
    values, image = np.asarray(weights[kernel], np.float32), network.model.inputs[0].shape[1:]
    filters = np.moveaxis(values if values.ndim == 4 else values.reshape(*image, -1), -1, 0)
    filters = filters[:MOST_FILTERS]  # [n, height, width, channels]
    if not np.isfinite(filters).all():
        return {}
    largest = float(np.abs(filters).max()) or 1.0
    times = max(1, -(-SMALLEST // min(filters.shape[1:3])))
    # Zero is gray, the largest weight black or white.
    tiles = (0.5 + filters / (2.0 * largest)).repeat(times, axis=1).repeat(times, axis=2)
    return {f"filters/{kernel.rpartition('/')[0] or kernel}": sheet(in_rows(tiles), GAP)}


ROWS, DRAWS = 8, 8
SMALLEST_PANEL, LARGEST = 48, 128  # pixels a side: images are enlarged or subsampled to about this
PANEL_GAP = 3


def training_sheet(batches: TrainingBatches) -> np.ndarray | None:
    """Return a picture of training examples; with augmentation, each row is an example and augmented versions of it."""
    step, augmented = tf.constant(0, tf.int64), batches.augmentation is not None
    rows = batches.indices(step)[: ROWS if augmented else ROWS * (DRAWS + 1)]
    inputs = batches.read(rows)["inputs"]
    if not isinstance(inputs, tf.Tensor) or inputs.shape.rank != 4 or inputs.shape[-1] not in (1, 3):
        return None
    plain = inputs.numpy()
    if augmented:
        drawn = [batches.drawn(rows, step + number)["inputs"].numpy() for number in range(DRAWS)]
        images = np.stack([plain, *drawn], axis=1)
    else:  # full rows, or a single one
        columns = min(len(plain), DRAWS + 1)
        images = plain[: len(plain) // columns * columns].reshape(-1, columns, *plain.shape[1:])
    shown = images[:, :1] if augmented else images
    low, high = min(-1.0, float(shown.min())), max(1.0, float(shown.max()))
    tiles = [[_sized((image - low) / (high - low)) for image in row] for row in images]
    return sheet(tiles, PANEL_GAP, 3 * PANEL_GAP if augmented else 0)


def _sized(image: np.ndarray) -> np.ndarray:
    """Return an image, enlarged if it is small or subsampled if it is large, by integer factors."""
    thin = max(1, min(image.shape[:2]) // LARGEST)
    times = max(1, -(-SMALLEST_PANEL // min(image.shape[:2])))
    return image[::thin, ::thin].repeat(times, axis=0).repeat(times, axis=1)


TRAINING_EXAMPLES = "input/training_examples"


class HeldOut(Evaluator):
    """Evaluate a split that is not trained on."""

    def __init__(self, trainer: Trainer, split: Split, *, batch_size: int, placement: str = "auto") -> None:
        batches = EvaluationBatches(split, batch_size=batch_size, placement=placement)
        super().__init__(trainer, batches.batch, batches.count)
        self.split = split

    def examples(self, positions: Sequence[int]) -> Arrays:
        """Return rows of the split as a batch of arrays."""
        rows = tf.constant(self.split.indices[np.asarray(positions, np.int64)])
        return {name: tensor.numpy() for name, tensor in self.split.source.gather(rows).items()}


class Views:
    """Gather the pictures, embeddings and distributions of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._latest: tuple[tuple[int, str], Shown] | None = None

    @cached_property
    def first_pictures(self) -> Arrays:
        """Return pictures of training examples as the network sees them, by name."""
        picture = training_sheet(self._run.training)
        return {} if picture is None else {TRAINING_EXAMPLES: picture}

    def shown(self, report: Report) -> Shown:
        """Return the views of first layers, hooks and objectives, computed once for each evaluation."""
        step, split = report.step, report.split
        if self._latest is None or self._latest[0] != (step, split):
            found = self._of_hooks(step, self._observer.run(step))
            found.pictures = self._filters(step) | found.pictures
            evaluation = self._run.held_out[split]
            for objective in self._run.trainer.objectives:
                found.add(objective.show(evaluation.collected(objective.name), evaluation.examples))
            self._latest = ((step, split), found)
        return self._latest[1]

    def distributions(self, step: int) -> Arrays:
        """Return arrays for histograms, of the weights and of hooks, by name."""
        found = weight_distributions(self._run.networks, self._run.shipped(step))
        return {**found, **self._of_hooks(step, {}).distributions}

    @cached_property
    def _observer(self) -> Observer:
        run, size = self._run, self._run.settings["evaluation_batch_size"]
        split = run.data.validation or run.data.train
        return Observer(run.trainer, split, batch_size=size, placement=run.settings["placement"])

    def _filters(self, step: int) -> Arrays:
        """Return pictures of the first layer of each network that sees images, by name."""
        networks = self._run.networks
        seen = [name for name, network in networks.items() if first_kernel(network) is not None]
        used = self._run.shipped(step) if seen else {}  # reads all weights
        found: Arrays = {}
        for name in seen:
            scope = f"{name}/" if len(networks) > 1 else ""
            found |= {scope + title: picture for title, picture in first_filters(networks[name], used[name]).items()}
        return found

    def _of_hooks(self, step: int, observed: Mapping[str, Arrays]) -> Shown:
        found = Shown()
        for hook in self._run.hooks:
            shown: Shown = ask(hook, "show", observed.get(hook.name, {}), step=step)
            found.add(shown, hook.scope if isinstance(hook, GraphHook) else "")
        return found
