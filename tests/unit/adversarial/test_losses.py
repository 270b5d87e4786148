"""Adversarial losses against their formulas, and the points at which they are even."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hookline.recipes.adversarial.settings import LOSSES

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
