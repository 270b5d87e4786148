"""Masks from magnitudes, against plain NumPy: for one matrix, and for several kernels at once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.kernels import Kernel
from hookline.hooks.pruning import selector
from hookline.hooks.pruning.selector import MaskSelector, kept_counts
from hookline.hooks.pruning.settings import Structure

BLOCKS = Structure("block", (2, 3))
CHANNELS = Structure("channel")
FLOATS = st.floats(width=32, allow_nan=False, allow_subnormal=False)


def kept_by_hand(scores: np.ndarray, count: int) -> np.ndarray:
    """Keep the largest scores, and the first of equal ones."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    mask = np.zeros(len(scores), bool)
    mask[order[:count]] = True
    return mask


@pytest.mark.parametrize("xla", [False, True])
def test_ties_are_broken_the_same_way_with_and_without_xla(xla: bool):
    scores = np.random.default_rng(0).integers(0, 4, 3000).astype(np.float32)
    function = tf.function(selector.keep_largest, autograph=False, jit_compile=xla)
    np.testing.assert_array_equal(function(tf.constant(scores), tf.constant(1234)), kept_by_hand(scores, 1234))


@given(
    scores=st.lists(FLOATS | st.sampled_from([0.0, -0.0, 0.5, 1.0]), min_size=1, max_size=60), share=st.floats(0.0, 1.0)
)
@settings(max_examples=20)
def test_exact_count_is_kept_and_ties_keep_the_first(scores, share):
    scores = np.array(scores, np.float32)
    count = round(share * len(scores))
    np.testing.assert_array_equal(selector.keep_largest(tf.constant(scores), count), kept_by_hand(scores, count))


def test_exact_count_is_kept_with_nan_counted_as_largest():
    scores = tf.constant([1.0, np.nan, np.inf, -1.0, np.nan, 0.0])
    kept = [selector.keep_largest(scores, tf.constant(count)).numpy() for count in range(7)]
    assert [mask.sum() for mask in kept] == list(range(7))
    assert np.flatnonzero(kept[3]).tolist() == [1, 2, 4]


@given(groups=st.integers(1, 4), outputs=st.integers(1, 5), kept=st.integers(0, 4), seed=st.integers(0, 99))
def test_every_group_of_m_inputs_keeps_its_n_largest(groups, outputs, kept, seed):
    scores = np.random.default_rng(seed).integers(0, 5, (4 * groups, outputs)).astype(np.float32)
    mask = selector.keep_in_groups(tf.constant(scores), kept, 4).numpy()
    for group in range(groups):
        rows = slice(4 * group, 4 * group + 4)
        for output in range(outputs):
            np.testing.assert_array_equal(mask[rows, output], kept_by_hand(scores[rows, output], kept))


def test_kernel_round_trips_through_a_matrix():
    for shape, axes, expected in (
        ((5, 3), (-1,), (5, 3)),
        ((3, 2, 4, 6), (-1,), (24, 6)),
        ((3, 2, 6, 4), (-2,), (24, 6)),
        ((3, 2, 4, 2), (-2, -1), (6, 8)),
    ):
        kernel, values = kernel_of("a", *shape, axes=axes), np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        matrix = selector.to_matrix(tf.constant(values), kernel)
        assert tuple(matrix.shape) == selector.matrix_shape(kernel) == expected
        np.testing.assert_array_equal(selector.from_matrix(matrix, kernel), values)
        if len(axes) == 1:  # a column is what one output channel uses
            np.testing.assert_array_equal(matrix[:, 2], np.take(values, 2, axes[0]).ravel())


def test_channels_are_scored_by_norm_and_entries_by_magnitude():
    matrix = tf.constant([[4.0, -2.0], [0.0, 3.0]])
    for criterion, expected in (("magnitude", [2.0, 2.5]), ("l2", [np.sqrt(8.0), np.sqrt(6.5)])):
        np.testing.assert_allclose(selector.unit_scores(matrix, CHANNELS, criterion), expected, rtol=1e-6)
    for structure in (Structure("unstructured"), Structure("n_m", (1, 2))):
        np.testing.assert_array_equal(selector.unit_scores(matrix, structure, "l2"), np.abs(matrix))
    mask = selector.spread_units(tf.constant([True, False, True]), (4, 3), CHANNELS).numpy()
    assert mask.all(axis=0).tolist() == mask.any(axis=0).tolist() == [True, False, True]


