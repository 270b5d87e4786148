"""Example orders, also by class: permutations that differ by epoch and seed; draws depend only on seeds."""

import hashlib
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline.trainer.errors import UserError
from hookline.trainer.input import order as draws
from hookline.trainer.input.order import (
    BalancedOrder,
    SampledOrder,
    chance,
    class_shares,
    class_weights,
    epoch_permutation,
    example_seeds,
    normal,
    salted,
    uniform,
)
from tests.support.refusals import assert_refused


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
@example(size=65_537, epoch=1, seed=3)  # the bare op repeats an index here and at 2^18 + 1
@example(size=131_073, epoch=1, seed=3)
@example(size=262_145, epoch=1, seed=3)
def test_each_epoch_contains_each_index_once(size, epoch, seed):
    found = order(np.arange(epoch * size, (epoch + 1) * size), size, seed)
    np.testing.assert_array_equal(np.sort(found), np.arange(size))


@pytest.mark.parametrize("size", [1257, 54_000])
def test_consecutive_epochs_are_uncorrelated(size):
    # The bare op, keyed by (seed, epoch) with its default number of rounds, gives a correlation of 0.7 for 54,000.
    epochs = order(np.arange(6 * size), size, seed=3).reshape(6, size)
    limit = 5 / np.sqrt(size)
    for first, second in itertools.pairwise(epochs):
        assert abs(correlation(first, second)) < limit
    for distance in (1, 2, 64):  # neighbours
        assert abs(correlation(epochs[0][:-distance], epochs[0][distance:])) < limit
    np.testing.assert_array_equal(order(np.arange(300, 100, -1), size, seed=3), epochs.reshape(-1)[300:100:-1])
    for place, seed in ((1, 4), (0, 259), (0, 3 + 2**32), (0, -3)):  # seed and epoch are not interchangeable
        assert abs(correlation(epochs[place], order(np.arange(size), size, seed))) < limit


def test_epoch_order_is_stable_across_versions():
    assert order(np.arange(12), 6, seed=1).tolist() == [2, 4, 3, 5, 1, 0, 4, 5, 1, 2, 0, 3]


COUNT = 40_000


def seeds_of(count=COUNT, seed=0, step=0):
    return example_seeds(seed, tf.constant(step, tf.int64), tf.range(count, dtype=tf.int64))


def test_words_match_splitmix64():
    state = tf.constant([[0, 0]], tf.int32)
    salt_word = int.from_bytes(hashlib.blake2b(b"x", digest_size=8).digest(), "little")
    start = tf.bitcast(tf.constant([salt_word], tf.uint64), tf.int32)
    words = draws._words(tf.bitwise.bitwise_xor(state, start), "x", 3).numpy()[0]
    assert [hex(word) for word in words] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_example_seeds_are_unique_per_run_step_and_position():
    everything = [seeds_of(50, seed, step) for seed in (0, 1, -1, 2**40) for step in (0, 1, 2**33)]
    rows = np.concatenate(everything)
    assert rows.shape == (600, 2)
    assert rows.dtype == np.int32
    assert len(np.unique(rows, axis=0)) == 600
    later = example_seeds(0, tf.constant(1, tf.int64), tf.range(20, 30, dtype=tf.int64))
    np.testing.assert_array_equal(later, seeds_of(50, 0, 1)[20:30])


def test_uniform_numbers_fill_their_range_evenly():
    found = uniform(seeds_of(), "a", low=-2.0, high=3.0).numpy()
    assert found.dtype == np.float32
    assert found.min() >= -2.0
    assert found.max() < 3.0
    counts = np.histogram(found, 50, (-2.0, 3.0))[0]
    assert ((counts - COUNT / 50) ** 2 / (COUNT / 50)).sum() < 90  # chi-squared with 49 degrees of freedom: 99.97 %
    found = uniform(seeds_of(2_000), "a", [3, 4]).numpy()
    assert found.shape == (2_000, 3, 4)
    flat = found.reshape(2_000, 12)  # every number of an example is drawn independently
    assert np.abs(np.corrcoef(flat.T) - np.eye(12)).max() < 0.1
    np.testing.assert_array_equal(uniform(seeds_of(100)[40:60], "a", [3, 4]), found[40:60])  # at any position
    for probability in (0.0, 0.1, 1.0):
        share = chance(seeds_of(), "a", probability).numpy().mean()
        assert abs(share - probability) <= 4 * np.sqrt(probability * (1 - probability) / COUNT)


def test_draws_are_independent_across_salts_steps_seeds_and_positions():
    base = uniform(seeds_of(), "a").numpy()
    others = {
        "salt": uniform(seeds_of(), "b"),
        "salted": uniform(salted(seeds_of(), "a"), "a"),
        "step": uniform(seeds_of(step=1), "a"),
        "seed": uniform(seeds_of(seed=1), "a"),
        "position": np.roll(base, 1),
    }
    for name, other in others.items():
        assert abs(correlation(base, other)) < 0.025, name
        assert np.mean(np.asarray(other) == base) < 1e-3, name


