"""One network with one hook: its weights, and training steps on a batch."""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.run import Run
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.loop import ChunkLoop
from tests.support.hooked import built
from tests.support.runs import batches_of, seen_run


class Bench:
    """A built hook and network; `step` trains once, `weights` returns what the forward pass uses."""

    def __init__(self, hook: GraphHook, network: Network, *, jit: bool) -> None:
        self.hook, self.network, self.jit = hook, network, jit
        self.trainer = built(network, hook)
        self.loop: ChunkLoop | None = None
        self.steps = 0

    def context(self, *, training: bool, step: int = 0) -> StepContext:
        forward = self.trainer.forward(tf.constant(step, tf.int64), {}, objective="objective", training=training)
        return forward.passes["model"].context

    def weights(self, *, training: bool = False, step: int = 0) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in self.context(training=training, step=step).weights.items()}

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        forward = self.trainer.forward(tf.constant(0, tf.int64), {}, objective="objective", training=False)
        return forward("model", tf.constant(inputs)).numpy()

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        batch = {"inputs": tf.constant(inputs), "targets": tf.constant(targets)}
        self.loop = self.loop or ChunkLoop(self.trainer, lambda step: batch, xla=self.jit)
        self.loop.accumulators.reset()
        self.loop.run(self.steps, 1)
        self.steps += 1
        return self.loop.accumulators.read()


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    def make(hook: GraphHook, model: keras.Model, optimizer=None, *, jit: bool = False) -> Bench:
        return Bench(hook, Network("model", model, optimizer or keras.optimizers.SGD(0.5)), jit=jit)

    return make


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Run]:
    """Return a function that creates a run of a network, optionally with training inputs."""

    def make(network: Network, steps: int, *, inputs: np.ndarray | None = None) -> Run:
        training = None if inputs is None else batches_of(inputs, len(inputs))
        return seen_run(tmp_path, {network.name: network}, training=training, total_steps=steps)

    return make
