"""Augmentation: random changes of training examples, each a pure function of a batch and one seed per example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.input.order import salted
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.objective import SOFT_TARGETS, Batch

OWN = ("inputs", "targets", SOFT_TARGETS, "index", "weights")
"""Entries of a batch that an augmentation may change, or that are independent of the inputs."""


class Augment(ABC):
    """Change the examples of a training batch at random.

    Augmentations run in order of priority, then of name: first those that move pixels (crop 10, flip 20, shift 30,
    rotate 40), then those that change pixel values (color 50, noise 60), cover pixels (cutout 70), and mix examples
    (mixup 80, cutmix 90).

    Attributes:
        name: the key under `augment` in the config; set by the builder, unique in a run.
        black_and_white: the values of the darkest and the brightest pixel; set from the data. If its pixel range is
            unknown: 0 and 1 if the examples that are checked are floats in [0, 1], otherwise -1 and 1.
        priority: 0 (first) to 100 (last).
        probability: probability that it changes an example at all.
        mixes: whether it mixes examples with one another. Its batch then has "target_shares", float32 [batch, classes],
            instead of "targets", which it mixes in the same way.
        moves: whether a pixel of the result may come from another position.
        follows: further entries that it moves along with the inputs, if the batch has them.
    """

    name: str = ""
    black_and_white: tuple[float, float] = (-1.0, 1.0)
    priority: int = 50
    probability: float = 1.0
    mixes: bool = False
    moves: bool = False
    follows: tuple[str, ...] = ()

    @abstractmethod
    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        """Return the augmented batch, with the same names, shapes and dtypes.

        Pure, and made of TensorFlow ops only: runs eagerly, in `tf.data` and in a traced loop. The randomness of each
        example is determined by its seed (see `trainer/input/order.py`).
        """

    def check(self, batch: Batch) -> None:
        """Raise a `UserError` for data that it cannot augment. Called once, when the data is open."""


class Augmentation:
    """Apply augmentations in order of priority.

    Images under other names than "inputs", of the same shape and dtype, are augmented with their own random draws, so
    that all image domains are augmented.
    """

    def __init__(self, augments: Sequence[Augment], *, classes: int, preparation: Preparation | None = None) -> None:
        self.augments = sorted(augments, key=lambda each: (each.priority, each.name))
        self.classes = classes
        self._knows_black = preparation is not None and preparation.peak is not None
        for augment in augments:
            if preparation is not None:
                augment.black_and_white = preparation.black_and_white

    def check(self, batch: Batch) -> None:
        inputs = batch["inputs"]
        if not isinstance(inputs, tf.Tensor):
            names = " ".join(f"augment.{each.name}=null" for each in self.augments)
            raise UserError(f"Augmentations change one input, and the data has several. Expected {names}.")
        if not self._knows_black and inputs.dtype.is_floating and _are_within(inputs, 0.0, 1.0):
            for augment in self.augments:
                augment.black_and_white = (0.0, 1.0)
        for augment in self.augments:
            with _named(augment):
                if augment.mixes and not self.classes:
                    raise UserError(f"it mixes classes, but the data has none. Expected augment.{augment.name}=null.")
                augment.check(batch)
                _check_entries(augment, batch)

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        for augment in self.augments:
            if augment.mixes and SOFT_TARGETS not in batch:
                batch = {**batch, SOFT_TARGETS: tf.one_hot(batch["targets"], self.classes)}
                del batch["targets"]
            batch = self._applied(augment, batch, salted(seeds, augment.name))
        return batch

    def _applied(self, augment: Augment, batch: Batch, seeds: tf.Tensor) -> Batch:
        with _named(augment):
            changed = augment(batch, seeds)
            for name in () if augment.mixes else _further_images(batch):
                changed = {**changed, name: augment({"inputs": batch[name]}, salted(seeds, name))["inputs"]}
            if changed.keys() != batch.keys() or any(
                new.dtype != old.dtype or not new.shape.is_compatible_with(old.shape)
                for name, each in batch.items()
                for new, old in zip(tf.nest.flatten(changed[name]), tf.nest.flatten(each), strict=True)
            ):
                raise ValueError("An augmentation must keep the names, shapes and dtypes of a batch.")
        return changed


@contextmanager
def _named(augment: Augment) -> Iterator[None]:
    """Prefix a `UserError` with the name of the augmentation, and add the name as a note to any other error."""
    try:
        yield
    except UserError as error:
        raise UserError(f"augment.{augment.name}: {error}") from error
    except Exception as error:
        error.add_note(f"in augment.{augment.name}")
        raise


def _are_within(values: tf.Tensor, low: float, high: float) -> bool:
    return bool(tf.reduce_min(values) >= low) and bool(tf.reduce_max(values) <= high)


def targets_are_map(batch: Batch) -> bool:
    """Return whether the targets are maps [batch, height, width, ...] of the images, to be moved along with them."""
    targets, inputs = batch.get("targets"), batch["inputs"]
    if not isinstance(targets, tf.Tensor) or targets.shape.rank not in (3, 4) or inputs.shape.rank != 4:
        return False
    return bool(targets.shape[1:3] == inputs.shape[1:3])


def _further_images(batch: Batch) -> list[str]:
    inputs = batch["inputs"]
    return [
        name
        for name, tensor in batch.items()
        if name not in OWN and inputs.shape.rank == 4 and tensor.dtype == inputs.dtype and tensor.shape == inputs.shape
    ]


def _check_entries(augment: Augment, batch: Batch) -> None:
    """Raise an error for entries that match only the unchanged inputs."""
    others = [name for name in batch if name not in OWN]
    if augment.moves and not augment.mixes:
        known = {*augment.follows, *_further_images(batch)}
        others = [name for name in others if name not in known and batch[name].shape.rank > 1]
        targets = tf.nest.flatten(batch.get("targets", ()))
        if any(each.shape.rank > 2 for each in targets) and not targets_are_map(batch):
            others.append("targets")
    if others and (augment.moves or augment.mixes):
        deed = "mixes examples" if augment.mixes else "moves pixels"
        lost = f"it {deed}, but cannot change {', '.join(others)} in the same way"
        raise UserError(f"{lost}. Expected augment.{augment.name}=null.")
