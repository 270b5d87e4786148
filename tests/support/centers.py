"""What tests of the center loss share: a small network with features, the hook built on it, loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.center_loss import CenterLoss
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, Objective
from hookline.trainer.step.loop import BatchFunction, ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import CLASSES, FEATURES, ToyObjective, build_context, toy_batch


def feature_network(optimizer: keras.optimizers.Optimizer | None = None, *, width: int = 2) -> Network:
    """Return a dense layer "features" and a dense layer "logits"; the features depend on their kernel alone."""
    inputs = keras.Input((FEATURES,))
    features = keras.layers.Dense(width, use_bias=False, name="features")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(features))
    network = Network("model", model, optimizer or keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
    return network


def built(network: Network, hook: CenterLoss | None = None, **options: Any) -> CenterLoss:
    """Return the hook "center_loss" built on a network, with a full weight of 0.5 from the first step on."""
    hook = hook or CenterLoss(**{"weight": 0.5, "warm_up_epochs": 0.0, **options})
    hook.name = hook.name or "center_loss"
    network.taps |= hook.request_taps(network.model)
    hook.build(replace(build_context(network), classes=CLASSES))
    return hook


def center_loop(
    network: Network,
    hooks: Sequence[GraphHook],
    *,
    batch: BatchFunction = toy_batch,
    xla: bool = False,
    objectives: Sequence[Objective] = (),
    accumulation_steps: int = 1,
) -> ChunkLoop:
    """Return a traced and audited loop over the toy problem; the hooks are built already."""
    trainer = Trainer(
        [network], list(objectives) or [ToyObjective()], hooks, seed=0, accumulation_steps=accumulation_steps
    )
    return ChunkLoop(trainer, batch, xla=xla)


def read_batch(step: int) -> dict[str, np.ndarray]:
    """Return the toy batch of a step as arrays."""
    return {name: tensor.numpy() for name, tensor in toy_batch(tf.constant(step, tf.int64)).items()}


def features_of(network: Network, batch: Batch | dict[str, np.ndarray]) -> np.ndarray:
    """Return what the layer "features" gives for a batch, with the weights of now."""
    return np.asarray(batch["inputs"] @ network.variables["features/kernel"].numpy())


def paper_update(centers: np.ndarray, features: np.ndarray, labels: np.ndarray, alpha: float) -> np.ndarray:
    """Return the centers after one step of equation 4 of the paper."""
    after = centers.copy()
    for j in range(len(centers)):
        own = features[labels == j]
        after[j] -= alpha * (centers[j] - own).sum(axis=0) / (1 + len(own))
    return after
