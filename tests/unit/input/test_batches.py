"""Batches are pure functions of the step: one order in every placement, and exact coverage."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batches import assert_same_bits, eager_batches, step_of, traced_batches
from trainer.errors import UserError
from trainer.input import batches as batches_module
from trainer.input.augment import Augment, Augmentation
from trainer.input.batches import QUEUE, EvaluationBatches, TrainingBatches
from trainer.input.data import Split
from trainer.input.draws import uniform
from trainer.input.source import ArraySource


def scaled(batch):
    return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) * (2.0 / 255.0) - 1.0}


def make_split(size, spare=3, name="train"):
    """Return a split of the odd rows of a larger source, so that a row is never its own position."""
    rows = 2 * size + spare
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 4, 4, 1), np.uint8)
    source = ArraySource({"inputs": pixels, "targets": np.arange(rows, dtype=np.int64) % 10}, scaled)
    return Split(name, source, 2 * np.arange(size, dtype=np.int64) + 1)


SHARES = np.array([0.0, 0.4, 0.0, 0.3, 0.0, 0.1, 0.0, 0.1, 0.0, 0.1])  # the splits of this file hold odd classes
ORDERS = [{}, {"class_shares": SHARES}, {"classes_per_batch": 4}]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("augmented", [False, True])
def test_eager_tf_data_and_traced_loop_give_the_same_bits(order, augmented):
    augmentation = Augmentation([AddDraw()], classes=10) if augmented else None
    batches = TrainingBatches(make_split(1001), batch_size=64, seed=11, augmentation=augmentation, **order)
    eager = eager_batches(batches, 5, 40)  # crosses two epoch borders
    assert_same_bits(eager, traced_batches(batches, 5, 40))
    parallel = tf.data.Dataset.range(5, 40).map(batches.batch, num_parallel_calls=8, deterministic=True)
    found = list(parallel.as_numpy_iterator())
    assert_same_bits(eager, {key: np.stack([batch[key] for batch in found]) for key in found[0]})


def test_the_host_iterator_starts_at_any_step_and_runs_in_a_traced_loop():
    batches = TrainingBatches(make_split(101), batch_size=16, seed=1, placement="host")
    assert batches.placement == "host"
    iterator = batches.iterator(7)

    @tf.function(autograph=False)
    def take(iterator, count):
        rows = tf.TensorArray(tf.int64, count, element_shape=[16])

        def body(i, rows):
            return i + 1, rows.write(i, next(iterator)["index"])

        return tf.while_loop(lambda i, _: i < count, body, (tf.constant(0), rows))[1].stack()

    first, then = take(iterator, tf.constant(9)), take(iterator, tf.constant(4))
    expected = eager_batches(batches, 7, 20)["index"]
    np.testing.assert_array_equal(np.concatenate([first, then]), expected)


def test_both_placements_give_the_same_batches():
    split = make_split(50)
    found = [
        eager_batches(TrainingBatches(split, batch_size=8, seed=2, placement=placement), 0, 14)
        for placement in ("device", "host")
    ]
    assert_same_bits(*found)


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 120), share=st.floats(0.01, 1), seed=st.integers(0, 2**32))
def test_each_example_comes_once_an_epoch_whatever_the_batch(size, share, seed):
    batch_size = max(1, int(share * size))
    split = make_split(size)
    batches = TrainingBatches(split, batch_size=batch_size, seed=seed)
    drawn = eager_batches(batches, 0, batches.epoch_end(3))["index"]
    assert drawn.shape[1] == batch_size
    epochs = drawn.reshape(-1)[: 3 * size].reshape(3, size)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), split.indices)


@settings(deadline=None, max_examples=25)
@given(
    size=st.integers(4, 120),
    share=st.floats(0.05, 1),
    replicas=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**32),
)
def test_on_any_number_of_replicas_each_example_comes_once_an_epoch(size, share, replicas, seed):
    batch_size = max(1, int(share * size) // replicas) * replicas
    split = make_split(size)
    batches = TrainingBatches(split, batch_size=batch_size, seed=seed)
    slices = np.stack(
        [
            [batches.indices(step_of(step), replica=replica, replicas=replicas) for replica in range(replicas)]
            for step in range(batches.epoch_end(3))
        ]
    )
    assert slices.shape[1:] == (replicas, batch_size // replicas)
    epochs = slices.reshape(-1)[: 3 * size].reshape(3, size)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(split.indices, (3, 1)))


@pytest.mark.parametrize("order", ORDERS)
def test_the_slices_of_all_replicas_are_the_batch_of_one_with_its_draws(order):
    augmentation = Augmentation([AddDraw()], classes=10)
    batches = TrainingBatches(make_split(500), batch_size=48, seed=3, augmentation=augmentation, **order)
    for step in (0, 11):
        parts = [batches.batch(step_of(step), replica=replica, replicas=4) for replica in range(4)]
        whole = batches.batch(step_of(step))
        assert_same_bits(
            {key: np.concatenate([part[key] for part in parts]) for key in whole},
            {key: value.numpy() for key, value in whole.items()},
        )


def test_a_replica_may_be_known_only_inside_the_graph():
    batches = TrainingBatches(make_split(100), batch_size=8, seed=3)
    traced = tf.function(lambda step, replica: batches.indices(step, replica=replica, replicas=2), autograph=False)
    found = [traced(step_of(7), tf.constant(replica)) for replica in range(2)]
    np.testing.assert_array_equal(np.concatenate(found), batches.indices(step_of(7)))


@pytest.mark.parametrize("replicas", [3, 0, -2, 2.0, True])
def test_a_batch_that_cannot_be_shared_equally_is_refused(replicas):
    batches = TrainingBatches(make_split(100), batch_size=8, seed=3)
    with pytest.raises(UserError, match="replicas for a batch of 8 examples; expected a divisor"):
        batches.indices(step_of(0), replicas=replicas)


def test_classes_come_in_the_shares_that_are_asked_for():
    split = make_split(1001)
    batches = TrainingBatches(split, batch_size=77, seed=11, class_shares=SHARES)
    found = eager_batches(batches, 0, 13)["targets"].reshape(-1)
    assert (np.abs(np.bincount(found, minlength=10) - SHARES * 1001) < 1).all()
    with pytest.raises(UserError, match="classes_per_batch and class_shares; expected one"):
        TrainingBatches(split, batch_size=8, seed=0, class_shares=SHARES, classes_per_batch=2)


def test_the_queue_tells_how_many_batches_lie_ready():
    batches = TrainingBatches(make_split(101), batch_size=16, seed=1, placement="host")
    assert batches.queue(0) is None
    iterator = batches.iterator(5)
    assert batches.queue(5) == (0, QUEUE)  # nothing is made before the first is asked for
    next(iterator)
    end = time.monotonic() + 10.0
    while batches.queue(6) != (QUEUE, QUEUE) and time.monotonic() < end:
        time.sleep(0.005)
    assert batches.queue(6) == (QUEUE, QUEUE)
    assert batches.queue(10**6) == (0, QUEUE)
    expected = eager_batches(batches, 6, 6 + 2 * QUEUE)["index"]
    np.testing.assert_array_equal(np.stack([next(iterator)["index"] for _ in range(2 * QUEUE)]), expected)


def test_a_batch_may_straddle_two_epochs():
    batches = TrainingBatches(make_split(10), batch_size=4, seed=0)
    drawn = eager_batches(batches, 0, 5)["index"]
    np.testing.assert_array_equal(np.sort(drawn.reshape(2, 10), axis=1), np.tile(batches.split.indices, (2, 1)))
    assert not np.array_equal(drawn.reshape(2, 10)[0], drawn.reshape(2, 10)[1])


def test_index_names_the_rows_of_the_source():
    split = make_split(30)
    batch = TrainingBatches(split, batch_size=7, seed=4).batch(step_of(9))
    assert batch["index"].dtype == tf.int64
    np.testing.assert_array_equal(batch["targets"], batch["index"].numpy() % 10)
    np.testing.assert_array_equal(batch["inputs"], split.source.gather(batch["index"])["inputs"])


def test_batch_shapes_are_known_when_tracing():
    batches = TrainingBatches(make_split(30), batch_size=7, seed=4)
    traced = tf.function(batches.batch, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
    assert {key: tuple(value.shape) for key, value in traced.structured_outputs.items()} == {
        "inputs": (7, 4, 4, 1),
        "targets": (7,),
        "index": (7,),
    }


class AddDraw(Augment):
    """Add a draw to the inputs."""

    name = "add"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": batch["inputs"] + uniform(seeds, "add", [1, 1, 1])}


def augmented(size=30, batch_size=7, **arguments):
    augmentation = Augmentation([AddDraw()], classes=10)
    return TrainingBatches(make_split(size), batch_size=batch_size, augmentation=augmentation, **arguments)


def test_augmentation_changes_the_inputs_of_every_step_and_nothing_else():
    plain = eager_batches(TrainingBatches(make_split(30), batch_size=7, seed=4), 0, 9)
    changed = eager_batches(augmented(seed=4), 0, 9)
    added = (changed["inputs"] - plain["inputs"])[:, :, 0, 0, 0]
    assert len(np.unique(added.round(6))) == added.size
    assert 0.0 <= added.min() < 0.1 < 0.9 < added.max() < 1.0
    assert_same_bits({**changed, "inputs": plain["inputs"]}, plain)


def test_the_draws_of_an_example_are_those_of_its_step_and_place():
    batches = augmented(seed=4)
    batch = batches.batch(step_of(9))
    again = batches.drawn(batch["index"], step_of(9))
    np.testing.assert_array_equal(again["inputs"], batch["inputs"])
    part = batches.drawn(batch["index"][:3], step_of(9))
    np.testing.assert_array_equal(part["inputs"], batch["inputs"][:3])
    assert not np.isclose(batches.drawn(batch["index"], step_of(10))["inputs"], batch["inputs"]).any()
    np.testing.assert_array_equal(
        batches.read(batch["index"])["inputs"], batches.split.source.gather(batch["index"])["inputs"]
    )


@pytest.mark.parametrize("placement", ["device", "host"])
def test_a_run_that_goes_on_gets_the_draws_of_one_that_never_stopped(placement):
    whole = eager_batches(augmented(seed=4, placement=placement), 0, 12)
    iterator = augmented(seed=4, placement=placement).iterator(8)
    for step in range(8, 12):
        np.testing.assert_array_equal(next(iterator)["inputs"], whole["inputs"][step])


def test_an_augmentation_that_does_not_suit_the_data_is_refused_when_the_batches_are_made():
    class Refusing(AddDraw):
        def check(self, batch):
            assert batch["inputs"].shape == (7, 4, 4, 1)
            raise UserError("no.")

    with pytest.raises(UserError, match="augment.add: no."):
        TrainingBatches(make_split(30), batch_size=7, seed=0, augmentation=Augmentation([Refusing()], classes=10))


def test_seeds_that_differ_give_orders_that_differ():
    split = make_split(100)
    first, again, other = (
        eager_batches(TrainingBatches(split, batch_size=10, seed=seed), 0, 10)["index"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_no_op_of_a_batch_is_stateful_and_no_data_is_in_the_graph():
    split = make_split(30_000)
    for batches in (TrainingBatches(split, batch_size=8, seed=0), EvaluationBatches(split, batch_size=8)):
        traced = tf.function(batches.batch, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
        assert [op.name for op in traced.graph.get_operations() if op.op_def.is_stateful] == []
        assert traced.graph.as_graph_def().ByteSize() < split.indices.nbytes // 4


def test_a_compiled_step_can_use_the_batch_of_a_traced_loop():
    batches = TrainingBatches(make_split(50), batch_size=8, seed=0)

    @tf.function(autograph=False, jit_compile=True)
    def compiled(inputs):
        return tf.reduce_sum(inputs)

    @tf.function(autograph=False)
    def loop(steps):
        def body(step, total):
            return step + 1, total + compiled(batches.batch(step)["inputs"])

        return tf.while_loop(lambda step, _: step < steps, body, (step_of(0), tf.constant(0.0)))[1]

    expected = eager_batches(batches, 0, 12)["inputs"].sum(dtype=np.float64)
    assert float(loop(step_of(12))) == pytest.approx(expected, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize(("size", "batch_size"), [(100, 10), (101, 10), (99, 10), (7, 7), (5, 1)])
def test_epoch_end_is_the_first_step_that_has_drawn_whole_epochs(size, batch_size):
    batches = TrainingBatches(make_split(size), batch_size=batch_size, seed=0)
    assert batches.steps_per_epoch == size / batch_size
    for epoch in range(5):
        end = batches.epoch_end(epoch)
        assert end * batch_size >= epoch * size
        assert (end - 1) * batch_size < epoch * size


def test_auto_placement_goes_by_the_size_of_the_source(monkeypatch):
    split = make_split(50)
    assert TrainingBatches(split, batch_size=8, seed=0, placement="auto").placement == "device"
    monkeypatch.setattr(batches_module, "DEVICE_BYTES", split.source.bytes)
    assert TrainingBatches(split, batch_size=8, seed=0, placement="auto").placement == "host"
    assert TrainingBatches(split, batch_size=8, seed=0, placement="device").placement == "device"


@settings(deadline=None, max_examples=40)
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


def test_evaluation_is_the_same_in_a_traced_loop():
    batches = EvaluationBatches(make_split(45, name="validation"), batch_size=16)
    assert batches.count == 3
    assert_same_bits(eager_batches(batches, 0, 3), traced_batches(batches, 0, 3))


@pytest.mark.parametrize("batch_size", [0, -3, 2.0, "8", True, None])
@pytest.mark.parametrize("kind", [TrainingBatches, EvaluationBatches])
def test_a_batch_size_that_is_no_positive_integer_is_refused(kind, batch_size):
    extra = {"seed": 0} if kind is TrainingBatches else {}
    with pytest.raises(UserError, match=r"batch size .* expected an integer of 1 or more"):
        kind(make_split(10), batch_size=batch_size, **extra)


def test_a_batch_larger_than_the_split_is_refused():
    with pytest.raises(UserError, match=r"batch size 11 for 10 train examples; expected 1\.\.10\. Choose a smaller"):
        TrainingBatches(make_split(10), batch_size=11, seed=0)


def test_an_unknown_placement_is_refused_with_a_suggestion():
    with pytest.raises(UserError, match="Did you mean 'device'"):
        TrainingBatches(make_split(10), batch_size=2, seed=0, placement="devise")
