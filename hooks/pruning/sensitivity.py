"""Sensitivity of a network to pruning single layers, and the sparsities that it suggests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import Kernel
from hookline.hooks.pruning.selector import keep_largest
from hookline.hooks.pruning.settings import kept_units


@dataclass(frozen=True)
class Scan:
    """Hold the measurements of a sensitivity scan."""

    baseline: float  # the metric without pruning
    entries: dict[str, int]  # entries of each layer, by path
    values: dict[str, dict[float, float]]  # the metric with one layer pruned: by path, by sparsity
    smaller_is_better: bool  # whether the metric is a loss or an error

    def loss(self, path: str, sparsity: float) -> float:
        """Return how much worse the metric is with a layer pruned; below 0 if it is better."""
        change = self.values[path][sparsity] - self.baseline
        return change if self.smaller_is_better else -change

    def suggest(self, tolerance: float) -> dict[str, float]:
        """Return, for each layer, the largest sparsity up to which no loss exceeds the tolerance; 0 if none."""
        suggested = {}
        for path, values in self.values.items():
            suggested[path] = 0.0
            for sparsity in sorted(values):
                if self.loss(path, sparsity) > tolerance + 1e-9:
                    break
                suggested[path] = sparsity
        return suggested

    def total(self, sparsities: Mapping[str, float]) -> float:
        """Return the sparsity of all layers together."""
        pruned = sum(round(share * self.entries[path]) for path, share in sparsities.items())
        return pruned / sum(self.entries.values())

    def reach(self, target: float) -> tuple[float, dict[str, float]] | None:
        """Return the smallest tolerance whose suggestion reaches a total sparsity, with the suggestion; or None."""
        losses = {max(0.0, self.loss(path, sparsity)) for path, each in self.values.items() for sparsity in each}
        for tolerance in sorted({0.0, *losses}):
            suggested = self.suggest(tolerance)
            if self.total(suggested) >= target - 1e-9:
                return tolerance, suggested
        return None


def scan_layers(
    kernels: Sequence[Kernel], sparsities: Sequence[float], evaluate: Callable[[], float], *, smaller_is_better: bool
) -> Scan:
    """Prune each layer alone to each sparsity, and evaluate. The kernels are restored afterwards."""

    def measure(group: Sequence[Kernel], sparsity: float) -> float:
        with pruned(group, sparsity):
            return evaluate()

    layers: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        layers.setdefault(kernel.layer, []).append(kernel)
    return Scan(
        baseline=evaluate(),
        entries={path: sum(kernel.size for kernel in group) for path, group in layers.items()},
        values={path: {each: measure(group, each) for each in sparsities} for path, group in layers.items()},
        smaller_is_better=smaller_is_better,
    )


def kept_from_zero(kernels: Sequence[Kernel], shipped: Callable[[], Mapping[str, np.ndarray]]) -> list[str]:
    """Return the layers in which other hooks round pruned entries to nonzero values."""
    with pruned(kernels, 0.5):
        values = shipped()
        return sorted({each.layer for each in kernels if np.any(values[each.name][each.variable.numpy() == 0])})


@contextmanager
def pruned(kernels: Sequence[Kernel], sparsity: float) -> Iterator[None]:
    """Prune kernels by magnitude inside the block, and restore them afterwards."""
    before = [kernel.variable.numpy() for kernel in kernels]
    try:
        for kernel, values in zip(kernels, before, strict=True):
            kept = keep_largest(tf.reshape(tf.abs(values), [-1]), kept_units(values.size, sparsity))
            kernel.variable.assign(tf.where(tf.reshape(kept, values.shape), values, 0.0))
        yield
    finally:
        for kernel, values in zip(kernels, before, strict=True):
            kernel.variable.assign(values)
