"""The sign as 2 binary_sigmoid - 1, the form of BinaryNet."""

from __future__ import annotations

import tensorflow as tf

from trainer.ops.binary_sigmoid import binary_sigmoid


def binary_tanh(x: tf.Tensor) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward 1{|x| <= 1}.

    2 binary_sigmoid(x) - 1. At x = 0 this is +1; the form 2 round_through(hard_sigmoid(x)) - 1 gives -1 there, and
    at 1e-9. NaN stays NaN. Courbariaux et al. 2016, arXiv 1602.02830.

    Args:
        x: any shape and float dtype.
    """
    return 2.0 * binary_sigmoid(x) - 1.0
