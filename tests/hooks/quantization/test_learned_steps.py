"""Learned step sizes against NumPy: values, both gradients, first steps; which levels are unsigned."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.quantization.activation_places import Inserter, Pass
from hookline.hooks.quantization.fake import (
    LearnedSteps,
    activations_by_step,
    initial_limits,
    nudged,
    quantize_activations,
    weights_by_step,
)

layers = keras.layers


def lsq(values: np.ndarray, step: float, lowest: int, highest: int, upstream: np.ndarray, sharing: int):
    """Return rounded values, their gradient and the step's gradient, entry by entry: equations 1, 2, 3 and 5."""
    rounded, of_values, of_step = np.empty_like(values), np.empty_like(values), 0.0
    for place, value in np.ndenumerate(values):
        scaled = value / step
        level = np.round(np.clip(scaled, lowest, highest))
        rounded[place] = level * step
        if scaled <= lowest or scaled >= highest:
            of_values[place] = 0.0
            of_step += upstream[place] * (lowest if scaled <= lowest else highest)
        else:
            of_values[place] = upstream[place]
            of_step += upstream[place] * (level - scaled)
    return rounded, of_values, of_step / np.sqrt(sharing * highest)


@pytest.mark.parametrize("bits", [2, 8])
def test_weights_and_gradients_match_the_paper(bits: int) -> None:
    generator, most = np.random.default_rng(0), 2 ** (bits - 1) - 1
    kernel, upstream = (generator.normal(size=(4, 3, 2, 5)).astype(np.float32) for _ in range(2))
    initial = np.array([0.5, 2.0, 1.0, 0.125, 0.25], np.float32) / 2 ** (bits - 1)  # powers of 2: ends are exact
    factors = np.array([1.0, 0.5, 4.0, 1.0, 2.0], np.float32)
    kernel[0, 0, 0] = most * initial * factors  # at an end
    kernel[0, 0, 1] = -most * initial * factors
    shape = (1, 1, 1, 5)
    weights, trained = tf.constant(kernel), tf.constant(factors.reshape(shape))
    with tf.GradientTape() as tape:
        tape.watch([weights, trained])
        found = weights_by_step(weights, tf.constant(initial.reshape(shape)), trained, bits)
    of_weights, of_factors = tape.gradient(found, [weights, trained], tf.constant(upstream))
    for channel in range(5):
        values, up = kernel[..., channel].astype(np.float64), upstream[..., channel]
        step = float(initial[channel] * factors[channel])
        rounded, of_values, of_step = lsq(values, step, -most, most, up, sharing=24)
        np.testing.assert_allclose(found[..., channel], rounded, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(of_weights[..., channel], of_values)
        # s = initial * factor: a step of SGD moves s by `initial` times the change of the factor
        np.testing.assert_allclose(initial[channel] * of_factors[0, 0, 0, channel], of_step, rtol=2e-4)


def test_weights_with_a_step_of_zero_stay_unchanged() -> None:
    weights, factors = tf.constant([[0.3, 0.0], [1.0, 0.0]]), tf.ones([1, 2])
    with tf.GradientTape() as tape:
        tape.watch([weights, factors])
        found = weights_by_step(weights, tf.zeros([1, 2]), factors, 4)
    np.testing.assert_array_equal(found, weights)
    of_weights, of_factors = tape.gradient(found, [weights, factors])
    assert of_weights.numpy().tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert of_factors.numpy().tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(("bits", "unsigned"), [(4, False), (8, True)])
def test_activations_and_gradients_match_the_paper(bits: int, unsigned: bool) -> None:
    lowest = 0 if unsigned else -(2 ** (bits - 1))
    highest = lowest + 2**bits - 1
    generator = np.random.default_rng(1)
    initial, factor = 4.0 / 2**bits, 0.5
    step = initial * factor
    values = generator.uniform(lowest * step - 1.0, highest * step + 1.0, (6, 5, 2)).astype(np.float32)
    values[0, :, 0] = [lowest * step, highest * step, 0.0, highest * step + 1.0, lowest * step - 1.0]
    upstream = generator.normal(size=values.shape).astype(np.float32)
    given, trained = tf.constant(values), tf.constant(factor)
    limits = nudged(tf.constant([lowest * initial, highest * initial], tf.float32), bits)
    with tf.GradientTape() as tape:
        tape.watch([given, trained])
        found = activations_by_step(given, limits, trained, bits, quantize_activations)
    of_given, of_factor = tape.gradient(found, [given, trained], tf.constant(upstream))
    rounded, of_values, of_step = lsq(values.astype(np.float64), step, lowest, highest, upstream, sharing=10)
    np.testing.assert_allclose(found, rounded, atol=1e-5)
    np.testing.assert_allclose(of_given, of_values)
    np.testing.assert_allclose(initial * of_factor, of_step, rtol=1e-4)
    assert found[0, 2, 0].numpy() == 0.0


def test_initial_limits_come_from_the_mean_magnitude() -> None:
    seen = tf.constant([[0.0, 3.0, 0.5], [-2.0, 3.0, 0.5]])
    found = initial_limits(seen, tf.constant([True, False]), 4)
    unsigned, signed = 2 * 0.5 / np.sqrt(15), 2 * 0.5 / np.sqrt(7)
    np.testing.assert_allclose(found, [[0.0, 15 * unsigned], [-8 * signed, 7 * signed]], rtol=1e-6)


def test_levels_are_unsigned_where_nothing_is_negative() -> None:
    inputs = x = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, activation="relu", padding="same", name="conv")(x)
    y = layers.Conv2D(4, 1, name="shift")(layers.MaxPooling2D(2)(x))
    y = layers.UpSampling2D(2, name="up")(layers.ReLU(name="relu")(layers.Conv2D(4, 1)(y)))
    x = layers.Add(name="sum")([x, y])
    model = keras.Model(inputs, layers.Dense(2, name="logits")(layers.GlobalAveragePooling2D(name="mean")(x)))
    inserter = Inserter(Pass())
    made = inserter.rebuilt(model)
    steps, points = LearnedSteps([(model.get_layer("conv").kernel, (-1,))], len(inserter.names)), len(inserter.names)
    assert steps.attached(made).trainable_variables[-1].shape == (points + 4,)
    assert [inserter.names[index] for index in steps.inputs] == ["image"]
    limits = steps.new_ranges(tf.zeros([points, 2]), tf.ones([points, 3]), tf.ones([points + 4]), 8).numpy()
    signs = dict(zip(inserter.names, (limits[:, 0] == 0.0).tolist(), strict=True))
    del signs["image"]
    assert signs == {"conv": True, "shift": False, "relu": True, "sum": True, "mean": True, "logits": False}
