"""One function forward, another backward."""

from __future__ import annotations

import tensorflow as tf


def straight_through(forward: tf.Tensor, backward: tf.Tensor) -> tf.Tensor:
    """Return the value of `forward` with the gradient of `backward`: y = t + stop_gradient(f - t).

    The sum is rounded like any other. It equals `forward` exactly where forward - backward is exact, such as for
    1/2 <= backward / forward <= 2 (Sterbenz) or forward = 0.

    Args:
        forward: f(x), any float dtype.
        backward: t = g(x), same shape and dtype.
    """
    return backward + tf.stop_gradient(forward - backward)
