"""Seed states: other draws on every replica, and one state that all write."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.replicas.replica import Collectives, Group, Replica, common_seed, own_seeds, shared_seeds

SEED = "dropout/seed_generator_state"


def replica(index: int) -> Replica:
    return Replica(index, 4, collectives=Collectives(Group(4)))


def state(dtype: str = "int64", seed: int = 5) -> dict[str, tf.Tensor]:
    return {SEED: tf.constant([seed, 7], dtype), "norm/moving_mean": tf.constant([0.5])}


def test_the_first_replica_keeps_the_state_as_it_is() -> None:
    given = state()
    assert own_seeds(given, [SEED], replica(0)) == given
    assert shared_seeds(given, [SEED], replica(0)) == given
    assert common_seed(given[SEED], replica(0)) is given[SEED]
    assert own_seeds(given, [SEED], Replica()) == given
    assert own_seeds(given, [SEED], replica(1))["norm/moving_mean"] is given["norm/moving_mean"]
    new = {"norm/moving_mean": tf.constant([0.25])}  # nothing was drawn
    assert shared_seeds(new, [SEED], replica(1)) == new


@pytest.mark.parametrize(("dtype", "seed"), [("int64", 0), ("uint32", 2**31 - 1), ("int32", 2**31 - 1)])
def test_the_offset_of_a_replica_comes_off_exactly(dtype: str, seed: int) -> None:
    given = state(dtype, seed)
    seen = set()
    for index in range(1, 4):
        own = own_seeds(given, [SEED], replica(index))
        assert own[SEED].dtype == dtype
        assert own[SEED].numpy()[1] == 7  # the draws so far are those of all
        assert own[SEED].numpy()[0] != seed
        seen.add(int(own[SEED].numpy()[0]))
        np.testing.assert_array_equal(common_seed(own[SEED], replica(index)), given[SEED])
        drawn = {SEED: own[SEED] + tf.constant([0, 2], dtype)}
        np.testing.assert_array_equal(shared_seeds(drawn, [SEED], replica(index))[SEED], [seed, 9])
    assert len(seen) == 3


def test_replicas_drop_other_entries_and_seeds_of_runs_do_not_meet() -> None:
    """Seed s of one run plus the offset of a replica must not be a seed that another run starts from."""
    offsets = {int(own_seeds(state(), [SEED], replica(index))[SEED].numpy()[0]) - 5 for index in range(1, 4)}
    assert min(abs(a - b) for a in offsets | {0} for b in offsets | {0} if a != b) > 2**28
    dropped = set()
    for index in range(4):
        seed = own_seeds(state(), [SEED], replica(index))[SEED]
        mask = tf.random.stateless_uniform([64], tf.cast(seed, tf.int64)) < 0.5
        dropped.add(mask.numpy().tobytes())
    assert len(dropped) == 4
