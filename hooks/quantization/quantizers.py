"""The quantizers, by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from hookline.hooks.options import parse_named
from hookline.trainer.config.schema import fits
from hookline.trainer.errors import UserError
from hookline.trainer.ops import estimators


def most_values(values: np.ndarray, channel_axes: Sequence[int] = ()) -> int:
    """Return the number of distinct values of an array or, with channel axes, of the channel that has the most."""
    channels = [axis % values.ndim for axis in channel_axes]
    count = int(np.prod([values.shape[axis] for axis in channels], dtype=int))
    rows = np.moveaxis(values.astype(np.float64), channels, range(len(channels))).reshape(count, -1)
    return max(len(np.unique(row)) for row in rows)


BIAS, MANTISSA_BITS = 127, 23
SMALLEST, LARGEST = -126, 127


def power_of_two(exponents: tf.Tensor) -> tf.Tensor:
    """Return 2^k exactly."""
    biased = tf.clip_by_value(exponents, SMALLEST, LARGEST) + BIAS
    return tf.bitcast(tf.bitwise.left_shift(biased, MANTISSA_BITS), tf.float32)


def nearest_exponent(magnitudes: tf.Tensor) -> tf.Tensor:
    """Return floor(log2(4 x / 3)) exactly: adding half of a power carries into the exponent from 1.5 on."""
    bits = tf.bitcast(tf.cast(magnitudes, tf.float32), tf.int32)
    return tf.bitwise.right_shift(bits + 2 ** (MANTISSA_BITS - 1), MANTISSA_BITS) - BIAS


def level_exponents(weights: tf.Tensor, bits: int) -> tf.Tensor:
    """Return the exponents n1 = floor(log2(4 max|W| / 3)) and n2 = n1 + 1 - 2^(bits - 1) / 2 of a kernel's levels."""
    largest = tf.reduce_max(tf.abs(tf.cast(weights, tf.float32)))
    first = tf.where(largest > 0, nearest_exponent(largest), 0)
    last = first + 1 - 2 ** (bits - 2)
    return tf.clip_by_value(tf.stack([first, last]), SMALLEST, LARGEST)


def round_to_levels(weights: tf.Tensor, exponents: tf.Tensor) -> tf.Tensor:
    """Return weights rounded to 0 or +-2^k with n2 <= k <= n1, as in `IncrementalQuantization`."""
    magnitudes = tf.abs(tf.cast(weights, tf.float32))
    chosen = power_of_two(tf.clip_by_value(nearest_exponent(magnitudes), exponents[1], exponents[0]))
    rounded = tf.sign(weights) * tf.cast(chosen, weights.dtype)
    return tf.where(magnitudes < 0.5 * power_of_two(exponents[1]), tf.zeros_like(weights), rounded)


Role = Literal["kernel", "input"]

NAMES = ("approx_sign", "binary_tanh", "dorefa", "magnitude_aware_sign", "ste_sign", "ste_tern", "swish_sign")
FUNCTIONS: dict[str, Callable[..., tf.Tensor]] = {name: getattr(estimators, name) for name in NAMES}
KERNEL_ONLY = {"magnitude_aware_sign"}  # a scale per channel of a batch would differ from batch to batch
SET_BY_ROLE = {"x", "mode", "channel_axes"}
RANGES = {
    "clip_value": (lambda value: value > 0, "a number above 0"),
    "beta": (lambda value: 0 < value < math.inf, "a number above 0"),
    "threshold": (lambda value: 0 <= value < math.inf, "a number of 0 or more"),
    "k_bit": (lambda value: 1 <= value <= estimators.MAX_BITS, f"a whole number from 1 to {estimators.MAX_BITS}"),
    "ternary_weight_networks": (lambda value: True, "true or false"),
}


@dataclass(frozen=True)
class Quantizer:
    """Quantize kernels or layer inputs."""

    name: str  # a key of FUNCTIONS
    role: Role  # whether it quantizes kernels or layer inputs
    arguments: Mapping[str, Any] = field(default_factory=dict)  # those that were given

    def __call__(self, x: tf.Tensor, channel_axes: tuple[int, ...] = (-1,)) -> tf.Tensor:
        """Return the quantized tensor."""
        arguments = dict(self.arguments)
        if self.name == "dorefa":
            arguments["mode"] = "weights" if self.role == "kernel" else "activations"
        if self.name == "magnitude_aware_sign":
            arguments["channel_axes"] = channel_axes
        return FUNCTIONS[self.name](x, **arguments)

    @property
    def bits(self) -> int:
        """Return the number of bits per value, not counting scales."""
        if self.name == "dorefa":
            return int(self.arguments.get("k_bit", 2))
        return 2 if self.name == "ste_tern" else 1

    @property
    def is_sign(self) -> bool:
        """Return whether its values are -1 and +1, up to a scale: the sign of the input, +1 at 0."""
        return self.bits == 1 and not (self.name == "dorefa" and self.role == "input")

    @property
    def scales_channels(self) -> bool:
        """Return whether every output channel of a kernel has its own scale."""
        return self.name == "magnitude_aware_sign"

    @property
    def config(self) -> dict[str, Any]:
        """Return the quantizer as a config, such as {"name": "dorefa", "k_bit": 2}."""
        return {"name": self.name, **self.arguments}

    @property
    def inference_op(self) -> dict[str, Any] | None:
        """Return its effect on layer inputs as an op of `deploy.keras_graph`; None if it depends on the batch."""
        if self.name == "dorefa":
            return {"op": "round", "bits": self.bits}
        if self.name != "ste_tern":
            return {"op": "sign"}
        if self.arguments.get("ternary_weight_networks", False):
            return None
        default = inspect.signature(FUNCTIONS["ste_tern"]).parameters["threshold"].default
        return {"op": "ternary", "threshold": float(self.arguments.get("threshold", default))}

    def scales(self, shape: tuple[int, ...], channel_axes: tuple[int, ...]) -> int:
        """Return the number of float scales of a quantized kernel with this shape."""
        if self.scales_channels:
            return math.prod(shape[axis] for axis in channel_axes)
        return 1 if self.name == "dorefa" and self.bits == 1 else 0


def parse_quantizer(spec: str | Mapping[str, Any] | None, *, role: Role, option: str) -> Quantizer | None:
    """Return the quantizer given in a config, or None for None."""
    if spec is None:
        return None
    known = {name: each for name, each in FUNCTIONS.items() if role == "kernel" or name not in KERNEL_ONLY}
    name, arguments = parse_named(option, spec, known, SET_BY_ROLE)
    for key, value in arguments.items():
        (in_range, expected), default = RANGES[key], inspect.signature(known[name]).parameters[key].default
        if not fits(value, type(default)) or not in_range(value):
            raise UserError(f"Invalid {key} of {option} {name}: {value!r}. Expected {expected}.")
    return Quantizer(name, role, arguments)
