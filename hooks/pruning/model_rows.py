"""Weights, zeros and bytes of a model, kernel layer by kernel layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras

from hooks.pruning.criteria import matrix_shape
from hooks.pruning.report import VALUE_BITS, count_kept, csr_bytes
from hooks.quantization.kernel_layers import KERNEL_NAMES, channel_axes, is_kernel_layer
from trainer.select import layer_paths

OTHERS, TOTAL = "others", "total"


@dataclass(frozen=True)
class Row:
    """Hold the counts of one layer.

    Attributes:
        layer: its path; "others" for what is no kernel, such as biases and batch norms; "total" for everything.
        weights: entries.
        zeros: entries that are exactly 0.
        dense_bytes: as float32.
        sparse_bytes: of kernels as compressed sparse rows (CSR) with packed column indices, of others as float32.
    """

    layer: str
    weights: int
    zeros: int
    dense_bytes: int
    sparse_bytes: int

    @property
    def sparsity(self) -> float:
        """Return the share of zeros."""
        return self.zeros / self.weights if self.weights else 0.0


def model_rows(model: keras.Model) -> list[Row]:
    """Return a row for each layer with kernels, one for all other weights, and their sum.

    Args:
        model: built.
    """
    rows, counted = [], set()
    for path, layer in layer_paths(model).items():
        if is_kernel_layer(layer):
            kernels = [each for each in layer.weights if each.name in KERNEL_NAMES]
            counted |= {id(kernel) for kernel in kernels}
            rows.append(_add(path, [_kernel_row(layer, kernel) for kernel in kernels]))
    others = [each for each in model.weights if id(each) not in counted]
    rows.append(_add(OTHERS, [_row(each, each.shape, None) for each in others]))
    return [*rows, _add(TOTAL, rows)]


def _kernel_row(layer: keras.Layer, kernel: keras.Variable) -> Row:
    return _row(kernel, kernel.shape, matrix_shape(tuple(kernel.shape), channel_axes(layer, kernel)))


def _row(variable: keras.Variable, shape: tuple[int, ...], matrix: tuple[int, int] | None) -> Row:
    weights, kept = math.prod(shape), count_kept(variable.value)
    dense = weights * VALUE_BITS // 8
    return Row("", weights, weights - kept, dense, csr_bytes(*matrix, kept) if matrix else dense)


def _add(layer: str, rows: list[Row]) -> Row:
    return Row(
        layer,
        weights=sum(row.weights for row in rows),
        zeros=sum(row.zeros for row in rows),
        dense_bytes=sum(row.dense_bytes for row in rows),
        sparse_bytes=sum(row.sparse_bytes for row in rows),
    )
