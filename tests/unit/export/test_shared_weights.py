"""Weights that share values: the clusters of k-means, zeros apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hookline.deploy.sparse_weight import share_weights

kernels = arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(1, 20)), elements=st.floats(-4, 4, width=32))


@given(kernels, st.integers(1, 8))
def test_zeros_stay_and_no_other_weight_becomes_one(values: np.ndarray, bits: int):
    shared = share_weights(values, bits)
    assert shared.dtype == np.float32
    np.testing.assert_array_equal(shared == 0, values == 0)
    assert len(np.unique(shared[shared != 0])) <= 2**bits


@given(kernels, st.integers(1, 5))
def test_every_weight_has_the_centroid_that_is_nearest_to_it(values: np.ndarray, bits: int):
    shared = share_weights(values, bits)
    book = np.unique(shared[shared != 0]).astype(np.float64)
    if len(np.unique(values[values != 0])) > 2**bits:
        nearest = np.abs(values[..., None].astype(np.float64) - book).min(axis=-1, initial=np.inf)
        distance = np.abs(values.astype(np.float64) - shared)
        np.testing.assert_allclose(distance[values != 0], nearest[values != 0], atol=1e-6)


@given(st.lists(st.sampled_from([-0.0, 0.0, 1e-45, -2.5, 3.0]), min_size=1, max_size=50))
def test_few_values_stay_as_they_are_bit_for_bit(entries: list[float]):
    values = np.array(entries, np.float32)
    assert share_weights(values, 2).tobytes() == values.tobytes()


def test_a_negative_zero_is_a_zero_where_values_are_shared():
    values = np.array([-0.0, 0.1, 0.2, 0.3, 0.4], np.float32)
    shared = share_weights(values, 1)
    np.testing.assert_allclose(shared, np.float32([0.0, 0.15, 0.15, 0.35, 0.35]), rtol=1e-6)
    assert not np.signbit(shared).any()


def test_centroids_are_the_means_of_their_weights_and_one_without_weights_is_left_out():
    values = np.float32([-3.0, -2.9, -1.0, -1.0, -1.0, -0.4, 0.0, 2.0, 2.5])
    expected = np.float32([-2.95, -2.95, -0.85, -0.85, -0.85, -0.85, 0.0, 2.25, 2.25])
    np.testing.assert_allclose(share_weights(values, 2), expected, rtol=1e-6)


def test_large_weights_keep_centroids_of_their_own():
    """Han et al. 2016, section 3.2: a linear start serves the few large weights, which matter most."""
    values = np.random.default_rng(0).normal(scale=0.02, size=100_000).astype(np.float32)
    values[:20] = np.linspace(0.8, 1.0, 20)
    assert np.abs(share_weights(values, 5)[:20] - values[:20]).max() < 0.03


def test_weights_around_zero_whose_mean_is_zero_do_not_become_zero():
    values = np.float32([-1.0, 1.0, -0.25, 0.25])
    shared = share_weights(values, 1)
    assert (shared != 0).all()
    values = np.float32([-0.25, 0.25, -10.0, 10.0, 10.5, 11.0, -10.5, -11.0])
    assert (share_weights(np.repeat(values, 3), 2) != 0).all()


def test_more_centroids_come_nearer_and_the_same_ones_come_each_time():
    values = np.random.default_rng(1).normal(size=(200, 50)).astype(np.float32)
    last = np.inf
    for bits in (1, 3, 5, 8):
        shared = share_weights(values, bits)
        assert shared.tobytes() == share_weights(values.copy(), bits).tobytes()
        error = np.mean((shared - values) ** 2)
        assert error < min(last, 6 * 4.0**-bits)  # the best quantizer of normal values comes to 2.7
        last = error
