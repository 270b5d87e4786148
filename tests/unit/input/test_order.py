"""The order of examples: exact coverage of each epoch, and epochs that look independent."""

from __future__ import annotations

import itertools
import resource
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline.trainer.input.order import epoch_permutation, example_seeds


def order(positions, size, seed):
    return epoch_permutation(tf.constant(positions, tf.int64), size, seed).numpy()


def correlation(first, second):
    return np.corrcoef(first, second)[0, 1]


@settings(deadline=None, max_examples=30)
@given(size=st.integers(1, 3000), epoch=st.integers(0, 2**31), seed=st.integers(-(2**63), 2**64))
@example(size=1, epoch=0, seed=0)
@example(size=2, epoch=5, seed=1)
@example(size=3, epoch=5, seed=1)
@example(size=65_536, epoch=1, seed=3)
@example(size=65_537, epoch=1, seed=3)  # the op by itself repeats an index here, and at 2^18 + 1
@example(size=131_073, epoch=1, seed=3)
@example(size=262_145, epoch=1, seed=3)
def test_each_epoch_holds_each_index_once(size, epoch, seed):
    found = order(np.arange(epoch * size, (epoch + 1) * size), size, seed)
    np.testing.assert_array_equal(np.sort(found), np.arange(size))


@pytest.mark.parametrize("size", [1257, 54_000])
def test_consecutive_epochs_are_uncorrelated(size):
    # The op by itself, keyed with (seed, epoch) at its default number of rounds, gives 0.7 for 54,000.
    epochs = order(np.arange(6 * size), size, seed=3).reshape(6, size)
    limit = 5 / np.sqrt(size)
    for first, second in itertools.pairwise(epochs):
        assert abs(correlation(first, second)) < limit
    for distance in (1, 2, 64):  # neighbours
        assert abs(correlation(epochs[0][:-distance], epochs[0][distance:])) < limit
    np.testing.assert_array_equal(order(np.arange(300, 100, -1), size, seed=3), epochs.reshape(-1)[300:100:-1])
    for place, seed in ((1, 4), (0, 259), (0, 3 + 2**32), (0, -3)):  # seed and epoch do not trade places
        assert abs(correlation(epochs[place], order(np.arange(size), size, seed))) < limit


@pytest.mark.parametrize("size", [400, 54_000])
def test_epochs_never_repeat(size):
    # The op by itself comes back to the first order after 256 epochs.
    epochs, places = 3000, min(size, 20)
    positions = np.arange(epochs)[:, None] * size + np.arange(places)
    starts = order(positions.reshape(-1), size, seed=3).reshape(epochs, places)
    assert len(np.unique(starts, axis=0)) > 0.999 * epochs


def test_the_order_never_changes_between_versions():
    assert order(np.arange(12), 6, seed=1).tolist() == [2, 4, 3, 5, 1, 0, 4, 5, 1, 2, 0, 3]


def test_order_and_seeds_of_a_thousand_million_need_no_memory():
    size, batch = 10**9, 64
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    drawn = []
    for step in (0, 1, 10**8, 3 * 10**9):  # the last lies in epoch 192
        position = step * batch + tf.range(batch, dtype=tf.int64)
        drawn.append(epoch_permutation(position, size, 5).numpy())
        assert example_seeds(5, tf.constant(step, tf.int64), position - step * batch).shape == (batch, 2)
    assert time.perf_counter() - start < 30.0  # it takes some milliseconds; a stored order, half a minute and 8 GB
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < (64 << 20 if sys.platform == "darwin" else 64 << 10)
    found = np.concatenate(drawn)
    assert len(np.unique(found)) == found.size
    assert 0 <= found.min() < size / 10 < 9 * size / 10 < found.max() < size
