"""Stop the gradient of some entries of a tensor."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from hookline.trainer.ops.override_gradient import declare_override


def entry_stop_gradients(target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return `target` bit for bit, with the gradient mask * upstream: 0 where the mask is 0, also for infinity and NaN.

    The classic form, stop_gradient(|mask - 1| * target) + mask * target, turns infinity into NaN, and rounds where the
    mask is between 0 and 1. The mask itself gets no gradient.

    Args:
        target: any shape and float dtype.
        mask: bool (True: the gradient passes) or numbers (a factor, usually 0 or 1), of target's shape or one that
            broadcasts to it.

    Raises:
        ValueError: the mask's shape does not broadcast to target's.
    """
    target, mask = tf.convert_to_tensor(target), tf.convert_to_tensor(mask)
    if not tf.broadcast_static_shape(mask.shape, target.shape).is_compatible_with(target.shape):
        raise ValueError(f"The mask has the shape {mask.shape}. Expected one that broadcasts to {target.shape}.")

    @tf.custom_gradient
    def stop(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.math.multiply_no_nan(upstream, tf.cast(mask, upstream.dtype))

        return tf.identity(value), gradient

    stopped = stop(target)
    declare_override("entry_stop_gradients", [target], stopped, None)
    return stopped
