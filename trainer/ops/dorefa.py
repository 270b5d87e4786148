"""The k-bit quantizers of DoReFa-Net."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.errors import UserError, unknown_name
from trainer.ops.overridden import declare_override
from trainer.ops.ste_sign import ste_sign

MODES = ("activations", "weights")
MAX_BITS = 8


def dorefa(x: tf.Tensor, *, k_bit: int = 2, mode: str = "activations") -> tf.Tensor:
    """Quantize to k bits: the levels i / n in [0, 1] for activations, 2 i / n - 1 in [-1, 1] for weights, n = 2^k - 1.

    Activations: round(n clip(x, 0, 1)) / n, backward 1{0 <= x <= 1} (equations 5 and 11).
    Weights, k > 1: with t = tanh(x) / (2 max|tanh(x)|) + 1/2, 2 round(n t) / n - 1; backward through t, rounding as
    the identity (equation 9). Weights, k = 1: mean|x| sign(x), sign(0) = +1, backward the identity times the mean
    (equation 8). Rounding is half to even. NaN stays NaN. Zhou et al. 2016, "DoReFa-Net", arXiv 1606.06160.

    Args:
        x: any shape and float dtype.
        k_bit: 1 to 8.
        mode: "activations" or "weights".

    Raises:
        UserError: k_bit out of range or an unknown mode.
    """
    if not 1 <= k_bit <= MAX_BITS:
        raise UserError(f"Invalid k_bit {k_bit!r} for dorefa. Expected a whole number from 1 to {MAX_BITS}.")
    if mode not in MODES:
        raise unknown_name("dorefa mode", mode, MODES)
    x = tf.convert_to_tensor(x)
    wide = tf.cast(x, tf.float32)
    if mode == "activations":
        return tf.cast(_levels(tf.clip_by_value(wide, 0.0, 1.0), k_bit), x.dtype)
    if k_bit == 1:
        return tf.stop_gradient(tf.cast(tf.reduce_mean(tf.abs(wide)), x.dtype)) * ste_sign(x, clip_value=float("inf"))
    limited = tf.tanh(wide)
    share = tf.math.divide_no_nan(limited, 2.0 * tf.reduce_max(tf.abs(limited)))
    return tf.cast(2.0 * _levels(share + 0.5, k_bit) - 1.0, x.dtype)


def _levels(unit: tf.Tensor, k_bit: int) -> tf.Tensor:
    """Round float32 values in [0, 1] to the nearest of 2^k levels; backward the identity."""

    @tf.custom_gradient
    def quantize(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        steps = float(2**k_bit - 1)
        # Not a division: XLA turns one into this product, and the levels would depend on who compiled.
        return tf.round(value * steps) * (1.0 / steps), lambda upstream: upstream

    levels = quantize(unit)
    declare_override("dorefa", [unit], levels, tf.identity)
    return levels
