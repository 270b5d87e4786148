"""Masks for several kernels at once, against plain NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.pruning.options import Structure
from hooks.pruning.selector import MaskSelector, kept_counts
from hooks.quantization.kernel_layers import Kernel

ENTRIES = Structure("unstructured")


def kernel_of(name: str, *shape: int, axes: tuple[int, ...] = (-1,)) -> Kernel:
    return Kernel(f"{name}/kernel", name, keras.Variable(np.zeros(shape, np.float32)), axes)


def select(
    selector: MaskSelector, latent: list[np.ndarray], kept: list[np.ndarray] | None = None, update: int = 0
) -> list[np.ndarray]:
    names = [kernel.name for kernel in selector.kernels]
    masks = kept or [np.ones(each.shape, bool) for each in latent]
    values = {name: tf.constant(each, tf.float32) for name, each in zip(names, latent, strict=True)}
    found = selector(values, {name: tf.constant(each) for name, each in zip(names, masks, strict=True)}, update)
    return [each.numpy() for each in found]


def test_each_update_keeps_its_own_count_of_each_kernel() -> None:
    kernels = [kernel_of("a", 2, 3), kernel_of("b", 4, 1)]
    selector = MaskSelector(kernels, [[6, 4, 1], [3, 2, 1]], ENTRIES, "magnitude", None)
    latent = [np.float32([[1, -6, 2], [3, -4, 5]]), np.float32([[0.1], [-0.4], [0.2], [0.3]])]
    for update, (first, second) in enumerate([(0, 0.15), (2.5, 0.25), (5.5, 0.35)]):
        found = select(selector, latent, update=update)
        np.testing.assert_array_equal(found[0], np.abs(latent[0]) > first)
        np.testing.assert_array_equal(found[1], np.abs(latent[1]) > second)


@pytest.mark.parametrize(("hysteresis", "expected"), [(None, [1, 0, 0]), (1.5, [1, 0, 0]), (1.1, [0, 0, 1])])
def test_what_was_pruned_comes_back_by_the_hysteresis_or_never(hysteresis: float | None, expected: list[int]) -> None:
    selector = MaskSelector([kernel_of("a", 3, 1)], [[1]], ENTRIES, "magnitude", hysteresis)
    latent, kept = np.float32([[1.0], [0.5], [-1.2]]), np.array([[True], [True], [False]])
    (found,) = select(selector, [latent], [kept])
    assert found.ravel().tolist() == [bool(each) for each in expected]


@given(seed=st.integers(0, 99), sparsity=st.sampled_from([0.0, 0.3, 0.8, 1.0]), small=st.integers(0, 2))
@settings(max_examples=12)
def test_global_scope_keeps_the_largest_of_all_and_something_of_each(seed: int, sparsity: float, small: int) -> None:
    kernels = [kernel_of("a", 4, 3), kernel_of("b", 2, 2), kernel_of("c", 1, 5)]
    generator = np.random.default_rng(seed)
    latent = [generator.normal(size=kernel.variable.shape).astype(np.float32) for kernel in kernels]
    latent[small] *= 1e-6
    counts = kept_counts(kernels, {kernel.layer: [sparsity] for kernel in kernels}, ENTRIES, "global")
    found = select(MaskSelector(kernels, counts, ENTRIES, "magnitude", None), latent)
    assert sum(mask.sum() for mask in found) == max(3, 21 - round(sparsity * 21))
    others = [(np.abs(each), mask) for each, mask in zip(latent, found, strict=True)]
    assert all(mask[np.unravel_index(size.argmax(), size.shape)] for size, mask in others)
    free = [size[mask & (size < size.max())] for size, mask in others]  # what stays for its own size
    gone = np.concatenate([size[~mask] for size, mask in others])
    assert min(map(np.min, filter(len, free)), default=np.inf) >= gone.max(initial=0.0)


@pytest.mark.parametrize(
    ("shape", "axes", "whole"), [((2, 2, 3, 4), (-1,), (0, 1, 2)), ((2, 2, 4, 3), (-2,), (0, 1, 3))]
)
def test_channels_are_those_of_the_output_also_of_a_transposed_convolution(
    shape: tuple[int, ...], axes: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    kernel = kernel_of("a", *shape, axes=axes)
    latent = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    counts = kept_counts([kernel], {"a": [0.5]}, Structure("channel"), "per_layer")
    (mask,) = select(MaskSelector([kernel], counts, Structure("channel"), "l2", None), [latent])
    sizes = np.square(latent).sum(axis=whole)
    np.testing.assert_array_equal(mask.all(axis=whole), sizes >= np.sort(sizes)[2])
    np.testing.assert_array_equal(mask.any(axis=whole), mask.all(axis=whole))


def test_groups_lie_along_the_inputs_and_each_keeps_its_share() -> None:
    kernel, structure = kernel_of("a", 8, 3), Structure("n_m", (1, 4))
    counts = kept_counts([kernel], {"a": [0.0, 0.5, 0.75]}, structure, "per_layer")
    assert counts == [[4, 2, 1]]
    latent = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    selector = MaskSelector([kernel], counts, structure, "magnitude", None)
    for update, kept in enumerate(counts[0]):
        (mask,) = select(selector, [latent], update=update)
        assert (mask.reshape(2, 4, 3).sum(axis=1) == kept).all()


@pytest.mark.parametrize(
    ("structure", "scope", "expected"),
    [
        (ENTRIES, "per_layer", [[15, 8, 1], [4, 2, 1]]),  # the last of each stays
        (ENTRIES, "global", [[19, 10, 2]]),  # one of each
        (Structure("channel"), "per_layer", [[5, 3, 1], [2, 1, 1]]),
        (Structure("block", (2, 2)), "per_layer", [[6, 3, 1], [1, 1, 1]]),  # blocks that the edge cuts count whole
        (Structure("block", (2, 2)), "global", [[7, 4, 2]]),
    ],
)
def test_counts_are_of_units_and_never_none(structure: Structure, scope: str, expected: list[list[int]]) -> None:
    kernels = [kernel_of("a", 3, 5), kernel_of("b", 2, 2)]
    sparsities = {layer: [0.0, 0.49, 1.0] for layer in ("a", "b")}
    assert kept_counts(kernels, sparsities, structure, scope) == expected
