"""Pictures, embeddings and distributions of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from hookline.trainer.hook import Arrays, GraphHook, Hook
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.network import Network
from hookline.trainer.objective import Embedding, Objective, Shown
from hookline.trainer.run.state import ShippedWeights
from hookline.trainer.step.evaluate import Evaluator, Observer
from hookline.trainer.step.returned import ask

LATENT, FORWARD = "latent", "forward"
BIAS = "/bias"  # of layers side by side, it has two dimensions


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
SMALLEST = 24  # pixels a side: smaller filters are enlarged by a whole factor
GAP = 2
PAPER = 1.0
Shape = tuple[int | None, ...]


def first_kernel(network: Network) -> str | None:
    """Return the name of the first kernel of a network whose input is an image; None if it cannot be shown."""
    inputs = getattr(network.model, "inputs", None) or []  # a subclassed model has none
    kernels = ((name, each.shape) for name, each in network.trainable_variables.items() if len(each.shape) > 1)
    name, shape = next(kernels, (None, ()))
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[3] not in (1, 3):
        return None
    return name if _is_convolution(shape, inputs[0].shape[1:]) or _is_dense(shape, inputs[0].shape[1:]) else None


def first_filters(network: Network, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a picture of the first kernel of a network whose input is an image, by "filters/<layer>".

    A kernel of a convolution is a filter for each output channel; one of a dense layer has the weights of each unit in
    the places of the pixels. Zero is gray, and the largest weight of the layer black or white. At most 64 are shown.
    """
    if (kernel := first_kernel(network)) is None:
        return {}
    values, image = np.asarray(weights[kernel], np.float32), network.model.inputs[0].shape[1:]
    filters = np.moveaxis(values if values.ndim == 4 else values.reshape(*image, -1), -1, 0)
    if not np.isfinite(filters).all():
        return {}
    return {f"filters/{kernel.rpartition('/')[0] or kernel}": _sheet(filters[:MOST_FILTERS])}


def _is_convolution(kernel: Shape, image: Shape) -> bool:
    """Return whether a kernel slides over an image and covers more than one pixel."""
    return len(kernel) == 4 and kernel[2] == image[2] and kernel[:2] != (1, 1)


def _is_dense(kernel: Shape, image: Shape) -> bool:
    """Return whether a kernel has a row for each value of an image."""
    return len(kernel) == 2 and None not in image and kernel[0] == math.prod(side or 0 for side in image)


