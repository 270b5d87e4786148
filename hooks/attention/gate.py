"""Layers of Bernoulli attention: the branch that computes A, and the gate that draws from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.attention.options import BranchOptions
from hookline.trainer.errors import UserError
from hookline.trainer.ops.estimators import bernoulli_gate, uniform_numbers
from hookline.trainer.replicas.replica import Replica, common_seed


def area_resize(maps: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Return maps [batch, height, width, channels] resized by area, with two matrix products: XLA has no such op."""
    rows, columns = (
        tf.constant(area_weights(given, wanted), maps.dtype)
        for given, wanted in zip(maps.shape[1:3], size, strict=True)
    )
    return tf.einsum("oh,bhwc,pw->bopc", rows, maps, columns, optimize="optimal")


def area_weights(given: int, wanted: int) -> np.ndarray:
    """Return the share of each given cell in each wanted cell along one axis, [wanted, given]."""
    edges = np.arange(wanted + 1) * (given / wanted)
    start, stop = edges[:-1, np.newaxis], edges[1:, np.newaxis]
    cells = np.arange(given)[np.newaxis]
    overlap = np.clip(np.minimum(stop, cells + 1) - np.maximum(start, cells), 0.0, None)
    return overlap / overlap.sum(axis=1, keepdims=True)


@keras.saving.register_keras_serializable(package="hookline")
class AreaResize(keras.layers.Layer):
    """Resize images [batch, height, width, channels] by area; it has no variables."""

    def __init__(self, height: int, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.height, self.width = height, width

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return area_resize(inputs, (self.height, self.width))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], self.height, self.width, input_shape[-1])

    def written_out(self, inputs: Any) -> Any:
        ops = keras.ops
        _, height, width, channels = inputs.shape
        rows, columns = area_weights(height, self.height), area_weights(width, self.width)
        lines = ops.matmul(rows.astype(np.float32), ops.reshape(inputs, (-1, height, width * channels)))
        cells = ops.matmul(columns.astype(np.float32), ops.reshape(lines, (-1, width, channels)))
        return ops.reshape(cells, (-1, self.height, self.width, channels))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "height": self.height, "width": self.width}


@keras.saving.register_keras_serializable(package="hookline")
class DilatedConv2D(keras.layers.Conv2D):
    """Compute a `keras.layers.Conv2D` with padding "same" and strides of 1 faster.

    TensorFlow computes dilated convolutions with space_to_batch, padding included, since not every device has a native
    gradient. This layer uses the native op if the device has its gradient; else space_to_batch without the padding, if
    the kernel size is odd.
    """

    def __init__(self, filters: int, kernel_size: Any, **options: Any) -> None:
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

    def written_out(self, inputs: Any) -> Any:
        plain = keras.layers.Conv2D.from_config(self.get_config())
        plain._kernel, plain.bias = self._kernel, self.bias
        plain.input_spec, plain.built = self.input_spec, True
        return plain(inputs)


def phase_convolution(maps: tf.Tensor, kernel: tf.Tensor, dilations: tuple[int, int]) -> tf.Tensor:
    """Return the dilated convolution with padding "same", computed without dilation on every d-th row and column."""
    if max(dilations) == 1:
        return tf.nn.conv2d(maps, kernel, 1, "SAME")
    if not all(size % 2 for size in kernel.shape[:2]):  # a phase would need other padding
        return tf.nn.convolution(maps, kernel, padding="SAME", dilations=dilations)
    size = tf.shape(maps)[1:3]
    crops = tf.stack([tf.zeros_like(size), -size % tf.constant(dilations)], axis=1)
    phases = tf.space_to_batch(maps, dilations, crops)
    return tf.batch_to_space(tf.nn.conv2d(phases, kernel, 1, "SAME"), dilations, crops)


@cache
def has_dilated_kernels(
    maps: tuple[int, int, int, int], kernel: tuple[int, int, int, int], dilations: tuple[int, int], dtype: str
) -> bool:
    """Return whether this device can differentiate a dilated convolution: a GPU can, a CPU only with oneDNN."""

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


@keras.saving.register_keras_serializable(package="hookline")
class AttentionMap(keras.layers.Layer):
    """Return A = sigmoid(logits / temperature), in float32: bfloat16 would round values above 0.998 to 1."""

    def __init__(self, *, temperature: float = 1.0, **options: Any) -> None:
        super().__init__(**{"dtype": "float32", **options})
        self.temperature = temperature

    def call(self, inputs: Any) -> Any:
        return keras.ops.sigmoid(keras.ops.cast(inputs, "float32") / self.temperature)

    written_out = call

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "temperature": self.temperature}


