"""Batches of P classes with K examples each: balanced at every step, even in the long run, and pure."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.input.balanced import BalancedOrder
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource


def labels_of(*counts, seed=0):
    """Return shuffled labels with so many examples of each class."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)


def drawn(order, steps, start=0):
    """Return what some steps draw: int64 [steps, batch]."""

    @tf.function(autograph=False)
    def loop(start):
        written = tf.TensorArray(tf.int64, steps)

        def body(step, written):
            return step + 1, written.write(step, order(tf.cast(step, tf.int64) + start))

        return tf.while_loop(lambda step, _: step < steps, body, (tf.constant(0), written))[1].stack()

    return loop(tf.constant(start, tf.int64)).numpy()


def make_split(labels):
    """Return a split of the odd rows of a larger source, so that a row is never its own position."""
    rows = np.zeros(2 * labels.size, np.int64)
    rows[1::2] = labels
    source = ArraySource(
        {"inputs": np.arange(rows.size, dtype=np.float32)[:, None], "targets": rows}, lambda rows: rows
    )
    return Split("train", source, 2 * np.arange(labels.size, dtype=np.int64) + 1)


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=8),
    classes=st.integers(2, 8),
    each=st.integers(1, 6),
    seed=st.integers(0, 2**40),
    step=st.integers(0, 2**40),
)
def test_every_step_holds_p_classes_with_k_examples_that_differ_where_there_are_so_many(
    counts, classes, each, seed, step
):
    classes = min(classes, len(counts))
    labels = labels_of(*counts)
    order = BalancedOrder(labels, classes_per_batch=classes, batch_size=classes * each, seed=seed)
    assert (order.classes_per_batch, order.examples_per_class) == (classes, each)
    batch = order(tf.constant(step, tf.int64)).numpy().reshape(classes, each)
    found = labels[batch]
    assert (found == found[:, :1]).all()
    assert np.unique(found[:, 0]).size == classes
    for label, examples in zip(found[:, 0], batch, strict=True):
        times = np.bincount(np.unique(examples, return_inverse=True)[1])
        assert times.size == min(each, counts[label])
        assert times.max() - times.min() <= 1


def test_a_round_holds_each_class_once_and_few_rounds_hold_each_example_once():
    labels = labels_of(12, 12, 12, 12, 12, 12)
    batches = drawn(BalancedOrder(labels, classes_per_batch=3, batch_size=12, seed=1), 6)  # 2 steps a round, 3 rounds
    rounds = labels[batches].reshape(3, 6, 4)[:, :, 0]
    np.testing.assert_array_equal(np.sort(rounds, axis=1), np.tile(np.arange(6), (3, 1)))
    np.testing.assert_array_equal(np.sort(batches.reshape(-1)), np.arange(72))


def test_classes_come_equally_often_however_large_they_are():
    labels = labels_of(4, 40, 7, 100, 9, 5, 16)
    steps = 700
    batches = drawn(BalancedOrder(labels, classes_per_batch=3, batch_size=12, seed=2), steps)  # 7 = 2 * 3 + 1
    times = np.bincount(labels[batches].reshape(-1), minlength=7) / 4
    assert times.sum() == 3 * steps
    expected = steps * 3 / 7
    assert np.sum((times - expected) ** 2 / expected) < 40  # 6 degrees of freedom: one in a million lies beyond 38


@pytest.mark.parametrize("count", [3, 5, 64])
def test_examples_of_a_class_come_equally_often(count):
    labels = labels_of(count, 30, 30)
    steps = 600
    batches = drawn(BalancedOrder(labels, classes_per_batch=2, batch_size=8, seed=3), steps)  # 1 of 3 is left out
    chosen = batches[labels[batches] == 0]
    times = np.bincount(np.searchsorted(np.flatnonzero(labels == 0), chosen), minlength=count)
    expected = times.sum() / count
    assert expected > 20
    assert np.sum((times - expected) ** 2 / expected) < count + 6 * np.sqrt(2 * count)


def test_pairs_of_a_class_meet_in_every_combination():
    labels = labels_of(6, 6)
    batches = drawn(BalancedOrder(labels, classes_per_batch=2, batch_size=4, seed=0), 600)
    pairs = np.sort(batches.reshape(-1, 2), axis=1)
    _, times = np.unique(pairs, axis=0, return_counts=True)
    assert times.size == 30  # 15 of each class
    assert np.sum((times - 40) ** 2 / 40) < 75  # 28 degrees of freedom: one in a million lies beyond 74


