"""A gradient that rises with the run: by the formula of the paper, before the layer and nowhere else."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.gradient_override import GradientOverride
from tests.support.toy import ToyObjective, build_context, toy_batch, toy_loop, toy_network
from trainer.errors import UserError
from trainer.hook import Gradients
from trainer.step.trainer import Trainer

STEPS = 100  # of the run that build_context describes


def rising(**options: Any) -> GradientOverride:
    backward = {"name": "reverse", "factor": 0.5}
    hook = GradientOverride(**{"layers": "logits", "backward": backward, "rise": 10, **options})
    hook.name = "gradient_override"
    return hook


def gradients_at(step: int, hooks: list[GradientOverride]) -> dict[str, np.ndarray]:
    """Return the gradients of a step of the toy problem, with the same weights every time."""
    keras.utils.set_random_seed(3)
    network = toy_network()
    for hook in hooks:
        network.model = hook.rebuild_model(network.model)
        hook.build(build_context(network))
    trainer = Trainer([network], [ToyObjective()], hooks, seed=0)

    @tf.function(autograph=False)
    def gradients(number: tf.Tensor) -> Gradients:
        batch = toy_batch(tf.constant(0, tf.int64))
        forward = trainer.forward(number, batch, objective="objective", training=True)
        losses = trainer.losses(trainer.objectives[0], forward, batch).losses
        return trainer.compute_gradients(losses["total"], forward.passes)["model"]

    found = gradients(tf.constant(step, tf.int64))
    return {name.rpartition("toy/")[2]: value.numpy() for name, value in found.items()}


@pytest.mark.parametrize("step", [0, 1, 10, 50, 99])
def test_the_gradient_before_the_layer_rises_by_the_formula_and_behind_it_stays(step: int) -> None:
    plain, found = gradients_at(step, []), gradients_at(step, [rising()])
    risen = 2.0 / (1.0 + np.exp(-10.0 * step / STEPS)) - 1.0
    for name, value in plain.items():
        factor = 1.0 if name.startswith("logits/") else -0.5 * risen
        np.testing.assert_allclose(found[name], factor * value, atol=1e-6, err_msg=name)
    assert np.abs(plain["hidden/kernel"]).max() > 1e-3


def test_a_backward_that_needs_the_inputs_rises_too_and_without_a_rise_nothing_is_scaled() -> None:
    plain = gradients_at(0, [])["hidden/kernel"]
    np.testing.assert_allclose(gradients_at(0, [rising(rise=0)])["hidden/kernel"], -0.5 * plain, atol=1e-6)
    np.testing.assert_array_equal(gradients_at(0, [rising(backward="clip")])["hidden/kernel"], np.zeros_like(plain))


def test_the_traced_loop_reports_the_rise_of_the_steps_that_it_makes() -> None:
    for rise in (0.0, 10.0):
        hook, network = rising(rise=rise), toy_network()
        network.model = hook.rebuild_model(network.model)
        loop = toy_loop([hook], network=network)
        loop.run(0, 2)
        loop.accumulators.reset()
        loop.run(2, 2)
        expected = np.mean([2.0 / (1.0 + np.exp(-10.0 * step / STEPS)) - 1.0 for step in (2, 3)])
        reported = {name: value for name, value in loop.accumulators.read().items() if "rise" in name}
        assert reported == ({"gradient_override/rise": pytest.approx(expected, rel=1e-5)} if rise else {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rise": -1}, "Invalid rise: -1. Expected a number of 0 or more, such as 10"),
        ({"rise": "10"}, "Invalid rise: '10'"),
        ({"backward": "identity"}, "rise=10 received for backward identity. Expected 0"),
        ({"layers": None, "op_type": "Relu"}, "rise=10 received for backward reverse. Expected 0.*of layers can rise"),
    ],
)
def test_what_cannot_rise_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        rising(**options)
    assert "\n" not in str(caught.value)
