"""Collect training or evaluation batches: eagerly, or from inside a traced loop."""

import numpy as np
import tensorflow as tf

from hookline.trainer.input.batches import EvaluationBatches


def step_of(value):
    return tf.constant(value, tf.int64)


def eager_batches(batches, start, stop):
    found = [batches.batch(step_of(step)) for step in range(start, stop)]
    return {key: np.stack([batch[key] for batch in found]) for key in found[0]}


def traced_batches(batches, start, stop):
    specs = {key: (value.dtype, value.shape) for key, value in batches.batch(step_of(0)).items()}

    @tf.function(autograph=False)
    def loop(first, last):
        arrays = {
            key: tf.TensorArray(dtype, last - first, element_shape=shape) for key, (dtype, shape) in specs.items()
        }

        def body(step, written):
            batch = batches.batch(tf.cast(step, tf.int64))
            return step + 1, {key: written[key].write(step - first, batch[key]) for key in written}

        _, arrays = tf.while_loop(lambda step, _: step < last, body, (first, arrays))
        return {key: array.stack() for key, array in arrays.items()}

    return {key: value.numpy() for key, value in loop(tf.constant(start), tf.constant(stop)).items()}


def assert_same_bits(first, second):
    assert set(first) == set(second)
    for key in first:
        assert (first[key].dtype, first[key].shape) == (second[key].dtype, second[key].shape), key
        assert first[key].tobytes() == second[key].tobytes(), key


def whole(split):
    batch = EvaluationBatches(split, batch_size=split.size).batch(step_of(0))
    return {name: tensor.numpy() for name, tensor in batch.items()}
