"""Gradient penalties against finite differences, and the second derivatives that train with them."""

from __future__ import annotations

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hookline.recipes.adversarial.settings import (
    LOSSES,
    NOISES,
    PENALTIES,
    Noise,
    Penalty,
    r1_penalty,
    two_sided_penalty,
)
from hookline.recipes.models.gan_mlp import gan_mlp

NETWORKS, BATCH = 2, 5
SEED = (3, 4)


@pytest.fixture
def scores():
    model = gan_mlp((2,), role="discriminator", stacked=NETWORKS, units=[7], discriminator_activation="tanh")

    def of(points):
        return tf.cast(model(points), tf.float32)[..., 0]

    of.model = model
    return of


def draw(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def traced(function, *arrays):
    """Run a function in a graph, where `tf.gradients` works."""
    return tf.function(function, autograph=False)(*(tf.constant(array) for array in arrays)).numpy()


def slopes_by_differences(scores, points, step=1e-2):
    """The length of each score's gradient by central differences: [networks, batch]."""
    axes = [np.eye(2, dtype=np.float32)[axis] * step for axis in range(2)]
    partial = [(scores(points + axis).numpy() - scores(points - axis).numpy()) / (2 * step) for axis in axes]
    return np.sqrt(np.sum(np.square(partial), axis=0))


def test_r1_is_half_the_squared_slope_at_the_real_examples(scores):
    real = draw((NETWORKS, BATCH, 2))
    found = traced(lambda points: r1_penalty(scores, points, tf.gradients), real)
    assert found.shape == (NETWORKS, BATCH)
    np.testing.assert_allclose(found, 0.5 * slopes_by_differences(scores, real) ** 2, rtol=2e-3, atol=1e-5)


def test_the_two_sided_penalty_is_between_real_and_generated_examples(scores):
    real, fake = draw((NETWORKS, BATCH, 2)), draw((NETWORKS, BATCH, 2), 1)
    found = traced(lambda a, b: two_sided_penalty(scores, a, b, tf.constant(SEED), tf.gradients), real, fake)
    share = tf.random.stateless_uniform([NETWORKS, BATCH, 1], SEED).numpy()
    points = share * real + (1 - share) * fake
    np.testing.assert_allclose(found, (slopes_by_differences(scores, points) - 1) ** 2, rtol=5e-3, atol=1e-4)
    assert len(np.unique(share)) == NETWORKS * BATCH  # a place of its own for each
    more = draw((NETWORKS, BATCH + 3, 2), 1)  # more generated examples than real ones are cut
    seed = tf.constant(SEED)
    cut = traced(lambda a, b: Penalty("two_sided", 2.5)(scores, a, b, seed, tf.gradients), real, more)
    alone = traced(lambda a, b: two_sided_penalty(scores, a, b, seed, tf.gradients), real, more[:, :BATCH])
    np.testing.assert_allclose(cut, 2.5 * alone, rtol=1e-5)


@pytest.mark.parametrize("kind", PENALTIES)
def test_the_gradient_of_the_penalty_is_a_second_derivative(scores, kind):
    real, fake = draw((NETWORKS, BATCH, 2)), draw((NETWORKS, BATCH, 2), 1)
    penalty = Penalty(kind, 3.0)
    kernel = scores.model.trainable_variables[0]

    def total(a, b):
        return tf.reduce_sum(penalty(scores, a, b, tf.constant(SEED), tf.gradients))

    gradient = traced(lambda a, b: tf.gradients(total(a, b), [kernel.value])[0], real, fake)
    start, moved = kernel.numpy(), draw(kernel.shape, 2)
    step, values = 1e-2, []
    for sign in (1, -1):
        kernel.assign(start + sign * step * moved)
        values.append(float(traced(total, real, fake)))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(np.sum(gradient * moved)), rel=2e-2)


def test_an_example_without_slope_gives_no_nan():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])

    def flat(points):
        return tf.reshape(model(tf.reshape(points, [-1, 2])), tf.shape(points)[:2])

    def gradient(a, b):
        penalty = tf.reduce_sum(two_sided_penalty(flat, a, b, tf.constant(SEED), tf.gradients))
        return tf.gradients(penalty, [model.trainable_variables[0].value])[0]

    assert np.isfinite(traced(gradient, draw((1, BATCH, 2)), draw((1, BATCH, 2), 1))).all()


SCORES = st.lists(st.floats(-50.0, 50.0, width=32), min_size=1, max_size=8)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-scores))


ORACLES = {
    # name: (real, fake, generator) in float64, from the papers' formulas
    "non_saturating": (
        lambda s: -np.log(sigmoid(s)),
        lambda s: -np.log(sigmoid(-s)),  # 1 - sigmoid(s), without its loss of digits
        lambda s: -np.log(sigmoid(s)),
    ),
    "hinge": (lambda s: np.maximum(0.0, 1.0 - s), lambda s: np.maximum(0.0, 1.0 + s), lambda s: -s),
    "wasserstein": (lambda s: -s, lambda s: s, lambda s: -s),
}


@pytest.mark.parametrize("name", LOSSES)
@given(scores=SCORES)
def test_every_term_is_the_papers_formula(name: str, scores: list[float]):
    values = np.array(scores, np.float64)
    loss = LOSSES[name]
    for term, oracle in zip((loss.real, loss.fake, loss.generator), ORACLES[name], strict=True):
        found = term(tf.constant(scores, tf.float32)).numpy()
        np.testing.assert_allclose(found, oracle(values), rtol=1e-4, atol=1e-5)
        assert found.shape == values.shape


def test_the_generator_rises_where_the_discriminator_wins():
    for name, loss in LOSSES.items():
        scores = tf.constant([-20.0, -1.0, 0.0])
        with tf.GradientTape() as tape:
            tape.watch(scores)
            total = loss.generator(scores)
        assert (tape.gradient(total, scores).numpy() < -0.4).all(), name  # a saturating loss would be flat at -20
        assert loss.needs_penalty == (name == "wasserstein")


class Seeds:
    """Stand for an objective's forward: a seed for each salt."""

    def __init__(self, run=0):
        self.run, self.salts = run, []

    def stateless_seed(self, salt):
        self.salts.append(salt)
        digest = hashlib.sha256(f"{self.run} {salt}".encode()).digest()
        return tf.constant([int.from_bytes(digest[:3]), int.from_bytes(digest[3:6])])


@pytest.mark.parametrize("kind", NOISES)
def test_noise_has_its_distribution(kind):
    noise = Noise(4, kind).draw(Seeds(), 3, 4000, use="noise").numpy()
    assert noise.shape == (3, 4000, 4)
    assert noise.dtype == np.float32
    expected = {"normal": 1.0, "uniform": 1.0 / 3.0}[kind]
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.06)
    np.testing.assert_allclose(noise.var(axis=1), expected, rtol=0.08)
    assert (np.abs(noise).max() <= 1.0) == (kind == "uniform")


def test_each_generator_draws_with_a_seed_of_its_own():
    seeds = Seeds()
    noise = Noise(2).draw(seeds, 3, 50, use="noise").numpy()
    assert len(set(seeds.salts)) == 3
    assert len(np.unique(noise)) == noise.size
    np.testing.assert_array_equal(Noise(2).draw(Seeds(), 2, 50, use="noise"), noise[:2])  # whoever else draws
    assert not np.array_equal(Noise(2).draw(Seeds(), 3, 50, use="sample"), noise)
    assert not np.array_equal(Noise(2).draw(Seeds(run=1), 3, 50, use="noise"), noise)
