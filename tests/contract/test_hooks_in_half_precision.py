"""Every graph hook trains a network that computes in half precision. A new hook is covered by being there."""

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
from trainer.objective import ObjectiveOutput
from trainer.run.precision import POLICIES, computing_in, loss_scale_for
from trainer.step.evaluate import Evaluator
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

HOOKS = [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook)]
STEPS = 3


class Float32Loss(ToyObjective):
    """Compute the loss of a network in float32, as every recipe does."""

    def compute(self, forward, batch):
        outputs = forward(self.network, batch["inputs"])
        assert outputs.dtype.name in ("float16", "bfloat16")
        logits = tf.cast(outputs, tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
        return ObjectiveOutput({"loss": loss}, outputs=logits)


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("precision", ["float16", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_hook_trains_and_evaluates(name: str, precision: str) -> None:
    with computing_in(precision):
        hook = from_catalogue(name)
        network = small_network(keras.layers.BatchNormalization())
        hook.network = network.name
        network.model = hook.rebuild_model(network.model)
        network.taps |= hook.request_taps(network.model)
        network.optimizer.build(network.model.trainable_variables)
        hook.build(replace(build_context(network), total_steps=STEPS, steps_per_epoch=1.0, classes=CLASSES))
        trainer = Trainer([network], [Float32Loss()], [hook], seed=0, loss_scale=loss_scale_for(precision))
        loop = ChunkLoop(trainer, image_batch, xla=False)
        evaluator = Evaluator(trainer, image_batch, 1)
    before = {key: np.array(variable) for key, variable in network.weights.items()}
    assert loop.run(0, STEPS) == (STEPS, [])
    after = {key: np.array(variable) for key, variable in network.weights.items()}
    assert {value.dtype.name for value in after.values()} == {"float32"}
    assert all(np.isfinite(value).all() for value in after.values())
    assert any(not np.array_equal(value, before[key]) for key, value in after.items())
    assert all(np.isfinite(value) for value in {**loop.accumulators.read(), **evaluator.run(STEPS)}.values())
    layers = [layer for layer in network.model._flatten_layers(include_self=False) if layer.name.startswith("conv")]
    assert {layer.dtype_policy.name for layer in layers} == {POLICIES[precision]}