def _sheet(filters: np.ndarray) -> np.ndarray:
    """Return filters [n, height, width, channels] in rows on white, enlarged where they are small."""
    count, height, width, channels = filters.shape
    largest = float(np.abs(filters).max()) or 1.0
    times = max(1, -(-SMALLEST // min(height, width)))
    tiles = (0.5 + filters / (2.0 * largest)).repeat(times, axis=1).repeat(times, axis=2)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    cell = (height * times + GAP, width * times + GAP)
    sheet = np.full((rows * cell[0] + GAP, columns * cell[1] + GAP, channels), PAPER, np.float32)
    for index, tile in enumerate(tiles):
        top, left = GAP + index // columns * cell[0], GAP + index % columns * cell[1]
        sheet[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return np.clip(sheet, 0.0, 1.0)


ROWS, DRAWS = 8, 8
SMALLEST_PANEL, LARGEST = 48, 128  # pixels a side: images are enlarged or thinned out to about this
PANEL_GAP = 3
PANEL_PAPER = 1.0


def training_sheet(batches: TrainingBatches) -> np.ndarray | None:
    """Return a picture of some training examples: rows of one example each, where there is augmentation.

    To the left of a row is the example as it is, to the right as it comes at the first steps. Without augmentation,
    all are different examples.
    """
    step = tf.constant(0, tf.int64)
    rows = batches.indices(step)
    if batches.augmentation is None:
        images = batches.read(rows[: ROWS * (DRAWS + 1)])["inputs"]
        return _training_sheet([[image] for image in _cut(images.numpy())]) if _are_images(images) else None
    rows = rows[:ROWS]
    plain = batches.read(rows)["inputs"]
    if not _are_images(plain):
        return None
    drawn = [batches.drawn(rows, step + number)["inputs"].numpy() for number in range(DRAWS)]
    return _training_sheet([[np.stack([image]), np.stack(drawn)[:, row]] for row, image in enumerate(plain.numpy())])


def _are_images(inputs: tf.Tensor) -> bool:
    return isinstance(inputs, tf.Tensor) and inputs.shape.rank == 4 and inputs.shape[-1] in (1, 3)


def _cut(images: np.ndarray) -> list[np.ndarray]:
    """Return images [n, ...] in full rows, or in one where there are fewer."""
    columns = min(len(images), DRAWS + 1)
    return [images[start : start + columns] for start in range(0, len(images) - columns + 1, columns)]


def _training_sheet(rows: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Return rows of groups of images [n, height, width, channels] on white; groups stand apart."""
    plain = np.concatenate([group for row in rows for group in row[:1]])
    low, high = min(-1.0, float(plain.min())), max(1.0, float(plain.max()))
    lines = []
    for row in rows:
        tiles = []
        for number, group in enumerate(row):
            tiles += [_gap(group[0], 3 * PANEL_GAP if number else PANEL_GAP, axis=1)]
            for image in group:
                tiles += [np.clip((_sized(image) - low) / (high - low), 0.0, 1.0), _gap(image, PANEL_GAP, axis=1)]
        line = np.concatenate(tiles, axis=1)
        lines += [line, np.full((PANEL_GAP, *line.shape[1:]), PANEL_PAPER)]
    return np.concatenate([lines[1], *lines]).astype(np.float32)


def _sized(image: np.ndarray) -> np.ndarray:
    """Return an image enlarged where it is small, and thinned out where it is large, by whole factors."""
    thin = max(1, min(image.shape[:2]) // LARGEST)
    times = max(1, -(-SMALLEST_PANEL // min(image.shape[:2])))
    return image[::thin, ::thin].repeat(times, axis=0).repeat(times, axis=1)


def _gap(image: np.ndarray, pixels: int, axis: int) -> np.ndarray:
    shape = list(_sized(image).shape)
    shape[axis] = pixels
    return np.full(shape, PANEL_PAPER)


TRAINING_EXAMPLES = "input/training_examples"


@dataclass(frozen=True)
class Evaluated:
    """Hold a split with what evaluates it.

    Attributes:
        split: its examples.
        evaluator: holds what the objectives collected over them.
    """

    split: Split
    evaluator: Evaluator

    def examples(self, positions: Sequence[int]) -> Arrays:
        """Return rows of the split as a batch of arrays."""
        rows = tf.constant(self.split.indices[np.asarray(positions, np.int64)])
        return {name: tensor.numpy() for name, tensor in self.split.source.gather(rows).items()}


@dataclass
class Views:
    """Gather what hooks and objectives of a run show.

    Attributes:
        hooks: all of them.
        objectives: all of them.
        observer: gives graph hooks what they observe.
        evaluated: the splits by name.
        training: the batches of the training split; None to show none of them.
        networks: by name; without any, nothing of their weights is shown.
        shipped: what evaluation uses in place of their weights.
    """

    hooks: Sequence[Hook]
    objectives: Sequence[Objective]
    observer: Observer
    evaluated: Mapping[str, Evaluated]
    training: TrainingBatches | None = None
    networks: Mapping[str, Network] = field(default_factory=dict)
    shipped: ShippedWeights | None = None
    _latest: tuple[tuple[int, str], Shown] | None = field(default=None, repr=False)
    _first: Arrays | None = field(default=None, repr=False)

    def first_pictures(self) -> Arrays:
        """Return pictures to show before the first step, by name: training examples as the network sees them."""
        if self._first is None:
            sheet = None if self.training is None else training_sheet(self.training)
            self._first = {} if sheet is None else {TRAINING_EXAMPLES: sheet}
        return self._first

    def pictures(self, step: int, split: str) -> Arrays:
        """Return the pictures by name: of first layers, and what hooks and objectives show."""
        return self._shown(step, split).pictures

    def embeddings(self, step: int, split: str) -> dict[str, Embedding]:
        """Return the embeddings by name."""
        return self._shown(step, split).embeddings

    def distributions(self, step: int) -> Arrays:
        """Return arrays whose distribution is worth a look, by name: of the weights, and what hooks give."""
        used = {} if self.shipped is None else self.shipped(step)
        found = weight_distributions(self.networks if used else {}, used)
        return {**found, **self._of_hooks(step, {}).distributions}

    def _filters(self, step: int) -> Arrays:
        """Return pictures of the first layer of each network that sees images, by name."""
        seen = [name for name, network in self.networks.items() if first_kernel(network) is not None]
        used = self.shipped(step) if self.shipped is not None and seen else {}  # reads all weights
        found: Arrays = {}
        for name in seen if used else ():
            scope = f"{name}/" if len(self.networks) > 1 else ""
            pictures = first_filters(self.networks[name], used[name])
            found |= {scope + title: picture for title, picture in pictures.items()}
        return found

    def _shown(self, step: int, split: str) -> Shown:
        """Return all that hooks and objectives show; it is made once for each evaluation."""
        if self._latest is None or self._latest[0] != (step, split):
            found = self._of_hooks(step, self.observer.run(step))
            found.pictures = self._filters(step) | found.pictures
            evaluated = self.evaluated[split]
            for objective in self.objectives:
                found.add(objective.show(evaluated.evaluator.collected(objective.name), evaluated.examples))
            self._latest = ((step, split), found)
        return self._latest[1]

    def _of_hooks(self, step: int, observed: Mapping[str, Arrays]) -> Shown:
        found = Shown()
        for hook in self.hooks:
            shown: Shown = ask(hook, "show", observed.get(hook.name, {}), step=step)
            found.add(shown, hook.scope if isinstance(hook, GraphHook) else "")
        return found
