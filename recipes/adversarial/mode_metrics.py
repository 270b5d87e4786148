"""How many modes of a known mixture samples reach, and how evenly."""

from __future__ import annotations

import tensorflow as tf

WITHIN = 3.0  # standard deviations: farther from every mode, a sample is of no quality


def mode_metrics(samples: tf.Tensor, modes: tf.Tensor, std: float, *, least: int = 1) -> dict[str, tf.Tensor]:
    """Return how well samples cover the modes of a mixture of Gaussians.

    A sample belongs to its nearest mode, and is of high quality when it lies within three standard deviations of it.

    - modes: how many modes have at least `least` samples of high quality. With least=1 that is the literature's rule
      (Srivastava et al. 2017, "VEEGAN", section 4.1; Lin et al. 2018, "PacGAN", section 4.1, from 2,500 samples each).
      It is generous: one lucky sample covers a mode. A larger `least` says how many it takes.
    - high_quality: the share of high quality among all samples.
    - kl_to_uniform: KL(q || u) = log(m) + sum(q log q) in nats, of the shares q of all finite samples by their nearest
      mode, to the uniform distribution over the m modes; 0 where they are even, log(m) where all lie at one.

    Samples that are not finite are of no quality, and at no mode. Where all are so, kl_to_uniform is log(m).

    Args:
        samples: floats [samples, d].
        modes: floats [modes, d], the means of the mixture.
        std: above 0, the standard deviation of each mode in each dimension.
        least: 1 or more, samples of high quality that a covered mode has.

    Returns:
        float32 scalars by name: "modes", "high_quality", "kl_to_uniform".
    """
    samples, modes = tf.cast(samples, tf.float32), tf.cast(modes, tf.float32)
    finite = tf.reduce_all(tf.math.is_finite(samples), axis=-1)
    squared = tf.reduce_sum(tf.square(samples[:, tf.newaxis] - modes), axis=-1)
    at_mode = tf.one_hot(tf.argmin(squared, axis=-1), modes.shape[0])
    at_mode = tf.where(finite[:, tf.newaxis], at_mode, 0.0)  # [samples, modes]
    is_good = tf.logical_and(finite, tf.reduce_min(squared, axis=-1) <= (WITHIN * std) ** 2)
    good = tf.reduce_sum(tf.where(is_good[:, tf.newaxis], at_mode, 0.0), axis=0)
    return {
        "modes": tf.reduce_sum(tf.cast(good >= least, tf.float32)),
        "high_quality": tf.reduce_mean(tf.cast(is_good, tf.float32)),
        "kl_to_uniform": _kl_to_uniform(tf.reduce_sum(at_mode, axis=0)),
    }


def _kl_to_uniform(counts: tf.Tensor) -> tf.Tensor:
    """Return the divergence in nats of counts, float32 [modes], from even ones; without any, the largest there is."""
    shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
    largest = tf.math.log(float(counts.shape[0]))
    return tf.maximum(largest + tf.reduce_sum(tf.math.xlogy(shares, shares)), 0.0)  # below 0 by rounding alone
