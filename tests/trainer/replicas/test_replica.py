"""Sums over replicas, their seeds, messages between workers, and the devices of replicas."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.replicas import replica as collectives
from hookline.trainer.replicas.replica import (
    Collectives,
    Group,
    Replica,
    common_seed,
    describe_replicas,
    local_replicas,
    mirrored_devices,
    own_seeds,
    shared_seeds,
)
from tests.support.refusals import assert_refused
from tests.support.replicas import on_replicas, run_on_each


def test_mean_is_over_replicas_in_each_dtype():
    def compute(replica):
        large = tf.cast(replica.index * 20_000, tf.float16)  # divided before summing: float16 ends at 65504
        means = replica.mean([tf.constant([1.0, 5.0]) * (replica.index + 1), large])
        return [tf.cast(each, tf.float32) for each in means]

    for vector, scalar in run_on_each(on_replicas(4), compute):
        np.testing.assert_array_equal(vector, [2.5, 12.5])
        assert scalar == 30_000


def test_replica_draws_are_slices_of_the_draw_for_the_whole_batch():
    draw = lambda wanted: tf.random.stateless_uniform(wanted, [1, 2])  # noqa: E731
    parts = [replica.part(draw, tf.TensorShape([3, 2, 1])) for replica in on_replicas(4)]
    whole = Replica().part(draw, tf.TensorShape([12, 2, 1]))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert_refused("2 replicas", on_replicas(2)[0].part, tf.zeros, tf.TensorShape([None, 2]))


SHAPES = ([3], [], [2, 2], [1], [0], [4, 1, 2])


def numbers(index, dtype="float32"):
    generator = np.random.default_rng(index)
    return [tf.constant(generator.normal(size=shape), dtype) for shape in SHAPES]


@pytest.mark.parametrize(("count", "dtype"), [(2, "float32"), (3, "float16")])
def test_all_replicas_get_bit_identical_sums_in_order(count, dtype):
    found = run_on_each(on_replicas(count), lambda replica: replica.sum(numbers(replica.index, dtype)))
    expected = [
        np.sum(each, axis=0, dtype=np.float64) for each in zip(*(numbers(i, dtype) for i in range(count)), strict=True)
    ]
    for first, others in zip(found[0], zip(*found[1:], strict=True), strict=True):
        assert first.dtype == dtype
        assert all(other.tobytes() == first.tobytes() for other in others)
    for value, wanted in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(
            value, wanted, rtol=1e-2 if dtype == "float16" else 1e-6, atol=1e-2 if dtype == "float16" else 1e-6
        )


def test_tensors_are_summed_in_messages_of_limited_size(monkeypatch):
    monkeypatch.setattr(collectives, "MESSAGE_BYTES", 16)
    tensors = [tf.zeros([size]) for size in (3, 1, 2, 9, 1)]
    assert list(collectives._messages(tensors)) == [[0, 1], [2, 3], [4]]
    found = run_on_each(on_replicas(2), lambda replica: replica.sum(numbers(replica.index)))
    for value, *parts in zip(found[0], numbers(0), numbers(1), strict=True):
        np.testing.assert_allclose(value, parts[0] + parts[1], rtol=1e-6)


def test_gradient_of_a_sum_is_summed_over_replicas():
    """The loss of replica r is (r + 1) * sum(S_k^2) with S = x_0 + x_1, so d(sum of losses)/dx = 2 S * (1 + 2)."""

    def compute(replica):
        own = [tf.constant([1.0, 2.0]) * (replica.index + 1) * (k + 1) for k in range(2)]
        summed = replica.sum(own)
        loss = float(replica.index + 1) * tf.add_n([tf.reduce_sum(tf.square(each)) for each in summed])
        return tf.gradients(loss, own)

    for gradients in run_on_each(on_replicas(2), compute):
        for k, gradient in enumerate(gradients):
            np.testing.assert_allclose(gradient, 2 * 3 * 3.0 * (k + 1) * np.array([1.0, 2.0]))


SEED = "dropout/seed_generator_state"


def replica(index):
    return Replica(index, 4, collectives=Collectives(Group(4)))


def state(dtype="int64", seed=5):
    return {SEED: tf.constant([seed, 7], dtype), "norm/moving_mean": tf.constant([0.5])}


@pytest.mark.parametrize(("dtype", "seed"), [("int64", 0), ("uint32", 2**31 - 1), ("int32", 2**31 - 1)])
def test_replica_seed_offset_is_removed_exactly(dtype, seed):
    given = state(dtype, seed)
    seen = set()
    for index in range(1, 4):
        own = own_seeds(given, [SEED], replica(index))
        assert own[SEED].dtype == dtype
        assert own[SEED].numpy()[1] == 7  # the count of draws is common to all replicas
        assert own[SEED].numpy()[0] != seed
        seen.add(int(own[SEED].numpy()[0]))
        np.testing.assert_array_equal(common_seed(own[SEED], replica(index)), given[SEED])
        drawn = {SEED: own[SEED] + tf.constant([0, 2], dtype)}
        np.testing.assert_array_equal(shared_seeds(drawn, [SEED], replica(index))[SEED], [seed, 9])
    assert len(seen) == 3


def test_seeds_of_different_runs_do_not_collide():
    """Seed s of one run plus the offset of a replica must not equal the seed of another run."""
    offsets = {int(own_seeds(state(), [SEED], replica(index))[SEED].numpy()[0]) - 5 for index in range(1, 4)}
    assert min(abs(a - b) for a in offsets | {0} for b in offsets | {0} if a != b) > 2**28


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    found = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [] if kind == "GPU" else found(kind))


def test_mirrored_replicas_each_get_a_part_of_the_cpu():
    assert local_replicas("none", None, 7) == [Replica()]  # placed wherever TensorFlow puts it
    made = local_replicas("mirrored", 2, 60)
    assert [(each.index, each.count, each.device) for each in made] == [(0, 2, "/CPU:0"), (1, 2, "/CPU:1")]
    assert describe_replicas("mirrored", Replica(1, 4), 64) == {"strategy": "mirrored", "count": 4, "examples": 16}


def test_gpus_are_preferred_to_parts_of_the_cpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [object()] * 3)
    for count, names in ((None, 3), (2, 2)):
        assert mirrored_devices(count) == [f"/GPU:{index}" for index in range(names)]
    assert_refused("replicas=4", mirrored_devices, 4)


def test_invalid_replica_counts_and_batch_sizes_are_refused():
    have = len(tf.config.list_logical_devices("CPU"))
    for refused, match in (
        (lambda: local_replicas("mirrored", 2, 61), "batch_size=61"),
        (lambda: mirrored_devices(None), "replicas=<number>"),
        (lambda: mirrored_devices(have + 1), f"replicas={have + 1}"),
    ):
        assert_refused(match, refused)