@settings(max_examples=20)
@given(inputs=st.integers(1, 7), outputs=st.integers(1, 8), seed=st.integers(0, 99))
def test_blocks_are_kept_or_pruned_whole_even_at_the_edge(inputs, outputs, seed):
    matrix = np.random.default_rng(seed).normal(size=(inputs, outputs)).astype(np.float32)
    scores = selector.unit_scores(tf.constant(matrix), BLOCKS, "magnitude").numpy()
    assert scores.shape == selector.unit_shape((inputs, outputs), BLOCKS)
    kept = selector.keep_largest(tf.reshape(scores, [-1]), scores.size // 2 + 1).numpy().reshape(scores.shape)
    mask = selector.spread_units(tf.constant(kept), (inputs, outputs), BLOCKS).numpy()
    assert mask.shape == matrix.shape
    for row in range(scores.shape[0]):
        for column in range(scores.shape[1]):
            block = (slice(2 * row, 2 * row + 2), slice(3 * column, 3 * column + 3))
            assert scores[row, column] == pytest.approx(np.abs(matrix[block]).mean(), rel=1e-5)
            assert (mask[block] == kept[row, column]).all()


ENTRIES = Structure("unstructured")


def kernel_of(name: str, *shape: int, axes: tuple[int, ...] = (-1,)) -> Kernel:
    return Kernel(f"{name}/kernel", name, keras.Variable(np.zeros(shape, np.float32)), axes)


def select(
    chooser: MaskSelector, latent: list[np.ndarray], kept: list[np.ndarray] | None = None, update: int = 0
) -> list[np.ndarray]:
    names = [kernel.name for kernel in chooser.kernels]
    masks = kept or [np.ones(each.shape, bool) for each in latent]
    values = {name: tf.constant(each, tf.float32) for name, each in zip(names, latent, strict=True)}
    found = chooser(values, {name: tf.constant(each) for name, each in zip(names, masks, strict=True)}, update)
    return [each.numpy() for each in found]


def test_pruned_entries_return_only_beyond_the_hysteresis() -> None:
    latent, kept = np.float32([[1.0], [0.5], [-1.2]]), np.array([[True], [True], [False]])
    for hysteresis, expected in ((None, 0), (1.5, 0), (1.1, 2)):
        (found,) = select(
            MaskSelector([kernel_of("a", 3, 1)], [[1]], ENTRIES, "magnitude", hysteresis), [latent], [kept]
        )
        assert np.flatnonzero(found).tolist() == [expected]


@given(seed=st.integers(0, 99), sparsity=st.sampled_from([0.0, 0.3, 0.8, 1.0]), small=st.integers(0, 2))
@settings(max_examples=12)
def test_global_scope_keeps_the_largest_entries_and_one_of_each_kernel(seed: int, sparsity: float, small: int) -> None:
    kernels = [kernel_of("a", 4, 3), kernel_of("b", 2, 2), kernel_of("c", 1, 5)]
    generator = np.random.default_rng(seed)
    latent = [generator.normal(size=kernel.variable.shape).astype(np.float32) for kernel in kernels]
    latent[small] *= 1e-6
    counts = kept_counts(kernels, {kernel.layer: [sparsity] for kernel in kernels}, ENTRIES, "global")
    found = select(MaskSelector(kernels, counts, ENTRIES, "magnitude", None), latent)
    assert sum(mask.sum() for mask in found) == max(3, 21 - round(sparsity * 21))
    others = [(np.abs(each), mask) for each, mask in zip(latent, found, strict=True)]
    assert all(mask[np.unravel_index(size.argmax(), size.shape)] for size, mask in others)
    free = [size[mask & (size < size.max())] for size, mask in others]  # kept for their own size
    gone = np.concatenate([size[~mask] for size, mask in others])
    assert min(map(np.min, filter(len, free)), default=np.inf) >= gone.max(initial=0.0)


def test_kept_counts_are_in_units_and_never_zero() -> None:
    kernels, block = [kernel_of("a", 3, 5), kernel_of("b", 2, 2)], Structure("block", (2, 2))
    sparsities = {layer: [0.0, 0.49, 1.0] for layer in ("a", "b")}
    for structure, scope, expected in (
        (ENTRIES, "per_layer", [[15, 8, 1], [4, 2, 1]]),  # one entry of each stays
        (ENTRIES, "global", [[19, 10, 2]]),  # one of each
        (Structure("channel"), "per_layer", [[5, 3, 1], [2, 1, 1]]),
        (block, "per_layer", [[6, 3, 1], [1, 1, 1]]),  # blocks cut by the edge count as whole
    ):
        assert kept_counts(kernels, sparsities, structure, scope) == expected
    assert kept_counts([kernel_of("a", 8, 3)], {"a": [0.0, 0.5, 0.75]}, Structure("n_m", (1, 4)), "per_layer") == [
        [4, 2, 1]
    ]
