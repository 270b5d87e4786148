"""Batches as functions of the step, created on the device or prefetched on the host."""

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
"""Placement "auto" keeps data smaller than this many bytes on the device."""
QUEUE = 8
"""Number of batches that placement "host" keeps ready, besides those in preparation."""


class TrainingBatches:
    """Return the batch of any training step, reshuffled in every epoch.

    Batches cross epoch boundaries: every batch is full, and each example occurs once per epoch. With
    `classes_per_batch` (`BalancedOrder`) or `class_shares` (`SampledOrder`) an epoch is just a number of steps.
    Replicas take slices of one common order. `first_step` gets the first batch of the order.
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
        """Return the number of batches per epoch, a fraction if the batch size does not divide the split size."""
        return self.split.size / self.batch_size

    def epoch_end(self, epoch: int) -> int:
        """Return the first step before which `epoch` whole epochs have been drawn."""
        return self.first_step - (-epoch * self.split.size // self.batch_size)

    def indices(self, step: tf.Tensor, *, replica: tf.Tensor | int = 0, replicas: int = 1) -> tf.Tensor:
        """Return the rows of the source in a replica's slice of a step's batch."""
        places = self._places(replica, replicas)
        with tf.device(HOST):
            drawn = step - self.first_step if self.first_step else step
            return tf.gather(self._rows, self._order(drawn * self.batch_size + places))

    def _places(self, replica: tf.Tensor | int, replicas: int) -> tf.Tensor:
        """Return the positions of a replica's slice in a batch: int64 [batch / replicas]."""
        each = self.batch_size // replicas
        with tf.device(HOST):
            return tf.cast(replica, tf.int64) * each + tf.range(each, dtype=tf.int64)

    def _ordered(self, classes_per_batch: int | None, shares: np.ndarray | None) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return the order: a function from positions in an endless sequence of batches to positions in the split."""
        size, seed, batch = self.split.size, self.seed, self.batch_size
        if shares is not None:
            return SampledOrder(self.split.labels, shares=shares, seed=seed)
        if classes_per_batch is None:
            return lambda position: epoch_permutation(position, size, seed)
        balanced = BalancedOrder(self.split.labels, classes_per_batch=classes_per_batch, batch_size=batch, seed=seed)
        return lambda position: tf.gather(balanced(position[0] // batch), position % batch)

    def batch(self, step: tf.Tensor, *, replica: tf.Tensor | int = 0, replicas: int = 1) -> Batch:
        """Return the batch of a step, a pure function of (seed, step); not under XLA (see `epoch_permutation`)."""
        indices = self.indices(step, replica=replica, replicas=replicas)
        return self.drawn(indices, step, self._places(replica, replicas))

    def drawn(self, indices: tf.Tensor, step: tf.Tensor, places: tf.Tensor | None = None) -> Batch:
        """Return rows as they would be in the batch of a step, augmented with the random draws of that step."""
        batch = self.read(indices)
        if self.augmentation is None:
            return batch
        if places is None:
            places = tf.range(tf.size(indices, tf.int64), dtype=tf.int64)
        return self.augmentation(batch, example_seeds(self.seed, step, places))

    def read(self, indices: tf.Tensor) -> Batch:
        """Return rows without augmentation, with an entry "index"."""
        return {**self._source.gather(indices), "index": indices}

    def queued(self, start: int, *, replica: int = 0, replicas: int = 1) -> tf.data.Dataset:
        """Return a dataset of the batches from step `start` on, in order, prefetched by the CPU."""
        pure = tf.autograph.experimental.do_not_convert(partial(self.batch, replica=replica, replicas=replicas))
        with tf.device(HOST):
            steps = tf.data.Dataset.range(start, tf.int64.max)
            return steps.map(pure, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(QUEUE)


class EvaluationBatches:
    """Return every example of a split exactly once, in order, in batches of one size."""

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
        """Return batch `i`; the last one is padded to full size with examples of weight 0."""
        with tf.device(HOST):
            position = i * self.batch_size + tf.range(self.batch_size, dtype=tf.int64)
            indices = tf.gather(self._rows, tf.minimum(position, self.split.size - 1))
            weights = tf.cast(position < self.split.size, tf.float32)
        return {**self._source.gather(indices), "index": indices, "weights": weights}


def resolve_placement(placement: str, source: Source) -> str:
    """Return where a source's examples are kept, "device" or "host"."""
    check_choice("placement", placement, ("auto", "device", "host"))
    if source.host_only:
        if placement == "device":
            raise UserError(
                "Received placement 'device' for data that is loaded batch by batch from Python or files; expected "
                "'host' or 'auto'. Set trainer.placement=auto, or hold the data in memory, if its options allow that."
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
    """Feed the next batch to a traced loop; `seek` repositions the queue in place.

    Callers that take batches must set `position`, the step of the next batch.
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
        """Move the queue to a step, and drop prefetched batches; do nothing if it is there already."""
        if step == self.position:
            return
        self._dataset = self._queued(step)
        with tf.device(HOST):
            # The traced loop holds the iterator, a resource, so the iterator is recreated in place.
            tf.raw_ops.MakeIterator(
                dataset=tf.data.experimental.to_variant(self._dataset), iterator=self._iterator._iterator_resource
            )
        self.position = step
