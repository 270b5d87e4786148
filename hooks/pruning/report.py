"""What pruning left: exact zeros per layer, in weights, masks, slots and averages, and the size in bytes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hooks.masking.targets import Target
from hooks.optimizer import AVERAGE
from hooks.pruning.targets import kernel_matrix_shape
from hooks.quantization.kernel_layers import Kernel
from trainer.network import Network

VALUE_BITS, POINTER_BITS = 32, 32


def column_bits(columns: int) -> int:
    """Return the bits of a column index: ceil(log2(columns)).

    Args:
        columns: of the matrix, at least 1.
    """
    return (columns - 1).bit_length()


def csr_bytes(inputs: int, outputs: int, kept: int) -> int:
    """Return the bytes of a matrix in compressed sparse rows (CSR).

    A kept entry takes its float32 value and a column index of ceil(log2(outputs)) bits, packed; each row, and the end,
    takes a pointer of 4 bytes. A row is one input: of a convolution, one (height, width, input channel).

    Args:
        inputs: rows.
        outputs: columns.
        kept: entries that are not zero.
    """
    return math.ceil((kept * (VALUE_BITS + column_bits(outputs)) + POINTER_BITS * (inputs + 1)) / 8)


def stored_bytes(kernel: Kernel, values: Any) -> int:
    """Return the bytes of a kernel as it would be shipped: CSR, or dense where that is smaller.

    Args:
        kernel: any.
        values: of its shape, as they would be shipped.
    """
    inputs, outputs = kernel_matrix_shape(kernel)
    return min(csr_bytes(inputs, outputs, count_kept(values)), 4 * kernel.size)


def count_kept(values: Any) -> int:
    """Return how many entries are not exactly zero.

    Args:
        values: a variable, tensor or array.
    """
    return int(np.count_nonzero(tf.convert_to_tensor(values).numpy()))


def layer_report(
    network: Network,
    kernels: Sequence[Kernel],
    masks: Mapping[str, tf.Variable],
    others: Sequence[Target] = (),
) -> dict[str, Any]:
    """Return what is left of each layer, of all pruned kernels together, and of all kernels of the network.

    Args:
        network: that the kernels belong to.
        kernels: pruned.
        masks: bool, by kernel name.
        others: kernels that are not pruned.

    Returns:
        {"layers": rows, "total": row, "network": row}. The total is a row of the layers, too, where there are several,
        and so is the network, of which nothing but weights is counted, where it has other kernels. A row has "layer",
        "entries", "kept" (not zero), "times_fewer" (their ratio), the shares of zeros in the weights ("sparsity"), the
        "mask", each slot of the optimizer and the "moving_average", and "dense_bytes" and "sparse_bytes" (CSR).
    """
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.layer].append(kernel)
    rows = [{"layer": path, **_row(network, group, masks)} for path, group in groups.items()]
    total = {"layer": "total", **_row(network, kernels, masks)}
    whole = {"layer": "network", **_whole(total, others)}
    layers = [*rows, *([total] if len(rows) > 1 else []), *([whole] if others else [])]
    return {"layers": layers, "total": total, "network": whole}


def _whole(total: Mapping[str, Any], others: Sequence[Target]) -> dict[str, Any]:
    entries = total["entries"] + sum(each.size for each in others)
    return _counts(entries, total["kept"] + sum(count_kept(each.variable.value) for each in others))


def _counts(entries: int, kept: int) -> dict[str, Any]:
    return {
        "entries": entries,
        "kept": kept,
        "times_fewer": round(entries / kept, 3) if kept else None,
        "sparsity": round(1.0 - kept / entries, 6),
    }


def _row(network: Network, kernels: Sequence[Kernel], masks: Mapping[str, tf.Variable]) -> dict[str, Any]:
    kept: dict[str, int] = defaultdict(int)
    sparse = 0
    for kernel in kernels:
        for name, variable in _parts(network, kernel, masks[kernel.name]).items():
            kept[name] += count_kept(variable)
        sparse += csr_bytes(*kernel_matrix_shape(kernel), count_kept(kernel.variable.value))
    entries = sum(kernel.size for kernel in kernels)
    return {
        **_counts(entries, kept["sparsity"]),
        **{name: round(1.0 - count / entries, 6) for name, count in kept.items()},
        "dense_bytes": 4 * entries,
        "sparse_bytes": sparse,
    }


def _parts(network: Network, kernel: Kernel, mask: tf.Variable) -> dict[str, Any]:
    """Return what belongs to a kernel, under the names that a row has for its sparsity."""
    slots = {
        "moving_average" if attribute == AVERAGE else attribute.strip("_"): slot.value
        for attribute, slot in network.optimizer_slots(kernel.name).items()
    }
    return {"sparsity": kernel.variable.value, "mask": mask, **slots}
