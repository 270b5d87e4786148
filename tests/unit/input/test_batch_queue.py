"""The queue of a traced loop: it gives the batches of the steps it is put to, forwards and backwards."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.input.batches import BatchQueue, TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource


@pytest.fixture
def batches() -> TrainingBatches:
    source = ArraySource({"inputs": np.arange(50, dtype=np.float32), "targets": np.arange(50)}, lambda batch: batch)
    split = Split("train", source, np.arange(50, dtype=np.int64))
    return TrainingBatches(split, batch_size=8, seed=0, placement="host")


def expected(batches: TrainingBatches, steps: range) -> list[list[int]]:
    return [batches.indices(tf.constant(step, tf.int64)).numpy().tolist() for step in steps]


def test_a_traced_function_follows_the_queue_wherever_it_is_put(batches: TrainingBatches) -> None:
    queue = BatchQueue(batches)
    take = tf.function(lambda: queue(tf.constant(0, tf.int64))["index"], autograph=False).get_concrete_function()

    def taken(count: int) -> list[list[int]]:
        found = [take().numpy().tolist() for _ in range(count)]
        queue.position += count
        return found

    assert taken(3) == expected(batches, range(3))
    for start in (40, 2, 100, 0):
        queue.seek(start)
        assert queue.position == start
        assert taken(4) == expected(batches, range(start, start + 4))
