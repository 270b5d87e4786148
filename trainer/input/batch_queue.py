"""A queue of batches that are made ahead, and that can be put to any step."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from trainer.input.batches import TrainingBatches
from trainer.input.source import HOST
from trainer.objective import Batch


class BatchQueue:
    """Give the next batch to a traced loop, which keeps taking from it wherever it is put.

    Attributes:
        position: step whose batch comes next; whoever takes batches sets it.
    """

    def __init__(self, batches: TrainingBatches, *, replica: int = 0, replicas: int = 1) -> None:
        """Start at step 0.

        Args:
            batches: gives them by step.
            replica: whose part of each batch to give, see `TrainingBatches.indices`.
            replicas: how many share a batch.
        """
        self._queued = partial(batches.queued, replica=replica, replicas=replicas)
        self._dataset = self._queued(0)
        with tf.device(HOST):
            self._iterator: Any = iter(self._dataset)
        self.position = 0

    def __call__(self, step: tf.Tensor) -> Batch:
        """Return the batch that comes next.

        Args:
            step: its step; not looked at, since the queue stands there.
        """
        del step
        batch: Batch = next(self._iterator)
        return batch

    def seek(self, step: int) -> None:
        """Put the queue to a step. What lay ready is dropped; nothing happens where it stands there already.

        Args:
            step: whose batch comes next.
        """
        if step == self.position:
            return
        self._dataset = self._queued(step)
        with tf.device(HOST):
            # The iterator is a resource that the traced loop holds: it is made anew in its place.
            tf.raw_ops.MakeIterator(
                dataset=tf.data.experimental.to_variant(self._dataset), iterator=self._iterator._iterator_resource
            )
        self.position = step
