"""A fused optimizer writes what the Keras optimizer of its name writes, step by step, whatever the settings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.optimizers.fused_update import LARGEST_DECAY_RATE
from tests.support.optimizers import PAIRS, built, set_state, state_of, traced

BOUND = 4e-5  # 2^-25 / (1 - 0.999) in a second moment, and room for the order of additions
CLIPPING = [{}, {"clipnorm": 0.5}, {"clipvalue": 0.1}, {"global_clipnorm": 0.5}]
BESIDE = [
    {},
    {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    {"loss_scale_factor": 8.0},
    {"gradient_accumulation_steps": 2},
]


def own_settings(name: str) -> dict[str, st.SearchStrategy]:
    if name == "SGD":
        return {"momentum": st.sampled_from([0.0, 0.5, 0.9, 0.99]), "nesterov": st.booleans()}
    epsilon = st.sampled_from([1e-8, 1e-7, 1e-3])
    if name == "RMSprop":
        momentum = st.sampled_from([0.0, 0.5, 0.9])
        return {"rho": st.sampled_from([0.0, 0.9, 0.999]), "momentum": momentum, "epsilon": epsilon}
    return {
        "beta_1": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
        "beta_2": st.sampled_from([0.5, 0.9, 0.99, LARGEST_DECAY_RATE]),
        "epsilon": epsilon,
        "amsgrad": st.sampled_from([False, False, True]),
    }


@st.composite
def cases(draw: st.DrawFn, name: str) -> tuple[dict[str, Any], list[list[np.ndarray]], list[np.ndarray]]:
    """Draw settings, gradients for each step, and first values."""
    options = {key: draw(each) for key, each in own_settings(name).items()}
    options |= draw(st.sampled_from(CLIPPING)) | draw(st.sampled_from(BESIDE))
    options["weight_decay"] = draw(st.sampled_from([0.0, 0.01, 0.3] + ([None] if name != "AdamW" else [])))
    options["learning_rate"] = draw(st.sampled_from([1e-4, 0.01, 0.3]))
    shapes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=2))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1e-4, 1.0, 100.0]))

    def arrays() -> list[np.ndarray]:
        return [(generator.normal(size=shape) * (generator.random(shape) < 0.9)).astype(np.float32) for shape in shapes]

    return options, [[np.float32(scale) * each for each in arrays()] for _ in range(draw(st.integers(1, 4)))], arrays()


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], before: list[np.ndarray]) -> None:
    for mine, other, first in zip(ours, theirs, before, strict=True):
        moved = np.abs(other.astype(np.float64) - first).max(initial=0.0)
        np.testing.assert_allclose(mine, other, rtol=5e-7, atol=BOUND * moved + 1e-30)


@pytest.mark.parametrize("name", PAIRS)
def test_each_step_is_that_of_keras(name: str) -> None:
    @settings(max_examples=12)
    @given(cases(name))
    def check(case) -> None:
        options, gradients, values = case
        theirs, ours = (kind(**options) for kind in PAIRS[name])
        their_variables, our_variables = built(theirs, values), built(ours, values)
        for step in gradients:
            before = state_of(theirs, their_variables)
            set_state(ours, our_variables, before)
            for optimizer, variables in ((theirs, their_variables), (ours, our_variables)):
                optimizer.apply([tf.constant(each) for each in step], variables)
            assert_close(state_of(ours, our_variables), state_of(theirs, their_variables), before)

    check()


@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {"momentum": 0.9, "nesterov": True}), ("AdamW", {"weight_decay": 0.1}), ("RMSprop", {"momentum": 0.9})],
)
def test_many_traced_steps_on_a_schedule_stay_together(name: str, options: dict[str, Any]) -> None:
    generator = np.random.default_rng(1)
    values = [generator.normal(size=(3, 4)).astype(np.float32)]
    gradients = [tf.constant(generator.normal(size=(3, 4)).astype(np.float32)) for _ in range(60)]
    found = []
    for kind in PAIRS[name]:
        optimizer = kind(keras.optimizers.schedules.CosineDecay(0.02, 100), **options)
        variables = built(optimizer, values)
        apply = traced(optimizer, variables, xla=name == "AdamW")
        for gradient in gradients:
            apply(gradient)
        found.append(state_of(optimizer, variables))
    assert np.abs(found[0][0] - values[0]).min() > 1e-3
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
