"""Noise on the weights in training."""

import tensorflow as tf

from hookline.trainer.hook import Declaration, GraphHook


class WeightNoise(GraphHook):
    """Add Gaussian noise to every kernel in training, and count the steps."""

    def __init__(self, *, stddev: float = 0.01) -> None:
        self.stddev = stddev

    def build(self, context):
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps")

    def declare(self):
        return Declaration({"steps": self.steps})

    def transform_weights(self, weights, context):
        if not context.training:
            return weights
        noisy = {
            name: weight
            + self.stddev * tf.random.stateless_normal(weight.shape, context.stateless_seed(f"noise/{name}"))
            for name, weight in weights.items()
            if name.endswith("kernel")
        }
        return {**weights, **noisy}

    def update_ops(self, context):
        return [self.steps.assign_add(1)]

    def measure(self, context):
        return {"weight_noise/steps": tf.cast(self.steps, tf.float32)}