def test_normal_numbers_have_the_expected_moments_and_tails():
    found = normal(seeds_of(20_000), "a", [5, 2]).numpy()
    assert found.shape == (20_000, 5, 2)
    assert found.dtype == np.float32
    assert abs(found.mean()) < 0.01
    assert found.std() == pytest.approx(1.0, abs=0.01)
    assert np.mean(found**3) == pytest.approx(0.0, abs=0.03)
    assert np.mean(found**4) == pytest.approx(3.0, abs=0.06)
    assert np.mean(np.abs(found) > 1.959964) == pytest.approx(0.05, abs=0.002)
    assert 3.9 < np.abs(found).max() < 4.33
    assert abs(correlation(found[:, 0, 0], found[:, 0, 1])) < 0.03
    assert normal(seeds_of(64), "a", [3, 3, 1]).shape == (64, 3, 3, 1)


def test_eager_and_traced_draws_have_the_same_bits():
    def drawn(seeds):
        return uniform(seeds, "a", [7], low=-0.3, high=0.7), normal(seeds, "b", [3, 3, 3])

    def all_kinds(seeds):
        return *drawn(seeds), draws.whole_numbers(seeds, "c", -5, 5), salted(seeds, "d")

    seeds = seeds_of(33)
    traced = *tf.function(all_kinds, autograph=False)(seeds), *tf.function(drawn, jit_compile=True)(seeds)
    for one, other in zip((*all_kinds(seeds), *drawn(seeds)), traced, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


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
def test_balanced_batch_has_p_classes_with_k_examples_each(counts, classes, each, seed, step):
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


def test_each_round_has_each_class_once_and_all_rounds_each_example_once():
    labels = labels_of(12, 12, 12, 12, 12, 12)
    batches = drawn(BalancedOrder(labels, classes_per_batch=3, batch_size=12, seed=1), 6)  # 2 steps a round, 3 rounds
    rounds = labels[batches].reshape(3, 6, 4)[:, :, 0]
    np.testing.assert_array_equal(np.sort(rounds, axis=1), np.tile(np.arange(6), (3, 1)))
    np.testing.assert_array_equal(np.sort(batches.reshape(-1)), np.arange(72))


def test_balanced_and_sampled_orders_are_stable_across_versions():
    order = BalancedOrder(np.array([0, 1, 2, 0, 1, 2, 0, 1]), classes_per_batch=2, batch_size=4, seed=1)
    assert drawn(order, 4).tolist() == [[6, 0, 7, 4], [6, 3, 5, 2], [3, 0, 7, 4], [7, 1, 6, 0]]
    sampled = SampledOrder(np.array([0, 1, 1, 1, 0, 1]), shares=np.array([0.5, 0.5]), seed=1)
    assert sampled_drawn(sampled, 0, 12).tolist() == [4, 1, 2, 3, 0, 4, 1, 5, 4, 0, 0, 5]


def test_labels_may_have_gaps_and_empty_classes_are_not_counted():
    labels = np.array([7, 7, 3, 3, 3], np.int64)
    batch = drawn(BalancedOrder(labels, classes_per_batch=2, batch_size=4, seed=0), 5)
    assert set(labels[batch].reshape(-1)) == {3, 7}
    with pytest.raises(UserError, match=r"classes_per_batch=3 for examples of 2 classes; expected 1\.\.2"):
        BalancedOrder(labels, classes_per_batch=3, batch_size=6, seed=0)


LABELS = np.repeat([0, 1, 3], [6, 3, 1])
NAMES = ("cat", "dog", "eel", "fox")


def test_balanced_class_weights_have_equal_sums_and_mean_one():
    weights = class_weights("balanced", LABELS, 4)
    assert weights.dtype == np.float32
    sums = np.bincount(LABELS, weights[LABELS], minlength=4)
    np.testing.assert_allclose(sums, [10 / 3, 10 / 3, 0, 10 / 3], rtol=1e-6)
    assert weights[LABELS].mean() == pytest.approx(1.0)
    for setting in ({1: 2.5, 3: 0}, {"1": 2.5, "3": 0.0}, {"dog": 2.5, "fox": 0}, {"dog": 2.5, 3: 0}):
        assert class_weights(setting, LABELS, 4, NAMES).tolist() == [1.0, 2.5, 1.0, 0.0]


def test_unspecified_classes_split_the_remaining_share_by_size():
    np.testing.assert_allclose(class_shares("balanced", LABELS, 4), [1 / 3, 1 / 3, 0, 1 / 3])
    np.testing.assert_allclose(class_shares({3: 0.4}, LABELS, 4), [0.4, 0.2, 0.0, 0.4])
    np.testing.assert_allclose(class_shares({"cat": 0.5, 1: 0.3, "fox": 0.2}, LABELS, 4, NAMES), [0.5, 0.3, 0.0, 0.2])


def test_invalid_class_weights_and_shares_are_refused():
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
def test_each_epoch_matches_class_shares_and_uses_examples_evenly(counts, weights, seed, epoch):
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
        assert examples.max() - examples.min() <= 2  # the epoch may begin and end within a round of the class


def test_class_share_smaller_than_one_example_is_refused():
    with pytest.raises(UserError, match=r"class 1 a share of 0\.01, .*at least 0\.05"):
        SampledOrder(labels_of(10, 10), shares=np.array([0.99, 0.01]), seed=0)