def test_no_batch_comes_again_in_many_hundreds_of_rounds():
    labels = labels_of(*[60] * 4)
    batches = drawn(BalancedOrder(labels, classes_per_batch=4, batch_size=16, seed=4), 700)
    assert np.unique(np.sort(batches, axis=1), axis=0).shape[0] == 700  # keyed with 8 bits, they would repeat after 256
    assert np.unique(labels[batches[:, ::4]], axis=0).shape[0] == 24  # every order of the classes


def test_neither_seeds_nor_classes_share_their_draws():
    labels = np.repeat(np.arange(2), 50)
    first, second = (
        drawn(BalancedOrder(labels, classes_per_batch=2, batch_size=20, seed=seed), 100) for seed in (0, 1)
    )
    assert not np.array_equal(first, second)
    ordered = np.sort(first.reshape(100, 2, 10), axis=1)  # class 0 holds the rows below 50
    assert abs(np.corrcoef(ordered[:, 0].reshape(-1), ordered[:, 1].reshape(-1))[0, 1]) < 5 / np.sqrt(1000)


def test_the_order_never_changes_between_versions():
    order = BalancedOrder(np.array([0, 1, 2, 0, 1, 2, 0, 1]), classes_per_batch=2, batch_size=4, seed=1)
    assert drawn(order, 4).tolist() == [[6, 0, 7, 4], [6, 3, 5, 2], [3, 0, 7, 4], [7, 1, 6, 0]]


def test_labels_may_have_gaps_and_a_class_without_examples_does_not_count():
    labels = np.array([7, 7, 3, 3, 3], np.int64)
    batch = drawn(BalancedOrder(labels, classes_per_batch=2, batch_size=4, seed=0), 5)
    assert set(labels[batch].reshape(-1)) == {3, 7}
    with pytest.raises(UserError, match=r"classes_per_batch=3 for examples of 2 classes; expected 1\.\.2"):
        BalancedOrder(labels, classes_per_batch=3, batch_size=6, seed=0)


def test_a_batch_size_that_is_no_multiple_is_refused():
    with pytest.raises(UserError, match="batch size 7 and classes_per_batch=2; expected a multiple"):
        BalancedOrder(labels_of(5, 5), classes_per_batch=2, batch_size=7, seed=0)


def test_training_batches_hold_what_the_order_chose_from_the_rows_of_the_split():
    labels = labels_of(9, 8, 30)
    split = make_split(labels)
    batches = TrainingBatches(split, batch_size=6, seed=5, classes_per_batch=2)
    expected = drawn(BalancedOrder(labels, classes_per_batch=2, batch_size=6, seed=5), 8)
    for step in range(8):
        batch = batches.batch(tf.constant(step, tf.int64))
        np.testing.assert_array_equal(batch["index"], split.indices[expected[step]])
        np.testing.assert_array_equal(batch["targets"], labels[expected[step]])
    assert batches.steps_per_epoch == 47 / 6
    assert batches.epoch_end(2) == 16  # the first step before which twice 47 examples have been drawn


def test_both_placements_and_the_traced_loop_give_the_same_batches():
    split = make_split(labels_of(9, 8, 30, 3))
    device, host = (
        TrainingBatches(split, batch_size=9, seed=5, placement=placement, classes_per_batch=3)
        for placement in ("device", "host")
    )
    eager = np.stack([device.batch(tf.constant(step, tf.int64))["inputs"] for step in range(4, 20)])

    np.testing.assert_array_equal(eager[..., 0], drawn(device.indices, 16, start=4))
    iterator = host.iterator(4)
    np.testing.assert_array_equal(np.stack([next(iterator)["inputs"] for _ in range(16)]), eager)


def test_no_op_is_stateful_and_no_row_is_in_the_graph():
    split = make_split(labels_of(10_000, 20_000))
    batches = TrainingBatches(split, batch_size=8, seed=0, classes_per_batch=2)
    traced = tf.function(batches.batch, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
    assert [op.name for op in traced.graph.get_operations() if op.op_def.is_stateful] == []
    assert traced.graph.as_graph_def().ByteSize() < split.indices.nbytes // 4
    assert traced.structured_outputs["index"].shape == (8,)


def test_without_balance_the_labels_are_never_asked_for():
    class Unlabelled(ArraySource):
        @property
        def labels(self):
            raise AssertionError

    source = Unlabelled({"inputs": np.zeros((10, 1), np.float32)}, lambda rows: rows)
    split = Split("train", source, np.arange(10, dtype=np.int64))
    assert TrainingBatches(split, batch_size=5, seed=0).batch(tf.constant(0, tf.int64))["index"].shape == (5,)
    with pytest.raises(AssertionError):
        TrainingBatches(split, batch_size=4, seed=0, classes_per_batch=2)
