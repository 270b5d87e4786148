"""Hooks that put NaN into chosen steps."""

import tensorflow as tf

from hookline.trainer.hook import Declaration, GraphHook

PLACES = ("data", "loss", "gradient", "weight", "statistic")


class Poison(GraphHook):
    def __init__(self, *, place: str, steps: list[int], last: bool = False) -> None:
        self._place, self._steps, self._last = place, steps, last
        self.name = "poison"

    def declare(self):
        return Declaration()

    def transform_weights(self, weights, context):
        if self._place != "weight" or not context.training:
            return weights
        name = sorted(weights)[0]
        return {**weights, name: weights[name] + self._nan(context)}

    def add_losses(self, context):
        if self._place == "data":
            outputs = tf.cast(context.outputs, tf.float32)
            first = tf.one_hot(0, outputs.shape[0], self._nan(context), 0.0)
            return {"poison": tf.reduce_sum(outputs, -1) * first}
        return {"poison": self._nan(context)} if self._place == "loss" else {}

    def transform_gradients(self, gradients, context):
        if self._place != "gradient":
            return gradients
        name = sorted(name for name, value in gradients.items() if value is not None)[0]
        return {**gradients, name: gradients[name] + self._nan(context)}

    def transform_state(self, new_state, context):
        if self._place != "statistic":
            return new_state
        name = sorted(name for name, value in new_state.items() if value.dtype.is_floating)[0]
        return {**new_state, name: new_state[name] + self._nan(context)}

    def _nan(self, context):
        if _is_spared(context, self._last):
            return tf.constant(0.0)
        now = tf.reduce_any(tf.equal(context.step, tf.constant(self._steps, tf.int64)))
        return tf.where(now, float("nan"), 0.0)


class Once(GraphHook):
    def __init__(self, *, step: int, last: bool = False) -> None:
        self._step, self._last = step, last
        self.name = "once"

    def declare(self):
        return Declaration()

    def build(self, context):
        self._network = context.network
        self._first = float(context.network.optimizer.learning_rate)

    def add_losses(self, context):
        if _is_spared(context, self._last):
            return {"once": tf.constant(0.0)}
        factor = self._network.rate_factor
        rate = self._network.optimizer.learning_rate if factor is None else factor
        full = tf.cast(rate, tf.float32) >= (self._first if factor is None else 1.0)
        bad = tf.logical_and(tf.equal(context.step, self._step), full)
        return {"once": tf.where(bad, float("nan"), 0.0)}


def _is_spared(context, last):
    return last and context.replica.index < context.replica.count - 1
