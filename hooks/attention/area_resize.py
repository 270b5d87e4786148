"""Maps resized by area: each cell of the result is the mean of what it covers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def area_resize(maps: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Return maps of another size, of which each cell is the mean over the area that it covers.

    Two products with constant matrices: any ratio of sizes, up or down, any float dtype, with a gradient, also under
    XLA, which has no area resizing of its own.

    Args:
        maps: [batch, height, width, channels], height and width known.
        size: height and width of the result.
    """
    rows, columns = (
        tf.constant(area_weights(given, wanted), maps.dtype)
        for given, wanted in zip(maps.shape[1:3], size, strict=True)
    )
    return tf.einsum("oh,bhwc,pw->bopc", rows, maps, columns, optimize="optimal")


def area_weights(given: int, wanted: int) -> np.ndarray:
    """Return the share that each given cell has in each wanted cell of one axis.

    Args:
        given: number of cells.
        wanted: number of cells of the result.

    Returns:
        float64 [wanted, given]; every row sums to 1.
    """
    edges = np.arange(wanted + 1) * (given / wanted)
    start, stop = edges[:-1, np.newaxis], edges[1:, np.newaxis]
    cells = np.arange(given)[np.newaxis]
    overlap = np.clip(np.minimum(stop, cells + 1) - np.maximum(start, cells), 0.0, None)
    return overlap / overlap.sum(axis=1, keepdims=True)


@keras.saving.register_keras_serializable(package="hookline")
class AreaResize(keras.layers.Layer):
    """Resize images [batch, height, width, channels] by area; it has no variables."""

    def __init__(self, height: int, width: int, **options: Any) -> None:
        """Set the size.

        Args:
            height: of the result.
            width: of the result.
            **options: those of every Keras layer, such as name and dtype.
        """
        super().__init__(**options)
        self.height, self.width = height, width

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return area_resize(inputs, (self.height, self.width))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], self.height, self.width, input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "height": self.height, "width": self.width}
