"""A batch cut into micro batches, and what they give put together again."""

from __future__ import annotations

import tensorflow as tf

from trainer.errors import UserError
from trainer.objective import SAMPLE_WEIGHTS, Batch
from trainer.step.metrics import example_weights, sample_weights


class MicroBatches:
    """Cut a batch into equal parts, to be run one after the other.

    Part i holds the examples i * size to (i + 1) * size. What is not one entry an example goes whole into each part.

    Attributes:
        count: number of parts.
        size: examples in a part.
        shares: float32 [count], the share that each part has in a mean over the batch's examples; they add up to 1.
        metric_shares: likewise in a mean that heeds sample weights; the same where there are none.
    """

    def __init__(self, batch: Batch, count: int) -> None:
        """Cut a batch.

        Args:
            batch: its number of examples is known when it is traced.
            count: number of parts.

        Raises:
            UserError: the examples do not divide into so many equal parts.
        """
        examples = tf.nest.flatten(batch["inputs"])[0].shape[0]
        if examples is None or examples % count:
            raise UserError(
                f"trainer.accumulation_steps={count} received for batches of {examples or 'an unknown number of'} "
                "examples a replica. Expected as many examples in each micro batch: change trainer.batch_size."
            )
        self.count, self.size = count, examples // count
        self._examples, self._batch = examples, batch
        self._parts = tf.nest.map_structure(lambda each: self._cut(each) if self._is_cut(each) else each, batch)
        self.shares = self.metric_shares = self._shares(example_weights(batch))
        if SAMPLE_WEIGHTS in batch:
            self.metric_shares = self._shares(sample_weights(batch))

    def _shares(self, weights: tf.Tensor) -> tf.Tensor:
        sums = tf.reduce_sum(self._cut(weights), axis=1)
        total = tf.reduce_sum(sums)
        return tf.where(total > 0, tf.math.divide_no_nan(sums, total), 1.0 / self.count)

    def _is_cut(self, tensor: tf.Tensor) -> bool:
        return bool(tensor.shape.rank) and tensor.shape[0] == self._examples

    def _cut(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return [examples, ...] as [count, size, ...]."""
        return tf.reshape(tensor, tf.concat([[self.count, self.size], tf.shape(tensor)[1:]], axis=0))

    def part(self, index: tf.Tensor) -> Batch:
        """Return one part as a batch.

        Args:
            index: int32 scalar in [0, count).
        """
        return tf.nest.map_structure(
            lambda each, whole: each[index] if self._is_cut(whole) else each, self._parts, self._batch
        )

    def joined(self, array: tf.TensorArray) -> tf.Tensor:
        """Return what the parts gave, [examples, ...], in the order of the batch.

        Args:
            array: for each part a tensor of one shape, whose first axis goes over its examples.
        """
        stacked = array.stack()
        return tf.reshape(stacked, tf.concat([[-1], tf.shape(stacked)[2:]], axis=0))
