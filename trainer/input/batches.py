"""Batches as functions of the step, on the device or made ahead on the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice, check_integer
from hookline.trainer.input.augment import Augmentation
from hookline.trainer.input.data import HOST, Source, Split
from hookline.trainer.input.order import BalancedOrder, SampledOrder, epoch_permutation, example_seeds
from hookline.trainer.objective import Batch

DEVICE_BYTES = 2**30
"""Placement "auto" holds sets smaller than this many bytes on the device."""
QUEUE = 8
"""Batches that placement "host" keeps ready, beside those that are being made."""


class TrainingBatches:
    """Give the batch of any training step, reshuffled in every epoch.

    The batches run straight across the borders of epochs: every batch is full, and each example comes once an epoch.
    With `classes_per_batch` (`BalancedOrder`) or `class_shares` (`SampledOrder`) an epoch is just a number of steps.
    Each replica takes its slice of the one order. `first_step` has the first batch of the order.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch_size: int,
        seed: int,
        placement: str = "auto",
        classes_per_batch: int | None = None,
        class_shares: np.ndarray | None = None,
        augmentation: Augmentation | None = None,
        first_step: int = 0,
    ) -> None:
        check_integer("batch_size", batch_size)
        if batch_size > split.size:
            raise UserError(
                f"Received batch size {batch_size}, and {split.name} has {split.size} examples. Set batch_size (on the "
                f"command line trainer.batch_size) to {split.size} at most."
            )
        self.split, self.batch_size, self.seed, self.first_step = split, batch_size, seed, first_step
        self.placement = resolve_placement(placement, split.source)
        self._source = split.source.on_accelerator() if self.placement == "device" else split.source
        self._rows = _held(split)
        self._order = self._ordered(classes_per_batch, class_shares)
        self.augmentation = augmentation
        if augmentation is not None:
            augmentation.check(self.read(tf.constant(split.indices[:batch_size])))

    @property
    def steps_per_epoch(self) -> float:
        """Return the batches of an epoch: a fraction where the batch does not divide the split."""
        return self.split.size / self.batch_size

    def epoch_end(self, epoch: int) -> int:
        """Return the first step before which `epoch` whole epochs have been drawn."""
        return self.first_step - (-epoch * self.split.size // self.batch_size)

    def indices(self, step: tf.Tensor, *, replica: tf.Tensor | int = 0, replicas: int = 1) -> tf.Tensor:
        """Return the rows of the source that make up a replica's slice of the batch of a step."""
        places = self._places(replica, replicas)
        with tf.device(HOST):
            drawn = step - self.first_step if self.first_step else step
            return tf.gather(self._rows, self._order(drawn * self.batch_size + places))

    def _places(self, replica: tf.Tensor | int, replicas: int) -> tf.Tensor:
        """Return which places of a batch a replica has: int64 [batch / replicas]."""
        each = self.batch_size // replicas
        with tf.device(HOST):
            return tf.cast(replica, tf.int64) * each + tf.range(each, dtype=tf.int64)

    def _ordered(self, classes_per_batch: int | None, shares: np.ndarray | None) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return the order: a function from positions in an endless run of batches to positions in the split."""
        size, seed, batch = self.split.size, self.seed, self.batch_size
        if shares is not None:
            return SampledOrder(self.split.labels, shares=shares, seed=seed)
        if classes_per_batch is None:
            return lambda position: epoch_permutation(position, size, seed)
        balanced = BalancedOrder(self.split.labels, classes_per_batch=classes_per_batch, batch_size=batch, seed=seed)
        return lambda position: tf.gather(balanced(position[0] // batch), position % batch)

    def batch(self, step: tf.Tensor, *, replica: tf.Tensor | int = 0, replicas: int = 1) -> Batch:
        """Return the batch of a step, a pure function of (seed, step); not for XLA (see `epoch_permutation`)."""
        indices = self.indices(step, replica=replica, replicas=replicas)
        return self.drawn(indices, step, self._places(replica, replicas))

    def drawn(self, indices: tf.Tensor, step: tf.Tensor, places: tf.Tensor | None = None) -> Batch:
        """Return rows as they would be if the batch of a step held them; the draws are those of the step."""
        batch = self.read(indices)
        if self.augmentation is None:
            return batch
        if places is None:
            places = tf.range(tf.size(indices, tf.int64), dtype=tf.int64)
        return self.augmentation(batch, example_seeds(self.seed, step, places))

    def read(self, indices: tf.Tensor) -> Batch:
        """Return rows as they are, with "index"."""
        return {**self._source.gather(indices), "index": indices}

    def queued(self, start: int, *, replica: int = 0, replicas: int = 1) -> tf.data.Dataset:
        """Return the batches of the steps from `start` on, prepared ahead by the CPU, in order, in a queue."""
        pure = tf.autograph.experimental.do_not_convert(partial(self.batch, replica=replica, replicas=replicas))
        with tf.device(HOST):
            steps = tf.data.Dataset.range(start, tf.int64.max)
            return steps.map(pure, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(QUEUE)


class EvaluationBatches:
    """Give every example of a split exactly once, in order, in batches of one size."""

    def __init__(self, split: Split, *, batch_size: int, placement: str = "auto") -> None:
        check_integer("batch_size", batch_size)
        self.split, self.batch_size = split, min(batch_size, split.size)
        self.placement = resolve_placement(placement, split.source)
        self._source = split.source.on_accelerator() if self.placement == "device" else split.source
        self._rows = _held(split)

    @property
    def count(self) -> int:
        return -(-self.split.size // self.batch_size)

    def batch(self, i: tf.Tensor) -> Batch:
        """Return one batch; the last one is padded to full size with examples of weight 0."""
        with tf.device(HOST):
            position = i * self.batch_size + tf.range(self.batch_size, dtype=tf.int64)
            indices = tf.gather(self._rows, tf.minimum(position, self.split.size - 1))
            weights = tf.cast(position < self.split.size, tf.float32)
        return {**self._source.gather(indices), "index": indices, "weights": weights}


def resolve_placement(placement: str, source: Source) -> str:
    """Return where a source's examples lie, "device" or "host"."""
    check_choice("placement", placement, ("auto", "device", "host"))
    if source.host_only:
        if placement == "device":
            raise UserError(
                "Received placement 'device' for data that Python or files give batch by batch; expected 'host' or "
                "'auto'. Set trainer.placement=auto, or hold the data in memory, where its options allow that."
            )
        return "host"
    if placement == "auto":
        return "device" if source.bytes < DEVICE_BYTES else "host"
    return placement


def _held(split: Split) -> tf.Tensor:
    """Return the split's rows as one eager tensor, int64 [size], that traced functions capture."""
    with tf.init_scope(), tf.device(HOST):
        return tf.convert_to_tensor(split.indices)


class BatchQueue:
    """Give the next batch to a traced loop; `seek` moves it in place.

    Whoever takes batches sets `position`, the step whose batch comes next.
    """

    def __init__(self, batches: TrainingBatches, *, replica: int = 0, replicas: int = 1) -> None:
        self._queued = partial(batches.queued, replica=replica, replicas=replicas)
        self._dataset = self._queued(0)
        with tf.device(HOST):
            self._iterator: Any = iter(self._dataset)
        self.position = 0

    def __call__(self, step: tf.Tensor) -> Batch:
        return next(self._iterator)

    def seek(self, step: int) -> None:
        """Move the queue to a step, and drop the batches that are prepared; nothing happens if it is there already."""
        if step == self.position:
            return
        self._dataset = self._queued(step)
        with tf.device(HOST):
            # The iterator is a resource that the traced loop holds: it is recreated in place.
            tf.raw_ops.MakeIterator(
                dataset=tf.data.experimental.to_variant(self._dataset), iterator=self._iterator._iterator_resource
            )
        self.position = step
