"""Batches are pure functions of the step: the same order in every placement, and exact coverage."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import BatchQueue, EvaluationBatches, TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.input.order import uniform
from tests.support.batches import assert_same_bits, eager_batches, step_of, traced_batches
from tests.support.refusals import assert_refused


def scaled(batch):
    return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) * (2.0 / 255.0) - 1.0}


def make_split(size, spare=3, name="train"):
    """Return a split of the odd rows of a larger source, so that no row number equals its position."""
    rows = 2 * size + spare
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 4, 4, 1), np.uint8)
    source = ArraySource({"inputs": pixels, "targets": np.arange(rows, dtype=np.int64) % 10}, scaled)
    return Split(name, source, 2 * np.arange(size, dtype=np.int64) + 1)


SHARES = np.array([0.0, 0.4, 0.0, 0.3, 0.0, 0.1, 0.0, 0.1, 0.0, 0.1])  # the splits in this file have only odd classes
ORDERS = [{}, {"class_shares": SHARES}, {"classes_per_batch": 4}]


@pytest.mark.parametrize("order", ORDERS)
def test_batches_are_bit_identical_in_every_mode_and_replica_count(order):
    made = [
        TrainingBatches(
            make_split(201),
            batch_size=48,
            seed=11,
            augmentation=Augmentation([AddDraw()], classes=10),
            placement=placement,
            **order,
        )
        for placement in ("device", "host")
    ]
    eager = eager_batches(made[0], 3, 9)  # crosses two epoch boundaries
    assert_same_bits(eager, traced_batches(made[0], 3, 9))
    parallel = tf.data.Dataset.range(3, 9).map(made[0].batch, num_parallel_calls=8, deterministic=True)
    iterator = iter(made[1].queued(3))  # a resumed run may begin at any step
    for found in (list(parallel), [next(iterator) for _ in range(3, 9)]):
        assert_same_bits(eager, {key: np.stack([batch[key] for batch in found]) for key in found[0]})
    traced = tf.function(lambda step, replica: made[0].batch(step, replica=replica, replicas=4), autograph=False)
    for place, step in ((0, 3), (5, 8)):
        parts = [traced(step_of(step), tf.constant(replica)) for replica in range(4)]
        slices = {key: np.concatenate([part[key] for part in parts]) for key in eager}
        assert_same_bits(slices, {key: value[place] for key, value in eager.items()})


@settings(deadline=None, max_examples=15)
@given(
    size=st.integers(4, 60), share=st.floats(0.1, 1), replicas=st.sampled_from([1, 1, 2, 4]), seed=st.integers(0, 2**32)
)
def test_each_example_occurs_once_per_epoch_on_any_number_of_replicas(size, share, replicas, seed):
    batch_size = max(1, int(share * size) // replicas) * replicas
    split = make_split(size)
    batches = TrainingBatches(split, batch_size=batch_size, seed=seed)
    slices = np.stack(
        [
            [batches.indices(step_of(step), replica=replica, replicas=replicas) for replica in range(replicas)]
            for step in range(batches.epoch_end(3))
        ]
    )
    assert batches.steps_per_epoch == size / batch_size
    assert (batches.epoch_end(3) - 1) * batch_size < 3 * size
    assert slices.shape[1:] == (replicas, batch_size // replicas)
    epochs = slices.reshape(-1)[: 3 * size].reshape(3, size)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(split.indices, (3, 1)))


class AddDraw(Augment):
    name = "add"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": batch["inputs"] + uniform(seeds, "add", [1, 1, 1])}


def test_batch_graph_has_no_stateful_ops_and_no_data():
    split = make_split(30_000)
    for batches in (TrainingBatches(split, batch_size=8, seed=0), EvaluationBatches(split, batch_size=8)):
        traced = tf.function(batches.batch, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
        assert [op.name for op in traced.graph.get_operations() if op.op_def.is_stateful] == []
        assert traced.graph.as_graph_def().ByteSize() < split.indices.nbytes // 4


@settings(deadline=None, max_examples=20)
@given(size=st.integers(1, 120), batch_size=st.integers(1, 150))
def test_evaluation_counts_each_example_once(size, batch_size):
    split = make_split(size, name="test")
    batches = EvaluationBatches(split, batch_size=batch_size)
    assert batches.batch_size == min(size, batch_size)
    found = eager_batches(batches, 0, batches.count)
    assert found["weights"].dtype == np.float32
    real = found["weights"].reshape(-1) == 1
    np.testing.assert_array_equal(found["index"].reshape(-1)[real], split.indices)
    assert found["weights"].sum() == size
    assert np.isin(found["index"], split.indices).all()


def test_invalid_batch_options_are_refused():
    split = make_split(10)
    for options, message in (
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 11}, "to 10 at most"),
        ({"placement": "devise"}, "'device'"),
        ({"augmentation": Augmentation([type("Mixes", (AddDraw,), {"mixes": True})()], classes=0)}, "mixes classes"),
    ):
        assert_refused(message, TrainingBatches, split, **{"batch_size": 2, "seed": 0, **options})
    assert_refused("batch_size=0", EvaluationBatches, split, batch_size=0)


def test_traced_function_follows_the_queue_after_seek():
    batches = TrainingBatches(make_split(50), batch_size=8, seed=0, placement="host")
    queue = BatchQueue(batches)
    take = tf.function(lambda: queue(tf.constant(0, tf.int64))["index"], autograph=False).get_concrete_function()
    for start in (0, 40, 2, 100, 0):
        queue.seek(start)
        assert queue.position == start
        for step in range(start, start + 4):
            np.testing.assert_array_equal(take(), batches.indices(step_of(step)))
        queue.position += 4
