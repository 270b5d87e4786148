"""Classes in given shares: exact over an epoch, even within a class, and a pure function of the position."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.input.sampled import SampledOrder


def labels_of(*counts):
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)


def drawn(order, start, stop):
    return order(tf.range(start, stop, dtype=tf.int64)).numpy()


@settings(deadline=None, max_examples=20)
@given(
    counts=st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(lambda counts: sum(map(bool, counts)) > 1),
    weights=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 2**31),
)
def test_every_epoch_holds_each_class_in_its_share_and_its_examples_equally_often(counts, weights, seed, epoch):
    labels, size = labels_of(*counts), sum(counts)
    shares = np.array(weights[: len(counts)]) * (np.array(counts) > 0)
    shares = shares / shares.sum()
    try:
        order = SampledOrder(labels, shares=shares, seed=seed)
    except UserError:
        assert (shares[shares > 0] * size < 1).any()
        return
    found = drawn(order, epoch * size, (epoch + 1) * size)
    times = np.bincount(labels[found], minlength=len(counts))
    assert times.sum() == size
    assert (np.abs(times - shares * size) < 1).all()
    for label in np.flatnonzero(counts):
        examples = np.bincount(found, minlength=size)[labels == label]
        assert examples.max() - examples.min() <= 2  # the epoch may begin and end amid a round of the class


def test_over_whole_rounds_of_a_class_its_examples_come_exactly_as_often():
    labels = labels_of(4, 12)  # an epoch of 16 draws 8 of each: 2 rounds of the small class, 2/3 of one of the large
    order = SampledOrder(labels, shares=np.array([0.5, 0.5]), seed=1)
    times = np.bincount(drawn(order, 0, 3 * 16), minlength=16)
    assert (times[labels == 0] == 6).all()
    assert (times[labels == 1] == 2).all()


def test_a_share_in_proportion_to_size_draws_each_example_once_an_epoch():
    labels = labels_of(5, 20, 15)
    order = SampledOrder(labels, shares=np.array([5, 20, 15]) / 40, seed=3)
    for epoch in range(3):
        np.testing.assert_array_equal(np.sort(drawn(order, 40 * epoch, 40 * (epoch + 1))), np.arange(40))


def test_a_position_has_one_example_however_it_is_asked_for():
    order = SampledOrder(labels_of(7, 3, 40), shares=np.array([0.4, 0.4, 0.2]), seed=5)
    together = drawn(order, 30, 180)
    np.testing.assert_array_equal(np.concatenate([drawn(order, 30, 77), drawn(order, 77, 180)]), together)
    np.testing.assert_array_equal(order(tf.range(179, 29, -1, dtype=tf.int64)).numpy(), together[::-1])


def test_classes_are_mixed_and_epochs_and_seeds_differ():
    labels = labels_of(40, 40)
    orders = [SampledOrder(labels, shares=np.array([0.25, 0.75]), seed=seed) for seed in (0, 1)]
    first, second = (drawn(order, 0, 80) for order in orders)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, drawn(orders[0], 80, 160))
    halves = labels[first].reshape(2, 40).mean(axis=1)
    assert (np.abs(halves - 0.75) < 0.25).all()  # the draws of a class do not stand together


def test_the_order_never_changes_between_versions():
    order = SampledOrder(np.array([0, 1, 1, 1, 0, 1]), shares=np.array([0.5, 0.5]), seed=1)
    assert drawn(order, 0, 12).tolist() == [4, 1, 2, 3, 0, 4, 1, 5, 4, 0, 0, 5]


def test_a_position_far_into_training_needs_no_memory_of_the_past():
    order = SampledOrder(labels_of(500, 100), shares=np.array([0.5, 0.5]), seed=1)
    start = 600 * 10**14
    found = drawn(order, start, start + 600)
    assert np.bincount(labels_of(500, 100)[found]).tolist() == [300, 300]


def test_a_share_of_a_class_without_examples_is_refused():
    with pytest.raises(UserError, match=r"a share of 0\.5 for class 1, of no example; expected 0"):
        SampledOrder(np.array([0, 0, 2]), shares=np.array([0.25, 0.5, 0.25]), seed=0)


def test_a_share_below_one_example_an_epoch_is_refused():
    with pytest.raises(
        UserError, match=r"class 1 a share of 0\.01, which is no whole example among 20.*at least 0\.05"
    ):
        SampledOrder(labels_of(10, 10), shares=np.array([0.99, 0.01]), seed=0)
