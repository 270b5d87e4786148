"""Seed states of layers that draw: other draws on every replica, and one state for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf

from trainer.replicas.replica import Replica

STRIDE = 0x9E3779B9
"""Between the seeds of replicas: the golden ratio of 2^32, so that small seeds of several runs do not meet."""


def own_seeds(state: Mapping[str, tf.Tensor], seeds: Iterable[str], replica: Replica) -> dict[str, tf.Tensor]:
    """Return the state from which a replica's forward pass starts: with seeds of its own.

    All replicas hold the same seed state. Started from it as it is, dropout would drop the same entries in every
    replica's part of the batch.

    Args:
        state: values by name.
        seeds: which of them are seed states of Keras, integers [2]: the seed, and the draws so far.
        replica: whose pass it is. The first keeps the seed.
    """
    return dict(state) | {name: state[name] + _offset(state[name], replica) for name in seeds if replica.index}


def shared_seeds(new_state: Mapping[str, tf.Tensor], seeds: Iterable[str], replica: Replica) -> dict[str, tf.Tensor]:
    """Return the state to write after a pass that started from `own_seeds`: the same on every replica.

    Args:
        new_state: values by name.
        seeds: names that `own_seeds` changed; those that the pass did not draw from may be missing.
        replica: as for `own_seeds`.
    """
    changed = [name for name in seeds if replica.index and name in new_state]
    return dict(new_state) | {name: new_state[name] - _offset(new_state[name], replica) for name in changed}


def common_seed(seed: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return the seed of a draw for the whole batch, which every replica makes alike and cuts.

    Args:
        seed: drawn from a state of `own_seeds`, integers [2].
        replica: that drew it.
    """
    return seed - _offset(seed, replica) if replica.index else seed


def _offset(seed: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return what is added to a seed state; integers wrap around, so that taking it off again is exact."""
    return tf.cast(tf.constant([replica.index * STRIDE % 2**32, 0], tf.int64), seed.dtype)
