"""Batches of P classes with K examples each: balanced at every step, even in the long run, and pure."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.trainer.errors import UserError
from hookline.trainer.input.sampling import BalancedOrder, SampledOrder, class_shares, class_weights
from tests.support.refusals import assert_refused


def labels_of(*counts, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)


def drawn(order, steps, start=0):
    @tf.function(autograph=False)
    def loop(start):
        written = tf.TensorArray(tf.int64, steps)

        def body(step, written):
            return step + 1, written.write(step, order(tf.cast(step, tf.int64) + start))

        return tf.while_loop(lambda step, _: step < steps, body, (tf.constant(0), written))[1].stack()

    return loop(tf.constant(start, tf.int64)).numpy()


def sampled_drawn(order, start, stop):
    return order(tf.range(start, stop, dtype=tf.int64)).numpy()


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=8),
    classes=st.integers(2, 8),
    each=st.integers(1, 6),
    seed=st.integers(0, 2**40),
    step=st.integers(0, 2**40),
)
def test_every_step_holds_p_classes_with_k_examples_that_differ(counts, classes, each, seed, step):
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


def test_a_round_holds_each_class_once_and_some_each_example_once():
    labels = labels_of(12, 12, 12, 12, 12, 12)
    batches = drawn(BalancedOrder(labels, classes_per_batch=3, batch_size=12, seed=1), 6)  # 2 steps a round, 3 rounds
    rounds = labels[batches].reshape(3, 6, 4)[:, :, 0]
    np.testing.assert_array_equal(np.sort(rounds, axis=1), np.tile(np.arange(6), (3, 1)))
    np.testing.assert_array_equal(np.sort(batches.reshape(-1)), np.arange(72))


def test_the_orders_never_change_between_versions():
    order = BalancedOrder(np.array([0, 1, 2, 0, 1, 2, 0, 1]), classes_per_batch=2, batch_size=4, seed=1)
    assert drawn(order, 4).tolist() == [[6, 0, 7, 4], [6, 3, 5, 2], [3, 0, 7, 4], [7, 1, 6, 0]]
    sampled = SampledOrder(np.array([0, 1, 1, 1, 0, 1]), shares=np.array([0.5, 0.5]), seed=1)
    assert sampled_drawn(sampled, 0, 12).tolist() == [4, 1, 2, 3, 0, 4, 1, 5, 4, 0, 0, 5]


def test_labels_may_have_gaps_and_a_class_without_examples_does_not_count():
    labels = np.array([7, 7, 3, 3, 3], np.int64)
    batch = drawn(BalancedOrder(labels, classes_per_batch=2, batch_size=4, seed=0), 5)
    assert set(labels[batch].reshape(-1)) == {3, 7}
    with pytest.raises(UserError, match=r"classes_per_batch=3 for examples of 2 classes; expected 1\.\.2"):
        BalancedOrder(labels, classes_per_batch=3, batch_size=6, seed=0)


LABELS = np.repeat([0, 1, 3], [6, 3, 1])
NAMES = ("cat", "dog", "eel", "fox")


def test_balanced_weights_give_each_class_the_same_sum_and_a_mean_of_one():
    weights = class_weights("balanced", LABELS, 4)
    assert weights.dtype == np.float32
    sums = np.bincount(LABELS, weights[LABELS], minlength=4)
    np.testing.assert_allclose(sums, [10 / 3, 10 / 3, 0, 10 / 3], rtol=1e-6)
    assert weights[LABELS].mean() == pytest.approx(1.0)
    for setting in ({1: 2.5, 3: 0}, {"1": 2.5, "3": 0.0}, {"dog": 2.5, "fox": 0}, {"dog": 2.5, 3: 0}):
        assert class_weights(setting, LABELS, 4, NAMES).tolist() == [1.0, 2.5, 1.0, 0.0]


def test_classes_without_a_share_divide_the_rest_by_their_sizes():
    np.testing.assert_allclose(class_shares("balanced", LABELS, 4), [1 / 3, 1 / 3, 0, 1 / 3])
    np.testing.assert_allclose(class_shares({3: 0.4}, LABELS, 4), [0.4, 0.2, 0.0, 0.4])
    np.testing.assert_allclose(class_shares({"cat": 0.5, 1: 0.3, "fox": 0.2}, LABELS, 4, NAMES), [0.5, 0.3, 0.0, 0.2])


def test_what_cannot_be_is_refused():
    for function, setting, names, match in (
        (class_weights, {"dgo": 1.0}, NAMES, "'dog'"),
        (class_weights, {"dog": 1.0, 1: 2.0}, NAMES, "class 1 twice"),
        (class_weights, {0: 0, 1: 0, 3: 0}, (), "0 for every class"),
        (class_shares, {2: 0.5}, (), "class 2"),
        (class_shares, {0: 0.6, 1: 0.1, 3: 0.1}, (), r"add up to 0\.8"),
        (class_shares, {0: 0.6, 1: 0.4, 3: 0.1}, (), r"add up to 1\.1"),
    ):
        assert_refused(match, function, setting, LABELS, 4, names)


@settings(deadline=None, max_examples=20)
@given(
    counts=st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(lambda counts: sum(map(bool, counts)) > 1),
    weights=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 2**31),
)
def test_every_epoch_holds_classes_in_their_shares_and_examples_evenly(counts, weights, seed, epoch):
    labels, size = labels_of(*counts), sum(counts)
    shares = np.array(weights[: len(counts)]) * (np.array(counts) > 0)
    shares = shares / shares.sum()
    try:
        order = SampledOrder(labels, shares=shares, seed=seed)
    except UserError:
        assert (shares[shares > 0] * size < 1).any()
        return
    found = sampled_drawn(order, epoch * size, (epoch + 1) * size)
    times = np.bincount(labels[found], minlength=len(counts))
    assert times.sum() == size
    assert (np.abs(times - shares * size) < 1).all()
    for label in np.flatnonzero(counts):
        examples = np.bincount(found, minlength=size)[labels == label]
        assert examples.max() - examples.min() <= 2  # the epoch may begin and end amid a round of the class


def test_shares_that_no_example_can_have_are_refused():
    with pytest.raises(UserError, match=r"class 1 a share of 0\.01, .*at least 0\.05"):
        SampledOrder(labels_of(10, 10), shares=np.array([0.99, 0.01]), seed=0)
