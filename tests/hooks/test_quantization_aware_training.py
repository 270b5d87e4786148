"""Quantization-aware training: what a step computes, its ranges, when it begins, what is shipped."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.plain_model import plain_model
from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.ema import Ema
from hookline.hooks.fused_batch_norm import FusedBatchNorm
from hookline.hooks.quantization_aware_training import QuantizationAwareTraining
from hookline.trainer.final_activation import take_off, with_final
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.state import shipped_bits, shipped_weights
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from tests.support.hooked import built, hooked, named, used_by
from tests.support.networks import Subclassed
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, toy_arrays, toy_batch, toy_model, values_of


def loop_of(
    *hooks: GraphHook, model: keras.Model | None = None, optimizer: keras.optimizers.Optimizer | None = None
) -> ChunkLoop:
    return hooked(Network("model", model or toy_model(), optimizer or keras.optimizers.SGD(0.1)), *hooks)


def state_of(hook: GraphHook) -> dict[str, np.ndarray]:
    return {name: each.numpy().copy() for name, each in hook.declare().state.items()}


def plain_sequential() -> keras.Model:
    layers = [keras.Input((6,), name="given"), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
    return keras.Sequential(layers)


def step_by_numpy(model: keras.Model, inputs: np.ndarray) -> np.ndarray:
    """Return the extremes of each point of the plain network, float [points, 2]."""
    first, last = model.layers
    hidden = np.maximum(inputs @ first.kernel.numpy() + first.bias.numpy(), 0.0)
    outputs = hidden @ last.kernel.numpy() + last.bias.numpy()
    return np.array([[min(each.min(), 0.0), max(each.max(), 0.0)] for each in (inputs, hidden, outputs)])


def test_ranges_move_once_per_step_and_not_in_a_vetoed_step() -> None:
    model, hook = plain_sequential(), QuantizationAwareTraining(begin_epoch=10.0, range_decay=0.5)
    veto = StatelessHook("veto")
    veto.veto = lambda context: {"held": context.step == 2}
    loop = loop_of(veto, hook, model=model)
    inputs, _ = toy_arrays()
    expected = step_by_numpy(model, inputs[:16])
    assert loop.run(0, 1) == (1, [])
    np.testing.assert_allclose(state_of(hook)["ranges"], expected, rtol=1e-5)
    expected = 0.5 * expected + 0.5 * step_by_numpy(model, inputs[16:32])
    loop.run(1, 1)
    np.testing.assert_allclose(state_of(hook)["ranges"], expected, rtol=1e-5)
    before = state_of(hook)
    assert loop.run(2, 1)[1] == ["held"]
    np.testing.assert_equal(state_of(hook), before)


def test_infinite_inputs_hold_the_step_back() -> None:
    network = Network("model", plain_sequential(), keras.optimizers.SGD(0.1))
    batch = {**toy_batch(tf.constant(0, tf.int64)), "inputs": tf.fill([16, 6], np.inf)}
    loop = hooked(network, QuantizationAwareTraining(), batch=lambda step: batch)
    assert loop.run(0, 3) == (0, ["state/quantization_aware_training/ranges"])


def test_quantized_forward_pass_matches_numpy() -> None:
    model, hook = plain_sequential(), QuantizationAwareTraining(range_decay=0.0)
    loop = loop_of(hook, model=model)
    loop.run(0, 1)  # finds ranges
    ranges, kernels = state_of(hook)["ranges"], used_by(loop, 1)

    def rounded(values: np.ndarray, point: int) -> np.ndarray:
        low, high = ranges[point]
        step = (high - low) / 255
        zero = np.round(-low / step)
        return step * (np.clip(np.round(values / step + zero), 0, 255) - zero)

    inputs, _ = toy_arrays()
    values = rounded(inputs, 0)
    for point, layer in enumerate(model.layers, start=1):
        kernel = layer.kernel.numpy()
        step = np.abs(kernel).max() / 127
        on_grid = np.round(kernel / step) * step
        np.testing.assert_allclose(kernels[layer.kernel.path], on_grid, atol=1e-6)
        values = values @ on_grid + layer.bias.numpy()
        values = rounded(np.maximum(values, 0.0) if point == 1 else values, point)
    shipped = hook.strip_model(loop.trainer.networks["model"].model)
    for variable, value in zip(shipped.weights, kernels.values(), strict=True):
        variable.assign(value)
    np.testing.assert_allclose(shipped(inputs), values, atol=1.01 * (ranges[2, 1] - ranges[2, 0]) / 255)
    assert (np.abs(shipped(inputs) - values) < 1e-4).mean() > 0.98  # except for halves


def test_training_is_float_before_the_begin() -> None:
    hook, plain = QuantizationAwareTraining(begin_epoch=1.0), loop_of()  # 4 steps
    loop = loop_of(hook)
    loop.trainer.networks["model"].model.set_weights(plain.trainer.networks["model"].model.get_weights())
    loop.run(0, 5)
    plain.run(0, 5)
    for mine, theirs in zip(*(used_by(each, 5).items() for each in (loop, plain)), strict=True):
        assert mine[0] == theirs[0]
        assert np.array_equal(mine[1], theirs[1]) == ("kernel" not in mine[0])  # now evaluations are rounded
    assert hook.declare().best_from_step == 5
    loop.run(5, 1)
    assert 0.0 < loop.accumulators.read()["quantization_aware_training/distance"] < 0.01


@pytest.mark.parametrize("trainable", [True, False])
def test_dense_layer_before_batch_norm_has_one_grid_after_folding(trainable: bool) -> None:
    model = toy_model()
    model.get_layer("norm").gamma.assign(np.arange(1.0, 9.0))
    model.get_layer("norm").trainable = trainable
    loop = loop_of(QuantizationAwareTraining(), model=model)
    loop.run(0, 6)
    bits = shipped_bits(loop.trainer, shipped_weights(loop.trainer, 6))["model"]
    assert sorted(bits.weights.values()) == [8, 8]
    assert sorted(bits.inputs.values()) == [8, 8]
    hidden = loop.trainer.networks["model"].model.get_layer("hidden")
    steps = np.abs(hidden.kernel.numpy()).max() / 127
    kernel = next(value for name, value in used_by(loop, 6).items() if name == hidden.kernel.path)
    assert not np.allclose(kernel / steps, np.round(kernel / steps), atol=1e-2)  # on no grid of its own


def test_convolution_has_one_step_per_channel_and_dense_layer_one_step() -> None:
    layers = [keras.Input((6,)), keras.layers.Reshape((6, 1)), keras.layers.Conv1D(4, 3), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    loop = loop_of(QuantizationAwareTraining(weight_bits=3), model=model)
    loop.run(0, 3)
    used = used_by(loop, 3)
    for layer, own in ((model.layers[1], (0, 1)), (model.layers[3], None)):
        kernel = used[layer.kernel.path]
        steps = 3.0 * kernel / np.abs(kernel).max(axis=own, keepdims=True)
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
        np.testing.assert_allclose(np.abs(kernel).max(axis=own), np.abs(layer.kernel).max(axis=own), rtol=1e-5)


def test_logits_are_rounded_before_the_softmax_of_their_layer() -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(3, activation="softmax")])
    model, finals = take_off(model)
    hook, inputs = named(QuantizationAwareTraining()), toy_arrays()[0]
    network = Network("model", model, keras.optimizers.SGD(0.1), final_activations=finals)
    hooked(network, hook).run(0, 2)
    shipped = hook.strip_model(network.model)
    before = shipped(inputs)
    assert len(np.unique(before)) < 150  # of 64 x 3 logits
    np.testing.assert_allclose(with_final(shipped, finals)(inputs), keras.ops.softmax(before), atol=1e-6)


def mixed(**options: Any) -> ChunkLoop:
    """Return a loop over a network of a convolution and two binary dense layers."""
    parts = [keras.Input((6,)), keras.layers.Reshape((6, 1)), keras.layers.Conv1D(4, 3, name="conv")]
    parts += [keras.layers.Flatten(), keras.layers.Dense(8, name="dense_1"), keras.layers.Dense(3, name="dense_2")]
    binary = BnnRounding(layers="dense_*", kernel_quantizer="magnitude_aware_sign", all_binary=True)
    return loop_of(QuantizationAwareTraining(**options), binary, model=keras.Sequential(parts, name="net"))


def test_each_kernel_is_rounded_by_exactly_one_of_two_hooks() -> None:
    loop = mixed()
    variables = loop.trainer.networks["model"].trainable_variables
    for name in ("net/conv/kernel", "net/dense_1/kernel"):
        variables[name].assign(variables[name] + 1.5)
    before = {name: each.numpy() for name, each in variables.items()}
    loop.run(0, 3)
    used = used_by(loop, 3)
    steps = 127 * used["net/conv/kernel"] / np.abs(used["net/conv/kernel"]).max(axis=(0, 1))
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    assert variables["net/conv/kernel"].numpy().max() > 1.0  # not clipped
    for name in ("net/dense_1/kernel", "net/dense_2/kernel"):
        latent = variables[name].numpy()
        expected = np.where(latent >= 0, 1.0, -1.0) * np.abs(latent).mean(axis=0)
        np.testing.assert_allclose(used[name], expected, rtol=1e-5)  # 8 bits for all columns would change it
        assert np.abs(latent).max() <= 1.0
        assert not np.array_equal(latent, np.clip(before[name], -1.0, 1.0))
    bits = shipped_bits(loop.trainer, shipped_weights(loop.trainer, 3))["model"]
    assert bits.weights == {"net/conv/kernel": 8, "net/dense_1/kernel": 1, "net/dense_2/kernel": 1}
    assert bits.inputs == {"conv": 8, "dense_1": 1, "dense_2": 1}


def test_subclassed_model_gets_rounded_weights_only_with_a_warning() -> None:
    model, hook = Subclassed(), QuantizationAwareTraining()
    model(tf.zeros([1, 6]))
    loop = loop_of(hook, model=model)
    loop.run(0, 2)
    assert list(state_of(hook)) == ["active"]
    kernel = next(value for name, value in used_by(loop, 2).items() if name.endswith("kernel"))
    steps = kernel / np.abs(kernel).max() * 127
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    (line,) = hook.advise(None)  # the run is not used
    assert "only weights" in line
    assert_refused("ranges=average", QuantizationAwareTraining(ranges="learned").rebuild_model, model)


def test_training_step_with_learned_step_sizes_matches_numpy() -> None:
    """Softmax regression: the gradients of its kernel and of its quantization step are known."""
    layer, most = keras.layers.Dense(3), 3
    model = keras.Sequential([keras.Input((6,)), layer])
    hook = QuantizationAwareTraining(ranges="learned", weight_bits=3, activation_bits=None)
    loop = loop_of(hook, model=model)
    latent = layer.kernel.numpy()
    loop.run(0, 1)  # float; finds the first step
    step = state_of(hook)["steps"][0]
    assert step == pytest.approx(2 * np.abs(latent).mean() / np.sqrt(most))
    inputs, targets = toy_arrays()
    factors = loop.trainer.networks["model"].model.trainable_variables[-1]
    for number in range(1, 4):
        rows = slice(16 * number, 16 * number + 16)
        latent, bias, factor = layer.kernel.numpy(), layer.bias.numpy(), factors.numpy()[0]
        scaled = latent / (step * factor)
        levels = np.clip(np.round(scaled), -most, most)
        inside = np.abs(scaled) < most
        logits = inputs[rows] @ (levels * step * factor) + bias
        errors = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) - np.eye(3)[targets[rows]]
        upstream = inputs[rows].T @ errors / 16
        of_step = (upstream * np.where(inside, levels - scaled, levels)).sum() / np.sqrt(18 * most)
        loop.run(number, 1)
        np.testing.assert_allclose(layer.kernel, latent - 0.1 * upstream * inside, rtol=1e-4, atol=1e-6)
        assert step * factors.numpy()[0] == pytest.approx(step * factor - 0.1 * of_step, rel=1e-5)
        assert abs(factors.numpy()[0] - factor) > 1e-5


def test_shipped_averages_lie_on_the_grid() -> None:
    layers = [keras.layers.Dense(5), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(3)]
    loop = loop_of(Ema(decay=0.9), QuantizationAwareTraining(), model=keras.Sequential([keras.Input((6,)), *layers]))
    loop.run(0, 20)
    bits = shipped_bits(loop.trainer, shipped_weights(loop.trainer, 20))["model"].stored
    assert [8.0 < each < 16.0 for name, each in bits.items() if name.endswith("kernel")] == [True, True]


def test_shipped_model_with_learned_steps_evaluates_like_the_run() -> None:
    hook = QuantizationAwareTraining(ranges="learned", weight_bits=4, begin_epoch=1.0)
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    loop = loop_of(Ema(decay=0.9), hook, optimizer=optimizer)
    decayed = [optimizer._use_weight_decay(each) for each in loop.trainer.networks["model"].model.trainable_variables]
    assert decayed == [True] * 6 + [False]  # the steps do not decay
    loop.run(0, 20)
    network = loop.trainer.networks["model"]
    factors = network.model.trainable_variables[-1].numpy()
    fixed = [0, *(index for index, (name, *_) in enumerate(hook.summary()["ranges"]) if name == "activation")]
    assert hook.summary()["ranges"][0][1:] == pytest.approx([-2.2, 2.1], abs=0.3)  # an average of inputs
    assert (factors[fixed] == 1.0).all()
    assert (np.delete(factors, fixed) != 1.0).all()
    found = Evaluator(loop.trainer, toy_batch, 4).run(0)
    bits = shipped_bits(loop.trainer, shipped_weights(loop.trainer, 20))["model"]
    assert list(bits.weights.values()) == [4, 4]  # on the grid of the averaged steps
    with plain_model(loop.trainer, 20, "model") as shipped:
        assert not [layer for layer in shipped.layers if type(layer).__module__.startswith("hookline")]
    plain = built(Network("model", shipped, keras.optimizers.SGD(0.1)))
    assert Evaluator(plain, toy_batch, 4).run(0) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_frozen_batch_norm_trains_as_it_evaluates(fused: bool) -> None:
    hook = QuantizationAwareTraining(begin_epoch=10.0, freeze_epoch=0.75, range_decay=0.5)
    model = toy_model()
    loop = loop_of(hook, *([FusedBatchNorm(min_entries=0, network="model")] if fused else []), model=model)
    loop.run(0, 3)
    assert all(each.numpy().std() > 0.0 for each in model.non_trainable_variables)  # they moved
    before, ranges = values_of(loop.trainer.networks["model"]), state_of(hook)["ranges"]
    batch = toy_batch(tf.constant(3, tf.int64))
    with tf.GradientTape() as tape:
        logits = model(batch["inputs"], training=False)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits))
    gradients = tape.gradient(loss, model.trainable_variables)
    loop.run(3, 1)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        np.testing.assert_allclose(variable, before[variable.path] - 0.1 * gradient, rtol=1e-4, atol=1e-6)
        assert (variable.numpy() != before[variable.path]).any()
    loop.run(4, 3)
    for variable in model.non_trainable_variables:
        np.testing.assert_array_equal(variable, before[variable.path])
    np.testing.assert_array_equal(state_of(hook)["ranges"], ranges)


def test_unsupported_kernels_are_refused_or_reported() -> None:
    message = r"'net/dense_2/kernel': bnn_rounding and .*hooks\.quantization_aware_training"
    assert_refused(message, mixed, layers=["conv", "dense_2"])
    for hook in (QuantizationAwareTraining(), QuantizationAwareTraining(ranges="learned")):
        half = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, dtype="bfloat16")])
        assert_refused("is bfloat16", loop_of, hook, model=half)
    model = keras.Sequential([keras.Input((6, 1)), keras.layers.SeparableConv1D(4, 3, name="apart")])
    built(Network("model", model, keras.optimizers.SGD(0.1)), hook := named(QuantizationAwareTraining()))
    assert ["'apart'" in line for line in hook.advise(None)] == [True]
