"""Powers of two: exact ones from exponents, and the levels of Zhou et al. 2017 (arXiv 1702.03044) with their rounding.

Everything works on the bits of float32, in which a power of two is nothing but an exponent. Logarithms and powers
are off by a bit here and there, differently on each device.
"""

from __future__ import annotations

import tensorflow as tf

BIAS, MANTISSA_BITS = 127, 23
SMALLEST, LARGEST = -126, 127


def power_of_two(exponents: tf.Tensor) -> tf.Tensor:
    """Return 2^k exactly.

    Args:
        exponents: k, int32; below -126 they count as -126, above 127 as 127.

    Returns:
        float32 of the same shape.
    """
    biased = tf.clip_by_value(exponents, SMALLEST, LARGEST) + BIAS
    return tf.bitcast(tf.bitwise.left_shift(biased, MANTISSA_BITS), tf.float32)


def nearest_exponent(magnitudes: tf.Tensor) -> tf.Tensor:
    """Return the k for which 1.5 * 2^(k - 1) <= x < 1.5 * 2^k, which is floor(log2(4 x / 3)).

    Adding half of the lowest power to the bits carries into the exponent exactly from 1.5 on.

    Args:
        magnitudes: x of at least 0, float; 0 gives -127.

    Returns:
        int32 of the same shape.
    """
    bits = tf.bitcast(tf.cast(magnitudes, tf.float32), tf.int32)
    return tf.bitwise.right_shift(bits + 2 ** (MANTISSA_BITS - 1), MANTISSA_BITS) - BIAS


def level_exponents(weights: tf.Tensor, bits: int) -> tf.Tensor:
    """Return the largest and the smallest exponent of the levels for a layer's weights (paper, equations 1 and 2).

    n1 = floor(log2(4 max|W| / 3)) and n2 = n1 + 1 - 2^(b - 1) / 2, so that zero and the signed powers fit b bits.

    Args:
        weights: float, of any shape. Where all are 0, n1 is 0.
        bits: b, 2 or more.

    Returns:
        int32 [2]: n1 and n2.
    """
    largest = tf.reduce_max(tf.abs(tf.cast(weights, tf.float32)))
    first = tf.where(largest > 0, nearest_exponent(largest), 0)
    last = first + 1 - 2 ** (bits - 2)
    return tf.clip_by_value(tf.stack([first, last]), SMALLEST, LARGEST)


def round_to_levels(weights: tf.Tensor, exponents: tf.Tensor) -> tf.Tensor:
    """Return weights rounded to 0 or +-2^k with n2 <= k <= n1 (paper, equation 4). Levels stay as they are.

    A weight goes to the level b with (a + b) / 2 <= |w| < 3 b / 2, where a is the level below b, and to 0 below all.
    The paper leaves open what becomes of |w| >= 1.5 * 2^n1, to which a weight may grow in training: 2^n1 here.

    Args:
        weights: float, of any shape.
        exponents: int32 [2]: n1 and n2.

    Returns:
        Of the shape and dtype of `weights`.
    """
    magnitudes = tf.abs(tf.cast(weights, tf.float32))
    chosen = power_of_two(tf.clip_by_value(nearest_exponent(magnitudes), exponents[1], exponents[0]))
    rounded = tf.sign(weights) * tf.cast(chosen, weights.dtype)
    return tf.where(magnitudes < 0.5 * power_of_two(exponents[1]), tf.zeros_like(weights), rounded)
