"""A replica: means, flags, and its part of what is drawn for a whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.replicas.replica import Replica
from tests.support.replicas import on_replicas, run_on_each


def test_the_only_replica_of_a_run_gets_back_what_it_gives() -> None:
    given = [tf.constant(1.0), tf.constant([True])]
    replica = Replica()
    assert replica.sum(given) == given
    assert replica.mean(given) == given
    assert replica.any(given) == given
    drawn = replica.part(lambda shape: tf.ones(shape), tf.TensorShape([3, 2]))
    assert drawn.shape == [3, 2]


def test_the_mean_is_that_over_replicas_in_each_dtype() -> None:
    def compute(replica):
        large = tf.cast(replica.index * 20_000, tf.float16)  # divided before the sum: float16 ends at 65504
        means = replica.mean([tf.constant([1.0, 5.0]) * (replica.index + 1), large])
        return [tf.cast(each, tf.float32) for each in means]

    for vector, scalar in run_on_each(on_replicas(4), compute):
        np.testing.assert_array_equal(vector, [2.5, 12.5])
        assert scalar == 30_000


@pytest.mark.parametrize("raised_by", [1, None])
def test_a_flag_is_raised_for_all_where_one_raises_it(raised_by: int | None) -> None:
    def compute(replica):
        return replica.any([tf.constant(replica.index == raised_by), tf.constant(False), tf.constant(True)])

    for flags in run_on_each(on_replicas(2), compute):
        assert [bool(flag) for flag in flags] == [raised_by is not None, False, True]


def test_parts_are_the_slices_of_the_draw_for_the_whole_batch() -> None:
    draw = lambda wanted: tf.random.stateless_uniform(wanted, [1, 2])  # noqa: E731
    parts = [replica.part(draw, tf.TensorShape([3, 2, 1])) for replica in on_replicas(4)]
    whole = Replica().part(draw, tf.TensorShape([12, 2, 1]))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    with pytest.raises(UserError, match="2 replicas"):
        on_replicas(2)[0].part(tf.zeros, tf.TensorShape([None, 2]))
