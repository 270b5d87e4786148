"""Arrays in their smallest form: every bit comes back, and each form is taken where it is the smallest."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hookline.deploy.inference.sparse_file import from_json, to_dense
from hookline.deploy.sparse_weight import HEADER_BYTES, Stored, share_weights, store

SPECIAL = [-0.0, 1e-45, -1e-42, np.nan, np.inf, -np.inf, np.float32(3.4e38), 1.0]
floats = st.sampled_from(SPECIAL) | st.floats(width=32)


def random_sparse(shape: tuple[int, ...], kept: float, distinct: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.choice(random.normal(size=distinct), shape).astype(np.float32)
    return np.where(random.random(shape) < kept, values, np.float32(0))


def assert_same_bits(stored: Stored, values: np.ndarray) -> None:
    found = to_dense(from_json(stored.weight.as_json()), stored.parts)
    assert found.dtype == np.float32
    assert found.shape == values.shape
    assert found.tobytes() == values.tobytes()


@settings(deadline=None)
@given(
    arrays(
        np.float32, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6), elements=floats, fill=st.just(0.0)
    ),
    st.booleans(),
    st.booleans(),
)
def test_every_bit_comes_back(values: np.ndarray, huffman: bool, codebook: bool):
    assert_same_bits(store("w", values, huffman=huffman, codebook=codebook), values)


@settings(deadline=None, max_examples=30)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.9, 1.0]),
    st.sampled_from([1, 2, 3, 32, 256, 257, 5000]),
    st.booleans(),
)
def test_every_bit_of_large_arrays_comes_back_in_no_more_bytes_than_dense(shape, kept, distinct, huffman):
    values = random_sparse(shape, kept, distinct)
    stored = store("w", values, huffman=huffman)
    assert_same_bits(stored, values)
    assert stored.cost <= values.nbytes + HEADER_BYTES


def test_the_smallest_form_is_taken():
    for kept, distinct, positions, form in (
        (1.0, 10_000, "all", "float32"),
        (1.0, 32, "all", "codebook"),
        (0.6, 10_000, "bitmap", "float32"),
        (0.05, 10_000, "gaps", "float32"),
        (0.05, 32, "gaps", "codebook"),
    ):
        values = random_sparse((100, 120), kept, distinct)
        stored = store("w", values, huffman=False)
        assert (stored.weight.positions, stored.weight.values) == (positions, form)
        assert_same_bits(stored, values)
    for value in (0.0, -0.0, 1.0, np.nan):
        values = np.full((300, 200), value, np.float32)
        stored = store("w", values, huffman=True)
        assert stored.data_bytes == 4
        assert_same_bits(stored, values)


def test_huffman_codes_come_near_the_entropy_of_positions_and_values():
    values = random_sparse((400, 300), 0.08, 16)
    probabilities = np.unique(values[values != 0], return_counts=True)[1] / np.count_nonzero(values)
    share = np.count_nonzero(values) / values.size
    positions = -values.size * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    entropy = positions - np.count_nonzero(values) * (probabilities * np.log2(probabilities)).sum()
    stored = store("w", values, huffman=True)
    assert_same_bits(stored, values)
    assert entropy < 8 * stored.data_bytes < 1.04 * entropy
    assert stored.data_bytes < store("w", values, huffman=False).data_bytes < values.nbytes / 10


def test_the_order_with_the_fewer_bytes_is_taken():
    values = random_sparse((60, 200), 0.3, 5000)
    values[np.random.default_rng(1).random(60) < 0.7] = 0  # most inputs are read by no output
    kernels = (values, np.ascontiguousarray(values.T))
    stored = [store("w", kernel, huffman=True) for kernel in kernels]
    assert {each.weight.order for each in stored} == {"rows", "columns"}
    assert stored[0].data_bytes == stored[1].data_bytes


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


def test_centroids_are_the_means_of_their_weights():
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
