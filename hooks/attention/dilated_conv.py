"""Dilated convolutions by the device's own kernels, or over the phases of a map where it has none."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="hookline")
class DilatedConv2D(keras.layers.Conv2D):
    """Convolve as `keras.layers.Conv2D` does, with padding "same", strides of 1 and the same variables, but faster.

    Under Keras, TensorFlow moves the positions of a dilated convolution into the batch, with all of the padding, since
    not every device has a kernel for the gradient. Here the kernel is used where there is one; elsewhere positions move
    without the padding.
    """

    def __init__(self, filters: int, kernel_size: Any, **options: Any) -> None:
        """Set what is convolved.

        Args:
            filters: number of output channels.
            kernel_size: as in Conv2D, odd.
            **options: those of Conv2D, but for `padding`, `strides` and `data_format`.
        """
        super().__init__(filters, kernel_size, **{**options, "padding": "same", "data_format": "channels_last"})

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        height, width, channels = (size or max(self.dilation_rate) * 4 for size in input_shape[1:])
        shapes = (1, height, width, channels), (*self.kernel_size, channels, self.filters)
        self._native = has_dilated_kernels(*shapes, tuple(self.dilation_rate), self.compute_dtype)

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if self._native:
            return tf.nn.conv2d(inputs, kernel, 1, "SAME", dilations=self.dilation_rate)
        return phase_convolution(inputs, kernel, tuple(self.dilation_rate))


def phase_convolution(maps: tf.Tensor, kernel: tf.Tensor, dilations: tuple[int, int]) -> tf.Tensor:
    """Return the dilated convolution of maps with padding "same", by one without dilation over each phase.

    Every d-th row and column of a map is a small map of its own, on which a kernel of dilation d has none. Zeros beyond
    its border are those beyond the border of the whole.

    Args:
        maps: float [batch, height, width, channels].
        kernel: [rows, columns, channels, filters], rows and columns odd.
        dilations: of rows and of columns.
    """
    if max(dilations) == 1:
        return tf.nn.conv2d(maps, kernel, 1, "SAME")
    size = tf.shape(maps)[1:3]
    crops = tf.stack([tf.zeros_like(size), -size % tf.constant(dilations)], axis=1)
    phases = tf.space_to_batch(maps, dilations, crops)
    return tf.batch_to_space(tf.nn.conv2d(phases, kernel, 1, "SAME"), dilations, crops)


@cache
def has_dilated_kernels(
    maps: tuple[int, int, int, int], kernel: tuple[int, int, int, int], dilations: tuple[int, int], dtype: str
) -> bool:
    """Return whether this device can convolve with a dilation and differentiate it; found by trying.

    TensorFlow's own kernels for a CPU have no such gradient; those of oneDNN have, and those of a GPU.

    Args:
        maps: shape [batch, height, width, channels].
        kernel: shape [rows, columns, channels, filters].
        dilations: of rows and of columns.
        dtype: of both, such as "float32".
    """

    @tf.function(autograph=False)
    def gradients() -> list[tf.Tensor]:
        x, w = tf.zeros(maps, dtype), tf.zeros(kernel, dtype)
        return tf.gradients(tf.nn.conv2d(x, w, 1, "SAME", dilations=dilations), [x, w])

    with tf.init_scope():
        try:
            gradients()
        except tf.errors.OpError:
            return False
    return True
