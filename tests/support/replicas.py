"""Replicas on parts of this machine's CPU: toy loops over them, and their variables after some steps."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.replicas.replica import replicas_of
from hookline.trainer.run.state import share_variables, trainer_variables
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import ToyObjective, toy_batch, toy_network


def cpus(count):
    assert len(tf.config.list_logical_devices("CPU")) >= count, "TensorFlow started before the CPU was divided"
    return [f"/CPU:{index}" for index in range(count)]


def on_replicas(count):
    return replicas_of(cpus(count) if count > 1 else [None])


def run_on_each(replicas, compute):
    """Compute on each replica, side by side in one traced function, and return NumPy arrays.

    Each has its own function that writes its own variable, as in a run: TensorFlow would make other functions, and
    bare sums, wait for each other in the order in which they were traced, and the first waits for the last.
    """
    counts = []
    for replica in replicas:
        with tf.device(replica.device):
            counts.append(tf.Variable(0.0))

    def own(replica, count):
        with tf.device(replica.device), tf.control_dependencies([count.assign_add(1.0)]):
            return compute(replica)

    each = [
        tf.function(partial(own, replica, count), autograph=False)
        for replica, count in zip(replicas, counts, strict=True)
    ]
    return tf.nest.map_structure(np.array, tf.function(lambda: [run() for run in each], autograph=False)())


def part_of(batch, replica):
    def part(step):
        whole = batch(step)
        size = whole["inputs"].shape[0] // replica.count
        return {key: value[replica.index * size : (replica.index + 1) * size] for key, value in whole.items()}

    return part


def replica_loop(
    count,
    *,
    network=toy_network,
    hooks=lambda network: (),
    objectives=lambda: [ToyObjective()],
    batch=toy_batch,
    loss_scale=lambda: None,
    **settings,
):
    """Return a traced and audited loop of several replicas, each built anew from the same seed."""
    trainers = []
    replicas = on_replicas(count)
    for replica in replicas:
        keras.utils.set_random_seed(0)
        with tf.device(replica.device):
            own = network()
            made = list(hooks(own))
            if not own.optimizer.built:
                own.optimizer.build(own.model.trainable_variables)
            scale = loss_scale()
            trainers.append(Trainer([own], objectives(), made, seed=0, loss_scale=scale, replica=replica, **settings))
    share_variables(trainers)
    return ChunkLoop(trainers, [part_of(batch, replica) for replica in replicas], xla=False)


def values(loop):
    """Return all variables of the first replica by key, after checking that the others have the same bits."""
    first, *others = ({key: np.array(v) for key, v in trainer_variables(each).items()} for each in loop.trainers)
    for other in others:
        assert other.keys() == first.keys()
        assert [key for key, value in first.items() if value.tobytes() != other[key].tobytes()] == []
    return first


def trained(count, *, steps=3, **options):
    loop = replica_loop(count, **options)
    assert loop.run(0, steps) == (steps, [])
    return values(loop), loop.accumulators.read()


def assert_same_run(found, expected, *, tolerance=1e-5):
    (variables, reported), (other_variables, other_reported) = found, expected
    assert list(reported) == list(other_reported)
    for name, value in other_reported.items():
        assert abs(reported[name] - value) <= tolerance * max(1.0, abs(value)), name
    assert variables.keys() == other_variables.keys()
    for key, value in other_variables.items():
        np.testing.assert_allclose(variables[key], value, rtol=10 * tolerance, atol=10 * tolerance, err_msg=key)
