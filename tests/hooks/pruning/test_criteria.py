"""Masks from magnitudes, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hookline.hooks.pruning import criteria
from hookline.hooks.pruning.options import Structure

BLOCKS = Structure("block", (2, 3))
CHANNELS = Structure("channel")
FLOATS = st.floats(width=32, allow_nan=False, allow_subnormal=False)


def kept_by_hand(scores: np.ndarray, count: int) -> np.ndarray:
    """The largest; of equal ones the first."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    mask = np.zeros(len(scores), bool)
    mask[order[:count]] = True
    return mask


@pytest.mark.parametrize("xla", [False, True])
def test_many_ties_are_broken_alike_with_and_without_xla(xla: bool):
    scores = np.random.default_rng(0).integers(0, 4, 3000).astype(np.float32)
    function = tf.function(criteria.keep_largest, autograph=False, jit_compile=xla)
    np.testing.assert_array_equal(function(tf.constant(scores), tf.constant(1234)), kept_by_hand(scores, 1234))


@given(
    scores=st.lists(FLOATS | st.sampled_from([0.0, -0.0, 0.5, 1.0]), min_size=1, max_size=60), share=st.floats(0.0, 1.0)
)
def test_the_count_is_exact_and_of_equal_scores_the_first_stay(scores, share):
    scores = np.array(scores, np.float32)
    count = round(share * len(scores))
    np.testing.assert_array_equal(criteria.keep_largest(tf.constant(scores), count), kept_by_hand(scores, count))


def test_the_count_is_exact_also_with_nan_which_counts_as_largest():
    scores = tf.constant([1.0, np.nan, np.inf, -1.0, np.nan, 0.0])
    kept = [criteria.keep_largest(scores, tf.constant(count)).numpy() for count in range(7)]
    assert [mask.sum() for mask in kept] == list(range(7))
    assert np.flatnonzero(kept[3]).tolist() == [1, 2, 4]


@given(groups=st.integers(1, 4), outputs=st.integers(1, 5), kept=st.integers(0, 4), seed=st.integers(0, 99))
def test_every_group_of_m_inputs_keeps_its_n_largest(groups, outputs, kept, seed):
    scores = np.random.default_rng(seed).integers(0, 5, (4 * groups, outputs)).astype(np.float32)
    mask = criteria.keep_in_groups(tf.constant(scores), kept, 4).numpy()
    for group in range(groups):
        rows = slice(4 * group, 4 * group + 4)
        for output in range(outputs):
            np.testing.assert_array_equal(mask[rows, output], kept_by_hand(scores[rows, output], kept))


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((5, 3), (-1,), (5, 3)),
        ((3, 2, 4, 6), (-1,), (24, 6)),
        ((3, 2, 6, 4), (-2,), (24, 6)),
        ((3, 2, 4, 2), (-2, -1), (6, 8)),
    ],
)
def test_a_kernel_becomes_a_matrix_and_comes_back(shape, axes, expected):
    kernel = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    matrix = criteria.to_matrix(tf.constant(kernel), axes)
    assert tuple(matrix.shape) == criteria.matrix_shape(shape, axes) == expected
    np.testing.assert_array_equal(criteria.from_matrix(matrix, shape, axes), kernel)
    if len(axes) == 1:  # a column is what one output channel uses
        np.testing.assert_array_equal(matrix[:, 2], np.take(kernel, 2, axes[0]).ravel())


def test_channels_weigh_their_norm_and_entries_their_magnitude():
    matrix = tf.constant([[4.0, -2.0], [0.0, 3.0]])
    for criterion, expected in (("magnitude", [2.0, 2.5]), ("l2", [np.sqrt(8.0), np.sqrt(6.5)])):
        np.testing.assert_allclose(criteria.unit_scores(matrix, CHANNELS, criterion), expected, rtol=1e-6)
    for structure in (Structure("unstructured"), Structure("n_m", (1, 2))):
        np.testing.assert_array_equal(criteria.unit_scores(matrix, structure, "l2"), np.abs(matrix))
    mask = criteria.spread_units(tf.constant([True, False, True]), (4, 3), CHANNELS).numpy()
    assert mask.all(axis=0).tolist() == mask.any(axis=0).tolist() == [True, False, True]


@given(inputs=st.integers(1, 7), outputs=st.integers(1, 8), seed=st.integers(0, 99))
def test_blocks_stay_or_go_whole_also_where_the_edge_cuts_them(inputs, outputs, seed):
    matrix = np.random.default_rng(seed).normal(size=(inputs, outputs)).astype(np.float32)
    scores = criteria.unit_scores(tf.constant(matrix), BLOCKS, "magnitude").numpy()
    assert scores.shape == criteria.unit_shape((inputs, outputs), BLOCKS)
    kept = criteria.keep_largest(tf.reshape(scores, [-1]), scores.size // 2 + 1).numpy().reshape(scores.shape)
    mask = criteria.spread_units(tf.constant(kept), (inputs, outputs), BLOCKS).numpy()
    assert mask.shape == matrix.shape
    for row in range(scores.shape[0]):
        for column in range(scores.shape[1]):
            block = (slice(2 * row, 2 * row + 2), slice(3 * column, 3 * column + 3))
            assert scores[row, column] == pytest.approx(np.abs(matrix[block]).mean(), rel=1e-5)
            assert (mask[block] == kept[row, column]).all()


def test_what_was_pruned_stays_so_or_comes_back_by_the_hysteresis():
    scores, kept = tf.constant([0.0, 0.0, 9.0, 0.0]), tf.constant([False, True, False, True])
    assert criteria.keep_largest(criteria.stay_pruned(scores, kept), 2).numpy().tolist() == [False, True, False, True]
    kept = tf.constant([True, False])
    for pruned, expected in ((1.05, [True, False]), (1.15, [False, True])):
        scores = criteria.favour_kept(tf.constant([1.0, pruned]), kept, 1.1)
        assert criteria.keep_largest(scores, 1).numpy().tolist() == expected
