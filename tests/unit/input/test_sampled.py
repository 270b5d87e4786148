"""Classes in given shares: exact over an epoch, even within a class, and a pure function of the position."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.trainer.errors import UserError
from hookline.trainer.input.sampling import SampledOrder


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
def test_every_epoch_holds_classes_in_their_shares_and_examples_evenly(counts, weights, seed, epoch):
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


def test_the_order_never_changes_between_versions():
    order = SampledOrder(np.array([0, 1, 1, 1, 0, 1]), shares=np.array([0.5, 0.5]), seed=1)
    assert drawn(order, 0, 12).tolist() == [4, 1, 2, 3, 0, 4, 1, 5, 4, 0, 0, 5]


def test_shares_that_no_example_can_have_are_refused():
    with pytest.raises(UserError, match=r"a share of 0\.5 for class 1, of no example; expected 0"):
        SampledOrder(np.array([0, 0, 2]), shares=np.array([0.25, 0.5, 0.25]), seed=0)
    with pytest.raises(UserError, match=r"class 1 a share of 0\.01, .*at least 0\.05"):
        SampledOrder(labels_of(10, 10), shares=np.array([0.99, 0.01]), seed=0)
