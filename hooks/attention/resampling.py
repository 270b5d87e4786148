"""Area resizing and dilated convolutions."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def area_resize(maps: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Return maps resized by area: each cell is the mean over the area that it covers.

    Two products with constant matrices: any ratio of sizes, up or down, any float dtype, with a gradient, also under
    XLA, which has no area resizing of its own.
    """
    rows, columns = (
        tf.constant(area_weights(given, wanted), maps.dtype)
        for given, wanted in zip(maps.shape[1:3], size, strict=True)
    )
    return tf.einsum("oh,bhwc,pw->bopc", rows, maps, columns, optimize="optimal")


def area_weights(given: int, wanted: int) -> np.ndarray:
    """Return the share that each given cell has in each wanted cell of one axis."""
    edges = np.arange(wanted + 1) * (given / wanted)
    start, stop = edges[:-1, np.newaxis], edges[1:, np.newaxis]
    cells = np.arange(given)[np.newaxis]
    overlap = np.clip(np.minimum(stop, cells + 1) - np.maximum(start, cells), 0.0, None)
    return overlap / overlap.sum(axis=1, keepdims=True)


@keras.saving.register_keras_serializable(package="hookline")
class AreaResize(keras.layers.Layer):
    """Resize images [batch, height, width, channels] by area; it has no variables."""

    def __init__(self, height: int, width: int, **options: Any) -> None:
        """Set the size."""
        super().__init__(**options)
        self.height, self.width = height, width

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return area_resize(inputs, (self.height, self.width))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], self.height, self.width, input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "height": self.height, "width": self.width}


@keras.saving.register_keras_serializable(package="hookline")
class DilatedConv2D(keras.layers.Conv2D):
    """Convolve as `keras.layers.Conv2D` does, with padding "same", strides of 1 and the same variables, but faster.

    Under Keras, TensorFlow moves the positions of a dilated convolution into the batch, with all of the padding, since
    not every device has a kernel for the gradient. Here the kernel is used where there is one; elsewhere positions move
    without the padding.
    """

    def __init__(self, filters: int, kernel_size: Any, **options: Any) -> None:
        """Set what is convolved."""
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

    Every d-th row and column of a map is a small map of its own, on which a kernel of dilation d is not dilated. Zeros
    beyond its border are those beyond the border of the whole.
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
