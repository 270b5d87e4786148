"""Objectives, their batches, what they display, and checks that networks and objectives fit together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.network import Network


@dataclass(frozen=True, eq=False)
class Embedding:
    """Hold the vectors of some examples.

    Attributes:
        vectors: float [examples, d].
        labels: text or numeric metadata of the examples by column name, each [examples].
        images: numbers [examples, height, width, 1 or 3] in any range, such as thumbnails; None for no images.
    """

    vectors: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    images: np.ndarray | None = None


@dataclass
class Shown:
    """Hold pictures, embeddings and distributions to display, by name.

    Attributes:
        pictures: float [height, width, channels] in [0, 1], 1 or 3 channels.
        embeddings: vectors of examples for a projector.
        distributions: arrays of any shape, for histograms.
    """

    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    embeddings: dict[str, Embedding] = field(default_factory=dict)
    distributions: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, other: Shown, scope: str = "") -> None:
        """Add the entries of another, with the prefix `scope` before its names."""
        self.pictures |= {scope + name: each for name, each in other.pictures.items()}
        self.embeddings |= {scope + name: each for name, each in other.embeddings.items()}
        self.distributions |= {scope + name: each for name, each in other.distributions.items()}


Batch: TypeAlias = "dict[str, tf.Tensor]"
"""A batch: "inputs" [batch, ...], "targets" [batch, ...], and any other entries of the source."""

SOFT_TARGETS = "target_shares"
"""The entry that replaces "targets" if augmentation mixed examples: float32 [batch, classes], each row sums to 1."""
SAMPLE_WEIGHTS = "sample_weights"
"""The weight of each example, if the source has it: float32 [batch], 0 or more, like Keras's `sample_weight`.
Losses of shape [batch] are multiplied by it, then averaged over all examples. Metrics are weighted means."""


class ForwardFunction(Protocol):
    """Run networks for an objective, and provide seeds for its random draws.

    Attributes:
        training: whether this is a training step, not an evaluation.
    """

    training: bool

    def __call__(self, name: str, inputs: Any) -> Any:
        """Return the outputs of the network `name` for `inputs`."""

    def stateless_seed(self, salt: str) -> tf.Tensor:
        """Return a seed for `tf.random.stateless_*`, such as for a generator's noise.

        In training it is a pure function of (run seed, objective, its update, step, micro batch, replica, salt). In an
        evaluation it depends on the run seed and the salt alone, so that evaluations can be compared.

        Args:
            salt: names the draw. Each draw of an objective needs its own salt.

        Returns:
            int32 tensor of shape [2].
        """

    def gradients(self, value: tf.Tensor, sources: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Return gradients for use within a loss, such as in a gradient penalty: float32, one per source.

        They are differentiable, like those of `tf.gradients`, and use loss scaling in float16, see `LossScale`.

        Args:
            value: scalar.
            sources: tensors; the gradient of one that `value` does not depend on is None.
        """


Examples = Callable[[Sequence[int]], dict[str, np.ndarray]]
"""Called with positions in a split; returns a batch of arrays, including "inputs" and "targets"."""


def hard_labels(batch: Batch, reader: str) -> tf.Tensor:
    """Return the batch's targets, for code that needs hard labels and cannot handle soft targets.

    Args:
        batch: a training or evaluation batch.
        reader: the caller's name for the error message, such as "hooks.center_loss".

    Raises:
        UserError: the targets are soft: examples were mixed, or each target is a row of class shares.
    """
    if SOFT_TARGETS in batch:
        raise UserError(
            f"{reader} needs one class for each example, but the targets are class probabilities. Expected class "
            "labels, and no augmentation that mixes examples, such as augment.mixup: set augment.<name>=null."
        )
    return batch["targets"]


