"""Select the kernel entries that a mask update keeps.

Kernels are treated as matrices [inputs, outputs]: for a convolution, the inputs are height, width and input channel.
A unit is a group of entries that is kept or pruned as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from hookline.hooks.kernels import Kernel
from hookline.hooks.pruning.settings import Structure, kept_units


def matrix_shape(kernel: Kernel) -> tuple[int, int]:
    """Return the shape [inputs, outputs] of a kernel's matrix."""
    outputs = math.prod(kernel.variable.shape[axis] for axis in kernel.channel_axes)
    return kernel.size // max(1, outputs), outputs


def to_matrix(values: tf.Tensor, kernel: Kernel) -> tf.Tensor:
    """Return values of a kernel's shape as a matrix [inputs, outputs]; the other axes keep their order."""
    return tf.reshape(tf.transpose(values, _order(kernel)), matrix_shape(kernel))


def from_matrix(matrix: tf.Tensor, kernel: Kernel) -> tf.Tensor:
    """Return the inverse of `to_matrix`."""
    shape, order = kernel.variable.shape, _order(kernel)
    back = [order.index(axis) for axis in range(len(shape))]
    return tf.transpose(tf.reshape(matrix, [shape[axis] for axis in order]), back)


def _order(kernel: Kernel) -> list[int]:
    rank = len(kernel.variable.shape)
    channels = [axis % rank for axis in kernel.channel_axes]
    return [axis for axis in range(rank) if axis not in channels] + channels