def make_branch(options: BranchOptions, *, temperature: float, name: str) -> keras.Sequential:
    """Return convolutions to one channel; the last kernel starts at 0, so that A starts at `initial_keep_rate`."""
    shared: dict[str, Any] = {"kernel_size": options.kernel_size, "activation": options.activation}
    layers = [
        DilatedConv2D(filters, dilation_rate=dilation, name=f"{name}_conv_{number}", **shared)
        for number, (filters, dilation) in enumerate(zip(options.filters, options.dilations, strict=True), start=1)
    ]
    odds = options.initial_keep_rate / (1.0 - options.initial_keep_rate)
    initial = keras.initializers.Constant(temperature * math.log(odds))
    last = keras.layers.Conv2D(1, 1, kernel_initializer="zeros", bias_initializer=initial, name=f"{name}_logits")
    return keras.Sequential([*layers, last], name=f"{name}_branch")


def branch_logits(branch: keras.layers.Layer, seen: Any, wanted: tuple[int | None, ...]) -> Any:
    """Return the logits of A that a branch computes from a map."""
    logits = branch(seen)
    found = tuple(logits.shape) if isinstance(logits, keras.KerasTensor) else type(logits).__name__
    if found != wanted:
        raise UserError(
            f"The branch '{branch.name}' returns {found}. Expected logits {wanted}: end it with a convolution of one "
            "unit and no sigmoid."
        )
    return logits


@keras.saving.register_keras_serializable(package="hookline")
class BernoulliGate(keras.layers.Layer):
    """Return y = r * x and r, for features x [batch, height, width, channels] and A [batch, height, width, 1].

    The options are those of `BernoulliAttention`. The seed of the draws is a variable, so runs resume exactly.
    """

    role = "gate"  # identifies it in a graph without importing this module

    def __init__(
        self, *, mode: str = "bernoulli", eval_mode: str = "expectation", seed: int | None = None, **options: Any
    ) -> None:
        super().__init__(**{**options, "autocast": False})  # A stays float32 with features of lower precision
        self.mode = mode
        self.eval_mode = eval_mode
        self.seed = seed
        self._replica = Replica()
        if mode == "bernoulli":
            self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        features, attention = inputs
        if self.mode == "bernoulli" and (training or self.eval_mode == "sample"):
            seed = common_seed(self.seed_generator.next(), self._replica)
            return list(bernoulli_gate(features, attention, seed=seed, uniform=self._uniform))
        mask = attention
        if self.mode == "bernoulli" and self.eval_mode == "threshold":
            mask = tf.cast(attention >= 0.5, attention.dtype)
        return [tf.cast(mask, features.dtype) * features, mask]

    @contextmanager
    def drawing_for(self, replica: Replica) -> Iterator[None]:
        """Draw only a replica's part of the whole batch's draw inside the block."""
        before, self._replica = self._replica, replica
        try:
            yield
        finally:
            self._replica = before

    def _uniform(self, like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if self._replica.count == 1:
            return uniform_numbers(like, seed)
        return self._replica.part(lambda shape: tf.random.stateless_uniform(shape, seed), like.shape)

    def compute_output_spec(self, inputs: list[Any], training: bool = False) -> list[Any]:
        return [keras.KerasTensor(tensor.shape, dtype=tensor.dtype) for tensor in inputs]

    def written_out(self, inputs: list[Any]) -> list[Any]:
        features, mask = inputs
        if self.mode == "bernoulli" and self.eval_mode == "threshold":
            mask = keras.ops.cast(mask >= 0.5, "float32")
        # A layer, not an operation, so that a float32 copy of the model computes it in float32.
        half = features.dtype if features.dtype in ("float16", "bfloat16") else None
        multiply = keras.layers.Multiply(name=self.name, dtype=f"mixed_{half}" if half else features.dtype)
        return [multiply([features, mask]), mask]

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "mode": self.mode, "eval_mode": self.eval_mode, "seed": self.seed}
        config.pop("autocast", None)
        return config


OWN = (AreaResize, DilatedConv2D, AttentionMap, BernoulliGate)
"""Layers of attention; `written_out` computes them with layers and operations of Keras."""
