"""Which entries of a kernel stay: pure functions from magnitudes to masks.

Kernels are treated as matrices [inputs, outputs]: for a convolution, the inputs are height, width and input channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from hookline.hooks.pruning.options import Structure

CRITERIA = ("magnitude", "l2")


def matrix_shape(shape: Sequence[int], channel_axes: Sequence[int]) -> tuple[int, int]:
    """Return the shape [inputs, outputs] of a kernel's matrix."""
    outputs = math.prod(shape[axis] for axis in channel_axes)
    return math.prod(shape) // max(1, outputs), outputs


def to_matrix(kernel: tf.Tensor, channel_axes: Sequence[int]) -> tf.Tensor:
    """Return a kernel as a matrix [inputs, outputs]; the other axes keep their order."""
    order = _order(kernel.shape.rank, channel_axes)
    return tf.reshape(tf.transpose(kernel, order), matrix_shape(kernel.shape.as_list(), channel_axes))


def from_matrix(matrix: tf.Tensor, shape: Sequence[int], channel_axes: Sequence[int]) -> tf.Tensor:
    """Return the kernel of a matrix; the inverse of `to_matrix`."""
    order = _order(len(shape), channel_axes)
    back = [order.index(axis) for axis in range(len(shape))]
    return tf.transpose(tf.reshape(matrix, [shape[axis] for axis in order]), back)


def _order(rank: int, channel_axes: Sequence[int]) -> list[int]:
    channels = [axis % rank for axis in channel_axes]
    return [axis for axis in range(rank) if axis not in channels] + channels


def unit_shape(shape: Sequence[int], structure: Structure) -> tuple[int, ...]:
    """Return the shape of a matrix's units: what is kept or pruned as a whole."""
    inputs, outputs = shape
    if structure.name == "channel":
        return (outputs,)
    if structure.name == "block":
        rows, columns = structure.sizes
        return (-(-inputs // rows), -(-outputs // columns))
    return (inputs, outputs)


def unit_scores(matrix: tf.Tensor, structure: Structure, criterion: str) -> tf.Tensor:
    """Return how much each unit weighs, of shape `unit_shape`, float32 of at least 0.

    A unit of several entries weighs their mean magnitude (L1 norm over their number) or their root mean square (L2).
    So units of one size are ordered by their norm, and blocks cut by the matrix's edge are not at a disadvantage.
    """
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
    """Return the mask of a matrix, bool [inputs, outputs], in which every entry follows its unit."""
    inputs, outputs = shape
    if structure.name == "channel":
        return tf.broadcast_to(kept, [inputs, outputs])
    if structure.name == "block":
        rows, columns = structure.sizes
        return tf.repeat(tf.repeat(kept, rows, axis=0), columns, axis=1)[:inputs, :outputs]
    return kept


def keep_largest(scores: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """Return a mask that keeps exactly `count` of the scores, the largest; of equal ones, the first."""
    keys, count = _ordered_bits(scores), tf.cast(count, tf.int64)
    threshold = _largest_with(keys, count)
    above, at = keys > threshold, keys == threshold
    left = count - tf.math.count_nonzero(above)
    return tf.logical_or(above, tf.logical_and(at, tf.cumsum(tf.cast(at, tf.int64)) <= left))


def _ordered_bits(scores: tf.Tensor) -> tf.Tensor:
    """Return int32 in the order of the scores; NaN comes before or after all numbers, by its sign."""
    scores = tf.cast(scores, tf.float32)
    bits = tf.bitcast(tf.where(scores == 0, tf.zeros_like(scores), scores), tf.int32)  # -0 and 0 are equal
    return tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.int32.max), bits)


def _largest_with(keys: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return the largest int32 that at least `count` keys reach: bit by bit, in a tenth of the time of a sort."""

    def settle_bit(bit: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        higher = tf.bitwise.bitwise_xor(found, tf.bitwise.left_shift(1, bit))
        return bit - 1, tf.where(tf.math.count_nonzero(keys >= higher) >= count, higher, found)

    start = tf.constant(31), tf.constant(tf.int32.min)
    return tf.while_loop(lambda bit, found: bit >= 0, settle_bit, start)[1]


def keep_in_groups(scores: tf.Tensor, count: tf.Tensor | int, group: int) -> tf.Tensor:
    """Return a mask that keeps exactly `count` of every `group` consecutive scores of a column; ties in order."""
    inputs, outputs = scores.shape.as_list()
    grouped = tf.transpose(tf.reshape(scores, [inputs // group, group, outputs]), [0, 2, 1])
    ranks = tf.argsort(tf.argsort(grouped, direction="DESCENDING", stable=True), stable=True)
    kept = tf.transpose(ranks < tf.cast(count, tf.int32), [0, 2, 1])
    return tf.reshape(kept, [inputs, outputs])


def stay_pruned(scores: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """Return scores that rank everything pruned before below everything kept, even kept zeros."""
    return tf.where(kept, scores, -1.0)


def favour_kept(scores: tf.Tensor, kept: tf.Tensor, hysteresis: float) -> tf.Tensor:
    """Return scores in which units kept so far weigh `hysteresis` times as much.

    Among the largest of these, a pruned unit p takes the place of a kept unit w only where p > hysteresis * w: the two
    thresholds b = hysteresis * a of Guo et al. 2016 (arXiv 1608.04493, equation 3), placed so that the count is exact.
    """
    return tf.where(kept, scores * hysteresis, scores)


def protect_largest(scores: tf.Tensor) -> tf.Tensor:
    """Return scores with the largest, the first among equals, set to infinity: part of every kernel stays."""
    positions = tf.range(tf.shape(scores)[0])
    return tf.where(positions == tf.argmax(scores, output_type=tf.int32), math.inf, scores)