def unit_shape(shape: Sequence[int], structure: Structure) -> tuple[int, ...]:
    """Return the shape of the array of a matrix's units."""
    inputs, outputs = shape
    if structure.name == "channel":
        return (outputs,)
    if structure.name == "block":
        rows, columns = structure.sizes
        return (-(-inputs // rows), -(-outputs // columns))
    return (inputs, outputs)


def unit_scores(matrix: tf.Tensor, structure: Structure, criterion: str) -> tf.Tensor:
    """Return the mean magnitude of each unit, or the root mean square (L2): float32 of `unit_shape`."""
    # Means instead of norms, so that blocks cut off at the matrix's edge are at no disadvantage.
    magnitude = tf.abs(tf.cast(matrix, tf.float32))
    if structure.name in ("unstructured", "n_m"):
        return magnitude
    total = _unit_sums(tf.square(magnitude) if criterion == "l2" else magnitude, structure)
    mean = total / _unit_sums(tf.ones_like(magnitude), structure)
    return tf.sqrt(mean) if criterion == "l2" else mean


def _unit_sums(matrix: tf.Tensor, structure: Structure) -> tf.Tensor:
    if structure.name == "channel":
        return tf.reduce_sum(matrix, axis=0)
    rows, columns = structure.sizes
    down, across = unit_shape(matrix.shape.as_list(), structure)
    padding = [[0, down * rows - matrix.shape[0]], [0, across * columns - matrix.shape[1]]]
    blocks = tf.reshape(tf.pad(matrix, padding), [down, rows, across, columns])
    return tf.reduce_sum(blocks, axis=[1, 3])


def spread_units(kept: tf.Tensor, shape: Sequence[int], structure: Structure) -> tf.Tensor:
    """Return the mask of a matrix, bool [inputs, outputs], from that of its units."""
    inputs, outputs = shape
    if structure.name == "channel":
        return tf.broadcast_to(kept, [inputs, outputs])
    if structure.name == "block":
        rows, columns = structure.sizes
        return tf.repeat(tf.repeat(kept, rows, axis=0), columns, axis=1)[:inputs, :outputs]
    return kept


def keep_largest(scores: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """Return a mask that keeps exactly the `count` largest scores; among equal scores, the first."""
    keys, count = _ordered_bits(scores), tf.cast(count, tf.int64)
    threshold = _largest_with(keys, count)
    above, at = keys > threshold, keys == threshold
    left = count - tf.math.count_nonzero(above)
    return tf.logical_or(above, tf.logical_and(at, tf.cumsum(tf.cast(at, tf.int64)) <= left))


def _ordered_bits(scores: tf.Tensor) -> tf.Tensor:
    """Return int32 keys that sort like the scores; NaN sorts before or after all numbers, depending on its sign."""
    scores = tf.cast(scores, tf.float32)
    bits = tf.bitcast(tf.where(scores == 0, tf.zeros_like(scores), scores), tf.int32)  # -0 and 0 are equal
    return tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.int32.max), bits)


def _largest_with(keys: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return the largest int32 that at least `count` keys reach, found bit by bit in a tenth of the time of a sort."""

    def settle_bit(bit: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        higher = tf.bitwise.bitwise_xor(found, tf.bitwise.left_shift(1, bit))
        return bit - 1, tf.where(tf.math.count_nonzero(keys >= higher) >= count, higher, found)

    start = tf.constant(31), tf.constant(tf.int32.min)
    return tf.while_loop(lambda bit, found: bit >= 0, settle_bit, start)[1]


def keep_in_groups(scores: tf.Tensor, count: tf.Tensor | int, group: int) -> tf.Tensor:
    """Return a mask that keeps the `count` largest of every `group` consecutive scores in a column; ties: the first."""
    inputs, outputs = scores.shape.as_list()
    grouped = tf.transpose(tf.reshape(scores, [inputs // group, group, outputs]), [0, 2, 1])
    ranks = tf.argsort(tf.argsort(grouped, direction="DESCENDING", stable=True), stable=True)
    kept = tf.transpose(ranks < tf.cast(count, tf.int32), [0, 2, 1])
    return tf.reshape(kept, [inputs, outputs])


def protect_largest(scores: tf.Tensor) -> tf.Tensor:
    """Return scores with the largest, the first among equals, set to infinity, so that part of every kernel stays."""
    positions = tf.range(tf.shape(scores)[0])
    return tf.where(positions == tf.argmax(scores, output_type=tf.int32), math.inf, scores)


@dataclass(frozen=True)
class MaskSelector:
    """Choose the units that an update keeps."""

    kernels: Sequence[Kernel]
    counts: Sequence[Sequence[int]]
    """How many units each update keeps: a list for each kernel or, in global scope, one for all. With n:m, units kept
    in every group."""
    structure: Structure
    criterion: str
    hysteresis: float | None  # factor that favors kept entries; None if pruned entries never return

    def __call__(
        self, latent: Mapping[str, tf.Tensor], masks: Mapping[str, tf.Tensor], update: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return the new mask of each kernel, bool, in the kernel's shape."""
        scores = [self._scores(kernel, latent[kernel.name], masks[kernel.name]) for kernel in self.kernels]
        counts = [tf.gather(tf.constant(each, tf.int32), update) for each in self.counts]
        if self.structure.name == "n_m":
            group = self.structure.sizes[1]
            kept = [keep_in_groups(each, count, group) for each, count in zip(scores, counts, strict=True)]
        elif len(counts) == len(scores):
            kept = [
                tf.reshape(keep_largest(tf.reshape(each, [-1]), count), each.shape)
                for each, count in zip(scores, counts, strict=True)
            ]
        else:
            kept = self._largest_of_all(scores, counts[0])
        return [
            from_matrix(spread_units(each, matrix_shape(kernel), self.structure), kernel)
            for kernel, each in zip(self.kernels, kept, strict=True)
        ]

    def _scores(self, kernel: Kernel, latent: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        matrix, kept = (to_matrix(tensor, kernel) for tensor in (latent, mask))
        scores = unit_scores(matrix, self.structure, self.criterion)
        was_kept = unit_scores(tf.cast(kept, tf.float32), self.structure, "magnitude") > 0
        if self.hysteresis is None:
            return tf.where(was_kept, scores, -1.0)  # pruned entries stay below all kept ones, even zeros
        # A pruned p replaces a kept w if p > hysteresis * w: the two thresholds of Guo et al. 2016 (arXiv 1608.04493,
        # equation 3), placed so that the count is exact.
        return tf.where(was_kept, scores * self.hysteresis, scores)

    @staticmethod
    def _largest_of_all(scores: Sequence[tf.Tensor], count: tf.Tensor) -> list[tf.Tensor]:
        flat = [protect_largest(tf.reshape(each, [-1])) for each in scores]
        parts = tf.split(keep_largest(tf.concat(flat, axis=0), count), [math.prod(each.shape) for each in scores])
        return [tf.reshape(part, each.shape) for part, each in zip(parts, scores, strict=True)]


def kept_counts(
    kernels: Sequence[Kernel], sparsities: Mapping[str, Sequence[float]], structure: Structure, scope: str
) -> list[list[int]]:
    """Return the `counts` of a MaskSelector."""
    units = [math.prod(unit_shape(matrix_shape(kernel), structure)) for kernel in kernels]
    if structure.name == "n_m":
        units = [structure.sizes[1] for _ in kernels]
    if scope == "global":
        values = sparsities[kernels[0].layer]
        return [[kept_units(sum(units), value, minimum=len(kernels)) for value in values]]
    return [
        [kept_units(count, value) for value in sparsities[kernel.layer]]
        for kernel, count in zip(kernels, units, strict=True)
    ]
