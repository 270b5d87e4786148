"""Measures of modes, against counts spelled out in loops."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.adversarial.sample_quality import mode_metrics

MODES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]], np.float32)
STD = 0.25  # three of them are 0.75: distances on a grid of quarters are exact

# Points on a grid of quarters, away from the lines halfway between two modes, and some that are not finite.
PLACES = st.one_of(
    st.tuples(*[st.integers(-12, 28).map(lambda n: n / 4).filter(lambda x: x != 2.0)] * 2),
    st.sampled_from([(math.nan, 0.0), (0.0, math.inf), (-math.inf, math.nan)]),
)


def expected(samples: list[tuple[float, float]], least: int) -> dict[str, float]:
    good, near = [0] * len(MODES), [0] * len(MODES)
    for point in samples:
        if all(map(math.isfinite, point)):
            distances = [math.dist(point, mode) for mode in MODES]
            nearest = distances.index(min(distances))
            near[nearest] += 1
            good[nearest] += min(distances) <= 3 * STD
    shares = [count / sum(near) for count in near if count]
    return {
        "modes": sum(count >= least for count in good),
        "high_quality": sum(good) / len(samples),
        "kl_to_uniform": math.log(len(MODES)) + sum(share * math.log(share) for share in shares),
    }


@functools.cache
def traced(least: int):
    signature = tf.TensorSpec([None, 2], tf.float32)
    return tf.function(
        lambda samples: mode_metrics(samples, tf.constant(MODES), STD, least=least),
        autograph=False,
        input_signature=[signature],
    )


def measured(samples, least: int = 1) -> dict[str, float]:
    return {name: float(value) for name, value in traced(least)(tf.constant(samples, tf.float32)).items()}


@settings(deadline=None, max_examples=60)
@given(st.lists(PLACES, min_size=1, max_size=40), st.sampled_from([1, 2, 5]))
def test_measures_are_those_of_the_definition(samples, least) -> None:
    assert measured(samples, least) == pytest.approx(expected(samples, least), abs=1e-5)


def test_samples_of_the_mixture_itself_score_best() -> None:
    generator = np.random.default_rng(0)
    samples = np.repeat(MODES, 2500, axis=0) + STD * generator.normal(size=(10_000, 2))
    values = measured(samples)
    assert values["modes"] == 4
    assert values["kl_to_uniform"] < 1e-5
    assert values["high_quality"] == pytest.approx(1 - math.exp(-4.5), abs=0.003)  # of a circle of 3 std in a plane
    collapsed = measured(np.tile(MODES[2], (100, 1)))
    assert collapsed == pytest.approx({"modes": 1, "high_quality": 1.0, "kl_to_uniform": math.log(4)})
    assert measured([[0.75, 0.0], [0.7501, 0.0]])["high_quality"] == 0.5  # three deviations count
    line = mode_metrics(tf.constant([[1.0], [9.0]]), tf.constant([[1.0], [5.0], [9.0]]), 0.1)
    assert float(line["modes"]) == 2.0
