"""Gather with a defined result for indices out of range, on any device and under XLA."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.ops.labels import known_labels

RAISE, ZEROS, CLIP = MODES = ("raise", "zeros", "clip")


def safe_gather(params: Any, indices: Any, *, mode: str = RAISE, axis: int = 0) -> tf.Tensor:
    """Return rows of a tensor by index, as `tf.gather` does, with one defined result for indices out of range.

    For these, and negative indices are among them, `tf.gather` raises on a CPU, gives zeros on a GPU and the nearest
    row under XLA. Here, on any device:

    - "zeros" gives zeros. No row gets a gradient from them.
    - "clip" gives the nearest row, the first or the last, which gets the gradient.
    - "raise" raises, eagerly and in a graph. XLA drops assertions: what it compiles gives NaN in place of the row, and
      integers, which cannot be NaN, it refuses to compile. On a GPU the assertion waits for the device at every call:
      in a step, prefer "zeros" beside a flag of your own.

    Args:
        params: tensor or variable of a known rank; at least one row along `axis`.
        indices: integers, any shape; not uint64.
        mode: "raise", "zeros" or "clip".
        axis: of `params` that the indices count along; negative from its end.

    Returns:
        Of the dtype of `params` and the shape params.shape[:axis] + indices.shape + params.shape[axis + 1:].

    Raises:
        UserError: an unknown mode, an axis that does not exist or holds no row, or indices that are not integers.
        tf.errors.InvalidArgumentError: with "raise", an index out of range; names the lowest and the highest.
    """
    if mode not in MODES:
        raise unknown_name("mode", str(mode), MODES)
    params = params if isinstance(params, tf.Variable) else tf.convert_to_tensor(params)
    indices, axis = _checked(params, tf.convert_to_tensor(indices), axis)
    size = params.shape[axis] if params.shape[axis] is not None else tf.shape(params, tf.int64)[axis]
    indices = tf.cast(indices, tf.int64)
    if mode == CLIP:
        return tf.gather(params, tf.clip_by_value(indices, 0, tf.cast(size - 1, tf.int64)), axis=axis)
    known, rows = known_labels(indices, size)
    if mode == RAISE:
        with tf.control_dependencies([_assert_known(known, indices, size, params.dtype)]):
            rows = tf.identity(rows)
    gathered = tf.gather(params, rows, axis=axis)
    known = tf.reshape(known, tf.concat([tf.shape(known), tf.ones([params.shape.rank - axis - 1], tf.int32)], 0))
    return tf.where(known, gathered, _stand_in(mode, gathered.dtype))


def _checked(params: Any, indices: tf.Tensor, axis: int) -> tuple[tf.Tensor, int]:
    """Return the indices, and the axis counted from the front."""
    if not indices.dtype.is_integer or indices.dtype == tf.uint64:
        raise UserError(f"Received indices of dtype {indices.dtype.name}; expected integers, not uint64. Cast them.")
    rank = params.shape.rank
    if rank is None or not -rank <= axis < rank:
        raise UserError(f"Received axis {axis} of a tensor of shape {params.shape}; expected one of its axes.")
    if params.shape[axis] == 0:
        raise UserError(f"Received a tensor of shape {params.shape}; expected at least one row along axis {axis}.")
    return indices, axis % rank


def _assert_known(known: tf.Tensor, indices: tf.Tensor, size: Any, dtype: tf.DType) -> tf.Operation:
    lowest, highest = tf.reduce_min(indices), tf.reduce_max(indices)
    if not _can_be_nan(dtype):
        # XLA has no strings: it refuses this op, where it would drop the assertion without a word.
        lowest = tf.strings.as_string(lowest, name="safe_gather_of_integers_cannot_raise_under_xla")
    found = ["safe_gather: indices lie within", lowest, "..", highest, "; expected 0 ..", size - 1]
    return tf.debugging.Assert(tf.reduce_all(known), found)


def _stand_in(mode: str, dtype: tf.DType) -> tf.Tensor:
    """Return the fill for indices out of range; with "raise", only XLA, which drops the assertion, ever shows it."""
    return tf.cast(float("nan"), dtype) if mode == RAISE and _can_be_nan(dtype) else tf.zeros([], dtype)


def _can_be_nan(dtype: tf.DType) -> bool:
    return bool(dtype.is_floating or dtype.is_complex)
