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

from trainer.input.draws import example_seeds
from trainer.input.order import epoch_permutation, hashed_key, keyed_permutation


def order(positions, size, seed):
    return epoch_permutation(tf.constant(positions, tf.int64), size, seed).numpy()


def correlation(first, second):
    return np.corrcoef(first, second)[0, 1]


@settings(deadline=None, max_examples=60)
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


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 400),
    start=st.integers(0, 5000),
    count=st.integers(1, 900),
    seed=st.integers(0, 2**40),
)
def test_a_position_has_one_index_however_it_is_asked_for(size, start, count, seed):
    together = order(np.arange(start, start + count), size, seed)
    backwards = order(np.arange(start, start + count)[::-1], size, seed)
    np.testing.assert_array_equal(together, backwards[::-1])
    assert order([start], size, seed)[0] == together[0]


@pytest.mark.parametrize("size", [1257, 54_000])
def test_consecutive_epochs_are_uncorrelated(size):
    # The op by itself, keyed with (seed, epoch) at its default number of rounds, gives 0.7 for 54,000.
    epochs = order(np.arange(6 * size), size, seed=3).reshape(6, size)
    limit = 5 / np.sqrt(size)
    for first, second in itertools.pairwise(epochs):
        assert abs(correlation(first, second)) < limit


@pytest.mark.parametrize("size", [1257, 54_000])
def test_neighbours_in_an_epoch_are_uncorrelated(size):
    epoch = order(np.arange(size), size, seed=5)
    for distance in (1, 2, 64):
        assert abs(correlation(epoch[:-distance], epoch[distance:])) < 5 / np.sqrt(size)


@pytest.mark.parametrize("size", [40, 1257, 54_000])
def test_epochs_never_repeat(size):
    # The op by itself comes back to the first order after 256 epochs.
    epochs, places = 3000, min(size, 20)
    positions = np.arange(epochs)[:, None] * size + np.arange(places)
    starts = order(positions.reshape(-1), size, seed=3).reshape(epochs, places)
    assert len(np.unique(starts, axis=0)) > 0.999 * epochs


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (1, 257), (7, 7 + 2**32), (0, -1)])
def test_seeds_that_differ_give_uncorrelated_orders(pair):
    size = 10_000
    first, second = (order(np.arange(size), size, seed) for seed in pair)
    assert abs(correlation(first, second)) < 5 / np.sqrt(size)


def test_seed_and_epoch_do_not_trade_places():
    size = 10_000
    epoch_one_of_seed_zero = order(np.arange(size, 2 * size), size, seed=0)
    epoch_zero_of_seed_one = order(np.arange(size), size, seed=1)
    assert abs(correlation(epoch_one_of_seed_zero, epoch_zero_of_seed_one)) < 5 / np.sqrt(size)


@pytest.mark.parametrize("place", [0, 1, 600])
def test_a_place_in_the_epoch_goes_to_every_part_of_the_set(place):
    size, epochs, parts = 1257, 4000, 8
    found = order(np.arange(epochs) * size + place, size, seed=2)
    counts = np.bincount(found * parts // size, minlength=parts)
    chi_square = np.sum((counts - epochs / parts) ** 2 / (epochs / parts))
    assert chi_square < 40  # 7 degrees of freedom: one in a million lies beyond


def test_all_orders_of_a_small_set_come_up_equally_often():
    size, epochs = 4, 2400
    found = order(np.arange(epochs * size), size, seed=0).reshape(epochs, size)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24
    assert np.sum((counts - 100) ** 2 / 100) < 70  # 23 degrees of freedom: one in a million lies beyond


def test_the_order_never_changes_between_versions():
    assert order(np.arange(12), 6, seed=1).tolist() == [2, 4, 3, 5, 1, 0, 4, 5, 1, 2, 0, 3]


def test_order_far_into_training_needs_no_memory_of_the_past():
    size = 10**12
    start = 3 * 10**17
    found = order(np.arange(start, start + 1000), size, seed=1)
    assert found.min() >= 0
    assert found.max() < size
    assert np.unique(found).size == 1000


def test_the_order_and_the_seeds_of_a_thousand_million_examples_need_no_memory():
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


def test_permutations_of_several_sizes_and_keys_are_asked_in_one_call():
    sizes = np.repeat([1, 2, 7, 300, 65_537], [1, 2, 7, 300, 2000])
    index = np.concatenate([np.arange(1), np.arange(2), np.arange(7), np.arange(300), np.arange(63_537, 65_537)])
    key = hashed_key(tf.constant(sizes, tf.int64), tf.constant(5 * sizes, tf.int64))
    together = keyed_permutation(tf.constant(index, tf.int64), tf.constant(sizes, tf.int64), key).numpy()
    for size in (1, 2, 7, 300):
        np.testing.assert_array_equal(np.sort(together[sizes == size]), np.arange(size))
    for size in np.unique(sizes):
        mine = sizes == size
        alone = keyed_permutation(tf.constant(index[mine], tf.int64), int(size), key[mine]).numpy()
        np.testing.assert_array_equal(alone, together[mine])
        assert np.unique(alone).size == alone.size


def test_a_key_depends_on_every_word_its_place_and_their_number():
    words = [tf.constant([each], tf.int64) for each in (1, 2, 3)]
    keys = [hashed_key(*(words[i] for i in chosen)) for chosen in ((0, 1), (1, 0), (0, 2), (0, 1, 2), (0,))]
    assert np.unique(np.concatenate(keys)).size == len(keys)
