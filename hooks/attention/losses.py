"""What is asked of an attention map, and what is reported of it, for each example."""

from __future__ import annotations

import math

import tensorflow as tf

from trainer.errors import UserError
from trainer.objective import Batch

SMALLEST = 1e-30  # keeps a logarithm finite; far below any mean of sigmoids that float32 can tell from 0


def mean_keep_rate(attention: tf.Tensor) -> tf.Tensor:
    """Return the mean of A over positions: float32 [batch].

    Args:
        attention: A, [batch, height, width, 1].
    """
    return tf.reduce_mean(tf.cast(attention, tf.float32), axis=[1, 2, 3])


def mean_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Return the entropy of the draw at a position, on average, in bits: float32 [batch], 0 to 1.

    Args:
        logits: of A, divided by the temperature, [batch, height, width, 1].
    """
    logits = tf.cast(logits, tf.float32)
    on, off = tf.sigmoid(logits), tf.sigmoid(-logits)
    nats = on * tf.nn.softplus(-logits) + off * tf.nn.softplus(logits)
    return tf.reduce_mean(nats, axis=[1, 2, 3]) / math.log(2.0)


def keep_rate_penalty(logits: tf.Tensor, *, target: float) -> tf.Tensor:
    """Return KL(Bernoulli(target) || Bernoulli(mean of A)) in nats for each example: float32 [batch], 0 at the target.

    It grows without bound as the mean of A goes to 0 or to 1, and its pull on the logits does not fade there: where A
    is the same everywhere, the gradient is (mean of A - target) / positions for each logit. A penalty on the mean
    alone has no such floor; a squared one fades with the sigmoid's slope.

    Args:
        logits: of A, divided by the temperature, [batch, height, width, 1].
        target: in (0, 1).
    """
    logits = tf.cast(logits, tf.float32)
    # Both means by a sigmoid: 1 - mean would be exactly 0 where A rounds to 1.
    on, off = (tf.reduce_mean(tf.sigmoid(each), axis=[1, 2, 3]) for each in (logits, -logits))
    constant = target * math.log(target) + (1.0 - target) * math.log(1.0 - target)
    return (
        constant
        - target * tf.math.log(tf.maximum(on, SMALLEST))
        - (1.0 - target) * tf.math.log(tf.maximum(off, SMALLEST))
    )


def map_cross_entropy(logits: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of A against a given map, mean over positions, in nats: float32 [batch].

    Args:
        logits: of A, divided by the temperature, [batch, height, width, 1].
        wanted: float32 [batch, height, width, 1] in [0, 1].
    """
    losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, tf.cast(logits, tf.float32))
    return tf.reduce_mean(losses, axis=[1, 2, 3])


def mass_inside(attention: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Return the share of A that lies inside a given map: float32 [batch]; 0 where A is 0 everywhere.

    Args:
        attention: A, [batch, height, width, 1].
        wanted: float32 [batch, height, width, 1] in [0, 1]: how much of each position is inside.
    """
    attention = tf.cast(attention, tf.float32)
    inside = tf.reduce_sum(attention * wanted, axis=[1, 2, 3])
    return tf.math.divide_no_nan(inside, tf.reduce_sum(attention, axis=[1, 2, 3]))


def given_map(batch: Batch, key: str, size: tuple[int, int]) -> tf.Tensor:
    """Return a map of the batch, resized by area: float32 [batch, height, width, 1].

    Args:
        batch: holds the map, [batch, H, W] or [batch, H, W, 1] in [0, 1].
        key: its name.
        size: height and width of A.

    Raises:
        UserError: the batch has no such map, or it has another shape.
    """
    if key not in batch:
        raise UserError(
            f"supervision.key={key} is not in the batch. Expected one of: {', '.join(sorted(batch))}. Take data that "
            "gives such a map, such as data=cluttered, or set supervision=null."
        )
    wanted = tf.cast(batch[key], tf.float32)
    wanted = wanted[..., tf.newaxis] if wanted.shape.rank == 3 else wanted
    if wanted.shape.rank != 4 or wanted.shape[-1] != 1 or None in wanted.shape[1:3]:
        raise UserError(
            f"'{key}' in the batch has the shape {batch[key].shape}. Expected a map [batch, height, width]."
        )
    from hooks.attention.area_resize import area_resize  # beside a class of Keras: not for a look at options

    return area_resize(wanted, size)
