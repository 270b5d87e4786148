"""One training step of one network with one hook, stage by stage, without the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.run import Run
from hookline.trainer.step.context import BuildContext, StepContext
from tests.support.runs import batches_of, seen_run


@dataclass
class Bench:
    """A hook and a network, built; `step` trains once, `weights` shows what the forward pass uses."""

    hook: GraphHook
    network: Network
    jit: bool = False
    steps: int = 0
    function: Callable | None = None
    weights_of_step: dict[str, np.ndarray] = field(default_factory=dict)

    def context(self, step: tf.Tensor, *, training: bool) -> StepContext:
        context = StepContext(step, 7, training, "objective", self.network, {})
        context.latent = {name: tf.convert_to_tensor(v.value) for name, v in self.network.trainable_variables.items()}
        context.weights = self.hook.transform_weights(dict(context.latent), context)
        return context

    def weights(self, *, training: bool = False, step: int = 0) -> dict[str, np.ndarray]:
        context = self.context(tf.constant(step, tf.int64), training=training)
        return {name: value.numpy() for name, value in context.weights.items()}

    def forward(self, context: StepContext, inputs: tf.Tensor, *, training: bool) -> tf.Tensor:
        model = self.network.model
        state = [variable.value for variable in model.non_trainable_variables]
        weights = [context.weights[name] for name in self.network.trainable_variables]
        outputs, new_state = model.stateless_call(weights, state, inputs, training=training)
        if training:
            for variable, value in zip(model.non_trainable_variables, new_state, strict=True):
                variable.value.assign(value)
        return outputs

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        context = self.context(tf.constant(0, tf.int64), training=False)
        return self.forward(context, tf.constant(inputs), training=False).numpy()

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        self.function = self.function or tf.function(self._step, autograph=False, jit_compile=self.jit)
        used, measures = self.function(tf.constant(self.steps, tf.int64), tf.constant(inputs), tf.constant(targets))
        self.steps += 1
        self.weights_of_step = {name: value.numpy() for name, value in used.items()}
        return {name: float(value) for name, value in measures.items()}

    def _step(self, step: tf.Tensor, inputs: tf.Tensor, targets: tf.Tensor):
        context = self.context(step, training=True)
        outputs = self.forward(context, inputs, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))
        gradients = tf.gradients(loss, list(context.latent.values()))
        context.gradients = dict(zip(context.latent, gradients, strict=True))
        self.network.optimizer.apply(gradients, list(self.network.trainable_variables.values()))
        self.hook.project(context)
        return context.weights, self.hook.measure(context)


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    def make(hook: GraphHook, model: keras.Model, optimizer=None, *, jit: bool = False) -> Bench:
        hook.name = hook.name or "bnn_rounding"
        model = hook.rebuild_model(model)
        optimizer = optimizer or keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
        network = Network("model", model, optimizer)
        hook.build(BuildContext(network, total_steps=10, steps_per_epoch=5, batch_size=16, seed=7))
        return Bench(hook, network, jit)

    return make


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Run]:
    """Return a function that makes the run of a network, with some training inputs where they are given."""

    def make(network: Network, steps: int, *, inputs: np.ndarray | None = None) -> Run:
        training = None if inputs is None else batches_of(inputs, len(inputs))
        return seen_run(tmp_path, {network.name: network}, training=training, total_steps=steps)

    return make
