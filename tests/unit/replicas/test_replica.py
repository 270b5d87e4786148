"""A replica: means, flags, and its part of what is drawn for a whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.replicas import on_replicas, run_on_each
from trainer.errors import UserError
from trainer.replicas.replica import Replica, replicas_of


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
        means = replica.mean([tf.constant([1.0, 5.0]) * (replica.index + 1), tf.cast(replica.index, tf.float16)])
        return [tf.cast(each, tf.float32) for each in means]

    for vector, scalar in run_on_each(on_replicas(4), compute):
        np.testing.assert_array_equal(vector, [2.5, 12.5])
        assert scalar == 1.5


def test_a_mean_of_large_halves_does_not_overflow() -> None:
    """Each is divided before the sum: float16 ends at 65504."""
    compute = lambda replica: tf.cast(replica.mean([tf.constant(40_000.0, tf.float16)])[0], tf.float32)  # noqa: E731
    assert [float(each) for each in run_on_each(on_replicas(2), compute)] == [40_000.0] * 2


@pytest.mark.parametrize("raised_by", [0, 1, None])
def test_a_flag_is_raised_for_all_where_one_raises_it(raised_by: int | None) -> None:
    def compute(replica):
        return replica.any([tf.constant(replica.index == raised_by), tf.constant(False), tf.constant(True)])

    for flags in run_on_each(on_replicas(2), compute):
        assert [bool(flag) for flag in flags] == [raised_by is not None, False, True]


def test_no_flags_and_no_tensors_need_no_message() -> None:
    graph = tf.Graph()
    with graph.as_default():
        replica = on_replicas(2)[1]
        assert replica.any([]) == []
        assert replica.sum([]) == []
        assert replica.mean([]) == []
    assert graph.get_operations() == []


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("shape", [[3], [3, 2, 1]])
def test_parts_are_the_slices_of_the_draw_for_the_whole_batch(count: int, shape: list[int]) -> None:
    draw = lambda wanted: tf.random.stateless_uniform(wanted, [1, 2])  # noqa: E731
    parts = [replica.part(draw, tf.TensorShape(shape)) for replica in on_replicas(count)]
    whole = Replica().part(draw, tf.TensorShape([count * shape[0], *shape[1:]]))
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("shape", [tf.TensorShape(None), tf.TensorShape([None, 2])])
def test_a_part_of_unknown_size_is_refused(shape: tf.TensorShape) -> None:
    with pytest.raises(UserError, match="2 replicas draw for examples of the shape .* Expected a fixed one."):
        on_replicas(2)[0].part(tf.zeros, shape)


def test_replicas_of_a_process_share_a_group_and_know_their_place() -> None:
    made = replicas_of(["/CPU:0", "/CPU:1"], first=2, count=6)
    assert [(each.index, each.count, each.device) for each in made] == [(2, 6, "/CPU:0"), (3, 6, "/CPU:1")]
    groups = {each.collectives._group for each in made}
    assert len(groups) == 1
    assert groups.pop().size == 6
    assert replicas_of(["/GPU:0"]) == [Replica(device="/GPU:0")]