@dataclass
class ObjectiveOutput:
    """Hold the results of an objective for one batch.

    Attributes:
        losses: tensors by name, of shape [batch] (one per example) or [] (already a mean). Their sum is minimized.
        metrics: tensors by name, of shape [batch] or []; averaged over examples, never minimized.
        outputs: the outputs that hooks see, such as logits [batch, classes].
        collected: tensors [batch, ...] by name that an evaluation keeps for the whole split; training ignores them.
        counts: the number of values that each example's loss or metric is a mean of, float32 [batch] by "loss/<name>"
            or "metric/<name>", if it differs between examples (see `Objective.uneven`). The mean over examples is
            weighted by it, which makes it the mean over all values.
    """

    losses: dict[str, tf.Tensor]
    metrics: dict[str, tf.Tensor] = field(default_factory=dict)
    outputs: Any = None
    collected: dict[str, tf.Tensor] = field(default_factory=dict)
    counts: dict[str, tf.Tensor] = field(default_factory=dict)


class Objective(ABC):
    """Define one loss of a step.

    Attributes:
        name: unique among the objectives of a run.
        trains: names of the networks whose variables this objective may change. It runs other networks without
            changing their weights, moving statistics, seed state or optimizer.
        class_losses: names of its losses of shape [batch] that `trainer.class_weights` weights by the classes in
            "targets" or "target_shares".
        updates: how many times a step runs this objective, each time on its own equal part of the batch (n_critic of a
            GAN). Metrics are averages over the runs.
        uneven: whether `compute` may return `counts`. With micro batches or replicas, an extra pass then computes the
            counts of the whole batch beforehand, and nothing else.
    """

    name: str = "objective"
    trains: tuple[str, ...] = ("model",)
    class_losses: tuple[str, ...] = ()
    updates: int = 1
    uneven: bool = False

    def begin(self, networks: Mapping[str, Network]) -> list[tf.Operation]:
        """Create and return ops that must run before this objective reads any variable, such as `copy_network`.

        They run in order, once for each run of the objective (`updates` times per step), and write variables of
        networks in `trains`. An earlier veto in the step prevents them; a later one does not undo them.

        Args:
            networks: all networks of the run, by name.
        """
        return []

    @abstractmethod
    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Run the networks on a batch and return losses, metrics and outputs.

        Traced once; must be pure: it writes no variable and no file.

        Args:
            forward: `forward(network_name, inputs)` runs a network with its transformed weights;
                `forward.stateless_seed(salt)` returns the seed for a random draw.
            batch: the batch of the step or evaluation, or the part of it for this run of the objective.
        """

    def sample(self, forward: ForwardFunction) -> dict[str, tf.Tensor]:
        """Return tensors that the networks generate without data, such as samples, by name.

        Runs once for each evaluation of a split, after all batches, with the weights that evaluation uses; the result
        is added to the collected tensors of `compute`. Traced once; must be pure: draws depend only on the run's seed.

        Args:
            forward: `forward(network_name, inputs)` runs a network with its transformed weights, not in training mode.
        """
        return {}

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return metrics that are not averages over batches, such as recall@k: scalars by name.

        Traced once; must be pure.

        Args:
            collected: the tensors that `compute` collected over all examples of the split, [examples, ...] by name, and
                those that `sample` returned.
        """
        return {}

    def show(self, collected: dict[str, np.ndarray], examples: Examples) -> Shown:
        """Return pictures and embeddings of examples to display.

        Args:
            collected: the tensors of `compute` and `sample` from the latest evaluation; empty before the first.
            examples: function that returns the examples at given positions in that split, as a batch of arrays.
        """
        return Shown()


def check_ownership(networks: Sequence[Network], objectives: Sequence[Objective]) -> None:
    """Refuse networks not trained by exactly one objective; shared ones may have several, fixed ones must have none.

    Names must be unique, and no variable or optimizer may belong to two networks.
    """
    _check_names("network", [network.name for network in networks])
    _check_names("objective", [objective.name for objective in objectives])
    _check_apart(networks)
    for objective in objectives:
        _check_objective(objective, [network.name for network in networks])
    for network in networks:
        _check_owners(network, owners_of(network.name, objectives))


def owners_of(network: str, objectives: Iterable[Objective]) -> list[str]:
    """Return the names of the objectives that may change a network."""
    return [objective.name for objective in objectives if network in objective.trains]


