"""Every graph hook does in micro batches what it does over the whole batch. A new hook is covered by being there."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks import catalogue, load
from tests.support.small_images import from_catalogue, image_batch, small_network
from tests.support.toy import CLASSES, ToyObjective, build_context
from trainer.hook import GraphHook
from trainer.step.context import StepContext
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

HOOKS = [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook)]
STEPS = 3


def trained(name: str, accumulation_steps: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return every variable, of the network and of the hook, and the reported values after a few steps."""
    keras.utils.set_random_seed(0)
    hook = from_catalogue(name)
    network = small_network()
    hook.network = network.name
    network.model = hook.rebuild_model(network.model)
    network.taps |= hook.request_taps(network.model)
    network.optimizer.build(network.model.trainable_variables)
    hook.build(replace(build_context(network), total_steps=STEPS, steps_per_epoch=1.0, classes=CLASSES))
    trainer = Trainer([network], [ToyObjective()], [hook], seed=0, accumulation_steps=accumulation_steps)
    loop = ChunkLoop(trainer, image_batch, xla=False)
    assert loop.run(0, STEPS) == (STEPS, [])
    variables = {**network.variables, **network.optimizer_variables, **hook.state()}
    return {key: np.array(variable) for key, variable in variables.items()}, loop.accumulators.read()


@pytest.fixture
def drawn(monkeypatch) -> list[str]:
    """Return the names of what is drawn for a network and its hooks, once they are."""
    names: list[str] = []
    seed = StepContext.stateless_seed

    def noted(context: StepContext, salt: str) -> tf.Tensor:
        names.append(salt)
        return seed(context, salt)

    monkeypatch.setattr(StepContext, "stateless_seed", noted)
    return names


@pytest.mark.parametrize("name", HOOKS)
def test_hook_gives_the_same_run_in_micro_batches(name: str, drawn: list[str]) -> None:
    whole, whole_reported = trained(name, 1)
    parts, reported = trained(name, 2)
    assert list(reported) == list(whole_reported)
    assert parts.keys() == whole.keys()
    if drawn or any("seed_generator" in key for key in whole):  # each micro batch draws for itself: equal on average
        assert all(np.isfinite(value) for value in reported.values())
        return
    assert reported == pytest.approx(whole_reported, rel=1e-4, abs=1e-6)
    for key, value in whole.items():
        np.testing.assert_allclose(parts[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
