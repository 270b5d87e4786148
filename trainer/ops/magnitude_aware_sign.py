"""The sign times the mean magnitude of each output channel."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from trainer.ops.ste_sign import ste_sign


def magnitude_aware_sign(x: tf.Tensor, *, clip_value: float = 1.0, channel_axes: Sequence[int] = (-1,)) -> tf.Tensor:
    """Return exactly +s or -s, where s is the mean of |x| over a channel; backward s 1{|x| <= clip_value}.

    The scale is a constant to the gradient. Rastegari et al. 2016, "XNOR-Net", arXiv 1603.05279, section 3.1;
    Liu et al. 2018, "Bi-Real Net", arXiv 1808.00278.

    Args:
        x: any shape and float dtype, such as a kernel [height, width, in, out].
        clip_value: above 0; the gradient is cancelled where |x| exceeds it.
        channel_axes: axes that tell output channels apart; the mean runs over all others. (-1,) for dense and
            convolution kernels, (-2,) for transposed convolutions, (-2, -1) for depthwise ones.
    """
    x = tf.convert_to_tensor(x)
    kept = {axis % x.shape.rank for axis in channel_axes}
    reduced = [axis for axis in range(x.shape.rank) if axis not in kept]
    magnitude = tf.reduce_mean(tf.cast(tf.abs(x), tf.float32), axis=reduced, keepdims=True)
    return tf.stop_gradient(tf.cast(magnitude, x.dtype)) * ste_sign(x, clip_value=clip_value)
