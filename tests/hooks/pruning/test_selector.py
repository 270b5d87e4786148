"""Masks for several kernels at once, against plain NumPy."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.kernels import Kernel
from hookline.hooks.pruning.options import Structure
from hookline.hooks.pruning.selector import MaskSelector, kept_counts

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


def test_what_was_pruned_comes_back_by_the_hysteresis_or_never() -> None:
    latent, kept = np.float32([[1.0], [0.5], [-1.2]]), np.array([[True], [True], [False]])
    for hysteresis, expected in ((None, 0), (1.5, 0), (1.1, 2)):
        (found,) = select(
            MaskSelector([kernel_of("a", 3, 1)], [[1]], ENTRIES, "magnitude", hysteresis), [latent], [kept]
        )
        assert np.flatnonzero(found).tolist() == [expected]


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


def test_counts_are_of_units_and_never_none() -> None:
    kernels, block = [kernel_of("a", 3, 5), kernel_of("b", 2, 2)], Structure("block", (2, 2))
    sparsities = {layer: [0.0, 0.49, 1.0] for layer in ("a", "b")}
    for structure, scope, expected in (
        (ENTRIES, "per_layer", [[15, 8, 1], [4, 2, 1]]),  # the last of each stays
        (ENTRIES, "global", [[19, 10, 2]]),  # one of each
        (Structure("channel"), "per_layer", [[5, 3, 1], [2, 1, 1]]),
        (block, "per_layer", [[6, 3, 1], [1, 1, 1]]),  # blocks that the edge cuts count whole
    ):
        assert kept_counts(kernels, sparsities, structure, scope) == expected
    assert kept_counts([kernel_of("a", 8, 3)], {"a": [0.0, 0.5, 0.75]}, Structure("n_m", (1, 4)), "per_layer") == [
        [4, 2, 1]
    ]