def _check_objective(objective: Objective, networks: Sequence[str]) -> None:
    for name in objective.trains:
        check_choice(f"network of the objective '{objective.name}'", name, networks)
    if type(objective.updates) is not int or objective.updates < 1:
        raise UserError(f"Objective '{objective.name}' has updates={objective.updates!r}. Expected an integer above 0.")


def _check_names(kind: str, names: Sequence[str]) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise UserError(f"Two of the {kind}s are named '{name}'. Expected a different name for each {kind}.")
        if not name or "/" in name:
            article = "An" if kind == "objective" else "A"
            raise UserError(f"{article} {kind} is named '{name}'. Expected a name without '/', such as 'generator_0'.")


def _check_apart(networks: Sequence[Network]) -> None:
    variables: dict[int, tuple[str, str]] = {}
    optimizers: dict[int, str] = {}
    for network in networks:
        for name, variable in network.variables.items():
            other, _ = variables.setdefault(id(variable), (network.name, name))
            if other != network.name:
                raise UserError(f"'{other}' and '{network.name}' share the variable '{name}'. Expected separate ones.")
        other = optimizers.setdefault(id(network.optimizer), network.name)
        if other != network.name:
            raise UserError(f"The networks '{other}' and '{network.name}' share one optimizer. Expected one for each.")


def _check_owners(network: Network, owners: Sequence[str]) -> None:
    if network.fixed and owners:
        raise UserError(f"The network '{network.name}' is fixed. Expected it outside `trains` of '{owners[0]}'.")
    if not owners and not network.fixed:
        raise UserError(
            f"No objective changes the network '{network.name}'. Expected it in `trains` of one, or trainable=False of "
            "its model; in a recipe, Network(..., fixed=True)."
        )
    if len(owners) > 1 and not network.shared:
        names = " and ".join(f"'{name}'" for name in owners)
        raise UserError(f"{names} change the network '{network.name}'. Expected one, or Network(..., shared=True).")


LARGEST = 32  # pixels a side


def thumbnails(images: tf.Tensor) -> tf.Tensor:
    """Return images shrunk by area to at most 32 pixels a side, keeping the aspect ratio; small ones are unchanged.

    Args:
        images: numbers [batch, height, width, channels], of static height and width.

    Returns:
        float32 [batch, height, width, channels], in the range of the images.
    """
    images = tf.cast(images, tf.float32)
    height, width = images.shape[1:3]
    scale = LARGEST / max(height, width)
    if scale >= 1.0:
        return images
    return tf.image.resize(images, [max(1, round(height * scale)), max(1, round(width * scale))], method="area")


def enlarged(images: np.ndarray, smallest: int) -> np.ndarray:
    """Return images in [-1, 1] as RGB in [0, 1], pixels repeated to `smallest` or more a side; NaN is black."""
    times = max(1, math.ceil(smallest / min(images.shape[1:3])))
    pixels = np.clip((np.nan_to_num(images.astype(np.float32), nan=-1.0) + 1.0) / 2.0, 0.0, 1.0)
    return np.broadcast_to(pixels, (*pixels.shape[:3], 3)).repeat(times, axis=1).repeat(times, axis=2)


def in_rows(images: np.ndarray) -> list[np.ndarray]:
    """Split images [n, ...] into the rows of a square grid for `sheet`; the last row may be shorter."""
    columns = math.ceil(math.sqrt(len(images)))
    return [images[start : start + columns] for start in range(0, len(images), columns)]


def sheet(rows: Sequence[Sequence[np.ndarray] | np.ndarray], gap: int, apart: int = 0) -> np.ndarray:
    """Arrange equally sized images [height, width, channels] in rows on a white picture, clipped to [0, 1].

    Args:
        rows: rows of images, from top to bottom and left to right; at least one image in the first row.
        gap: white pixels around each image.
        apart: additional pixels between the first column and the others.
    """
    height, width, channels = rows[0][0].shape
    shape = (len(rows) * (height + gap) + gap, max(map(len, rows)) * (width + gap) + gap + apart, channels)
    page = np.ones(shape, np.float32)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            top, left = gap + row * (height + gap), gap + column * (width + gap) + (apart if column else 0)
            page[top : top + height, left : left + width] = image
    return np.clip(page, 0.0, 1.0)
