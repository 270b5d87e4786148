"""Every graph hook in half precision, in micro batches, on replicas. A new hook is covered automatically."""

from dataclasses import replace
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from omegaconf import OmegaConf

from hookline.hooks import catalogue, load
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import ObjectiveOutput
from hookline.trainer.run.blueprint import build_hook
from hookline.trainer.run.machine import POLICIES, computing_in
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.metrics import LossScale
from hookline.trainer.step.stage import order_hooks
from hookline.trainer.step.trainer import Trainer
from tests.support import replicas
from tests.support.door import OPTIONS
from tests.support.toy import BATCH, CLASSES, ToyObjective, build_context

SIDE = 6


def image_batch(step):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(BATCH, SIDE, SIDE, 1)).astype(np.float32)
    return {"inputs": tf.constant(inputs), "targets": tf.constant(generator.integers(CLASSES, size=BATCH))}


def small_network(*extra):
    """Return a convolutional network, without batch norm and dropout unless given; its optimizer is not built."""
    layers = [
        keras.Input((SIDE, SIDE, 1)),
        keras.layers.Conv2D(3, 3, activation="tanh", name="conv_1"),
        *extra,
        keras.layers.Conv2D(3, 3, activation="tanh", name="conv_2"),
        keras.layers.Flatten(name="flatten"),
        keras.layers.Dense(CLASSES, name="outputs"),
    ]
    return Network("model", keras.Sequential(layers, name="small"), keras.optimizers.Adam(0.01))


def from_catalogue(name, **changes):
    node = OmegaConf.to_container(OmegaConf.load(catalogue()[name].config_file))[name]
    hook = build_hook(name, {**node, **OPTIONS.get(name, {}), **changes})
    assert isinstance(hook, GraphHook)
    return hook


HOOKS = [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook)]
STEPS = 3
SYNCHRONIZED = "synchronized_batch_norm"
"""Refuses micro batches on replicas."""
TOGETHER = [
    ("bernoulli_attention", SYNCHRONIZED),
    ("bnn_rounding", "bop", "center_loss", "clip_gradients", "ema"),
    ("distillation", "freeze_layers", "prune", "weight_clustering"),
    ("frozen_mask", "fused_batch_norm", "quantization_aware_training", "sam"),
    ("gradient_override", "incremental_quantization", "nan_guard"),
]
"""The fewest runs that include every hook. A new hook gets its own run."""
RUNS = [*TOGETHER, *((name,) for name in sorted({*HOOKS}.difference(*TOGETHER)))]


def built(names, network):
    hooks = order_hooks([from_catalogue(name) for name in names])
    for hook in hooks:
        hook.network = network.name
        network.model = hook.rebuild_model(network.model)
    for hook in hooks:
        network.taps |= hook.request_taps(network.model)
    network.optimizer.build(network.model.trainable_variables)
    for hook in hooks:
        hook.build(replace(build_context(network), total_steps=STEPS, steps_per_epoch=1.0, classes=CLASSES))
    return hooks


class Float32Loss(ToyObjective):
    def compute(self, forward, batch):
        outputs = forward(self.network, batch["inputs"])
        assert outputs.dtype.name in ("float16", "bfloat16")
        logits = tf.cast(outputs, tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
        return ObjectiveOutput({"loss": loss}, outputs=logits)


@pytest.mark.parametrize("names", RUNS, ids="+".join)
@pytest.mark.parametrize("precision", ["float16", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_hooks_train_and_evaluate_in_half_precision(names, precision):
    with computing_in(precision):
        network = small_network(keras.layers.BatchNormalization())
        hooks = built(names, network)
        scale = LossScale() if precision == "float16" else None
        trainer = Trainer([network], [Float32Loss()], hooks, seed=0, loss_scale=scale)
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


def trained(names, count=1, **options):
    given = {"network": small_network, "hooks": partial(built, names), "batch": image_batch, "steps": STEPS}
    return replicas.trained(count, **given, **options)


def whole(names):
    """Return the run on one replica, and whether it draws random numbers."""
    drawn = []
    seed = StepContext.stateless_seed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepContext, "stateless_seed", lambda context, salt: drawn.append(salt) or seed(context, salt))
        found = trained(names)
    return found, bool(drawn) or any("seed_generator" in key for key in found[0])


@pytest.mark.parametrize("names", RUNS, ids="+".join)
def test_hooks_give_the_same_run_in_micro_batches_and_on_replicas(names):
    expected, draws = whole(names)
    if draws or SYNCHRONIZED in names:
        replicas.assert_same_run(trained(names, 2), expected)
        variables, reported = trained(names, accumulation_steps=2)
    else:  # one run with both must match the whole run, too
        variables, reported = trained(names, 2, accumulation_steps=2)
    assert all(np.isfinite(value).all() for value in [*variables.values(), *reported.values()])
    assert (variables.keys(), list(reported)) == (expected[0].keys(), list(expected[1]))
    if not draws:  # where each micro batch draws its own numbers, they are equal only on average
        replicas.assert_same_run((variables, reported), expected, tolerance=1e-4)
