"""The symmetric beta distribution, by its quantiles: how much of an example a mixture keeps."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from trainer.input.draws import uniform

GRID, PARTS = 20_001, 4_096


def beta(seeds: tf.Tensor, salt: str, alpha: float) -> tf.Tensor:
    """Return draws from Beta(alpha, alpha): float32 [n] in [0, 1].

    Args:
        seeds: int32 [n, 2].
        salt: what the draw is for.
        alpha: above 0; 1 is uniform, less is nearer to 0 and 1, more is nearer to 1/2.
    """
    with tf.init_scope():
        quantiles = tf.constant(_lower_quantiles(alpha))
    place = uniform(seeds, salt, high=float(PARTS))
    first = tf.minimum(tf.cast(place, tf.int32), PARTS - 1)
    low, high = tf.gather(quantiles, first), tf.gather(quantiles, first + 1)
    lower = (low + (high - low) * (place - tf.cast(first, tf.float32))) ** (1.0 / min(alpha, 1.0))
    return tf.where(uniform(seeds, f"{salt}/side") < 0.5, lower, 1.0 - lower)


@functools.cache
def _lower_quantiles(alpha: float) -> np.ndarray:
    """Return x^p at equal steps of probability for x in [0, 1/2], with p = min(alpha, 1): float32 [PARTS + 1].

    In t = x^p the density is finite at 0 for every alpha: x^(alpha - p) (1 - x)^(alpha - 1) up to a factor.
    """
    power = min(alpha, 1.0)
    t = np.linspace(0.0, 0.5**power, GRID)
    x = t ** (1.0 / power)
    density = x ** (alpha - power) * (1.0 - x) ** (alpha - 1.0)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(np.linspace(0.0, 1.0, PARTS + 1), below / below[-1], t).astype(np.float32)
