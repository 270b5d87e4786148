"""The rounding hook in a step: exact values, gradients of latent weights, projection, measures."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.quantization.latent_advice import rate_advice
from hookline.trainer.network import Network
from hookline.trainer.step.context import BuildContext
from tests.support.refusals import assert_refused

layers = keras.layers
INPUTS = np.random.default_rng(0).normal(size=(32, 12)).astype(np.float32)
TARGETS = (INPUTS @ np.random.default_rng(1).normal(size=(12, 3))).argmax(-1)


def functional() -> keras.Model:
    inputs = x = keras.Input((12,))
    for index in (1, 2, 3):
        x = layers.Dense(16, activation="hard_tanh", use_bias=False, name=f"dense_{index}")(x)
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


def kernels(bench) -> dict[str, np.ndarray]:
    projected = bench.hook.declare().projected
    return {name: v.numpy() for name, v in bench.network.trainable_variables.items() if name in projected}


def test_selected_kernels_are_signs_and_other_weights_are_unchanged(make_bench):
    bench = make_bench(BnnRounding(), functional())
    assert bench.hook.declare().projected == {"dense_2/kernel", "dense_3/kernel"}
    kernel = bench.network.trainable_variables["dense_2/kernel"]
    kernel.assign(np.resize([0.0, -0.0, 0.3, -0.3], (16, 16)))  # zeros count as +1
    for training in (True, False):
        for name, value in bench.weights(training=training).items():
            latent = bench.network.trainable_variables[name].numpy()
            expected = np.where(latent >= 0, 1, -1) if name in bench.hook.declare().projected else latent
            np.testing.assert_array_equal(value, expected)
    kernel.assign(np.full((16, 16), 1.5))
    bench.step(INPUTS, TARGETS)
    assert np.abs(kernel.numpy()).max() <= 1.0  # projected, not only clipped when read
    kernel.assign(np.full((16, 16), np.nan))
    assert np.isnan(bench.weights()["dense_2/kernel"]).all()  # NaN stays visible


def test_step_matches_numpy_in_signs_clip_and_measures(make_bench):
    bench = make_bench(BnnRounding(all_binary=True, clip=0.2), functional(), keras.optimizers.SGD(0.3))
    for variable in bench.network.trainable_variables.values():
        if variable.path in bench.hook.declare().projected:
            variable.assign(np.clip(variable.numpy(), -0.2, 0.2))
    moved = 0.0
    for _ in range(4):
        before, used = kernels(bench), bench.weights(training=True)
        measures = bench.step(INPUTS, TARGETS)
        after = kernels(bench)
        for name, value in before.items():
            np.testing.assert_array_equal(used[name], np.where(value >= 0, 1, -1) * np.float32(0.2))
            assert np.abs(after[name]).max() <= np.float32(0.2)
        flips = {name: (before[name] >= 0) != (after[name] >= 0) for name in before}
        saturated = {name: np.abs(after[name]) >= np.float32(0.2) for name in before}
        for metric, flags in (("flip_ratio", flips), ("saturation_ratio", saturated)):
            total = np.concatenate([flag.ravel() for flag in flags.values()]).mean()
            assert measures[f"bnn/{metric}"] == pytest.approx(total, abs=1e-6)
            for name, flag in flags.items():
                layer = name.removesuffix("/kernel")
                assert measures[f"bnn/{metric}/{layer}"] == pytest.approx(flag.mean(), abs=1e-6)
        moved += measures["bnn/flip_ratio"] * measures["bnn/saturation_ratio"]
    assert moved > 0, "the steps must flip and starve something, or the comparison says nothing"


def test_gradients_reach_latent_weights_up_to_and_including_the_clip(make_bench):
    bench = make_bench(BnnRounding(clip=0.5), functional())
    latent = np.resize([0.5, -0.5, 0.50001, 0.3, -2.0, 0.0], (16, 16)).astype(np.float32)
    bench.network.trainable_variables["dense_2/kernel"].assign(latent)

    @tf.function(autograph=False)
    def gradients():
        context = bench.context(training=True)
        upstream = tf.random.stateless_normal((16, 16), [1, 2])
        loss = tf.reduce_sum(context.weights["dense_2/kernel"] * upstream)
        return upstream, tf.gradients(loss, context.latent["dense_2/kernel"])[0]

    upstream, gradient = gradients()
    np.testing.assert_allclose(gradient, upstream * (np.abs(latent) <= 0.5), rtol=1e-6)


def test_stochastic_kernels_are_drawn_in_training_and_fixed_in_evaluation(make_bench):
    bench = make_bench(BnnRounding(stochastic=True), functional())
    bench.network.trainable_variables["dense_2/kernel"].assign(np.full((16, 16), 0.5))
    bench.network.trainable_variables["dense_3/kernel"].assign(np.full((16, 16), 0.5))
    first, again, later = (bench.weights(training=True, step=step) for step in (0, 0, 1))
    np.testing.assert_array_equal(first["dense_2/kernel"], again["dense_2/kernel"])
    assert np.any(first["dense_2/kernel"] != later["dense_2/kernel"])
    assert np.any(first["dense_2/kernel"] != first["dense_3/kernel"]), "every kernel needs draws of its own"
    assert set(np.unique(first["dense_2/kernel"])) == {-1.0, 1.0}
    assert 0.35 < first["dense_2/kernel"].mean() < 0.65
    np.testing.assert_array_equal(bench.weights(training=False)["dense_2/kernel"], np.ones((16, 16)))
    still = make_bench(BnnRounding(stochastic=True, all_binary=True), functional(), keras.optimizers.SGD(1e-12))
    assert still.step(INPUTS, TARGETS)["bnn/flip_ratio"] == 0  # flips are counted on the sign, not on the draw


@pytest.mark.parametrize(
    ("quantizer", "bits", "values"),
    [
        ({"name": "ste_tern", "ternary_weight_networks": True}, 2, 3),
        ({"name": "dorefa", "k_bit": 3}, 3, 8),
        ({"name": "dorefa", "k_bit": 1}, 1 + 32 / 256, 2),
        ("magnitude_aware_sign", 1 + 32 * 16 / 256, 32),
    ],
    ids=str,
)
def test_every_kernel_quantizer_trains_and_reports_its_stored_bits(make_bench, quantizer, bits, values):
    bench = make_bench(BnnRounding(kernel_quantizer=quantizer), functional(), keras.optimizers.SGD(1.0))
    assert bench.hook.shipped_bits(bench.weights()).stored["dense_2/kernel"] == bits
    assert len(np.unique(bench.weights()["dense_2/kernel"])) == values
    before = bench.weights()
    measures = bench.step(INPUTS, TARGETS)
    after, full = bench.weights(), isinstance(quantizer, dict) and quantizer.get("k_bit") == 3
    code = np.array if full else np.sign
    changed = [code(before[name]) != code(after[name]) for name in kernels(bench)]
    assert measures["bnn/flip_ratio"] == pytest.approx(np.mean(changed), abs=1e-6)
    assert measures["bnn/flip_ratio"] > 0
    bench = make_bench(BnnRounding(kernel_quantizer=quantizer, clip=0.5), functional())
    assert bench.hook.shipped_bits(bench.weights()).stored["dense_2/kernel"] == bits + 32 / 256 * isinstance(bits, int)


def test_invalid_options_are_named_in_the_error():
    for options, word in (
        ({"kernel_quantizer": "ste_sing"}, "ste_sing"),
        ({"kernel_quantizer": {"name": "dorefa", "kbit": 2}}, "kbit"),
        ({"kernel_quantizer": {"name": "dorefa", "k_bit": 2.0}}, "k_bit"),
        ({"kernel_quantizer": None, "input_quantizer": None}, "both null"),
        ({"stochastic": True, "kernel_quantizer": "ste_tern"}, "ste_tern"),
        ({"quantize_first_input": True}, "all_binary"),
    ):
        assert_refused(word, BnnRounding, **options)
    model = functional()
    model.get_layer("dense_2").trainable = False
    context = BuildContext(Network("model", model, keras.optimizers.SGD()), 1, 1.0, 1, 0)
    assert_refused("dense_2", BnnRounding(input_quantizer=None).build, context)


# Advice about latent weights.

WIDTH = 64


def network(behind, *, units: int = WIDTH, activation: str | None = None) -> keras.Model:
    """Return a model whose middle layer is binarized, with `behind` after it."""
    inputs = keras.Input((8,))
    x = layers.Activation("hard_tanh", name="before")(layers.BatchNormalization()(layers.Dense(units)(inputs)))
    x = behind(layers.Dense(units, activation=activation, name="middle")(x))
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


def sign(x):
    return layers.Activation("hard_tanh", name="bounded")(x)


def advice(make_bench, run_of, model: keras.Model, optimizer=None, *, steps: int = 2000, **options) -> list[str]:
    bench = make_bench(BnnRounding(**options), model, optimizer or keras.optimizers.Adam(0.003))
    return list(bench.hook.advise(run_of(bench.network, steps)))


NORMALIZED = (lambda x: sign(layers.LayerNormalization()(x)), layers.ReLU(), lambda x: x)
BARE = (lambda x: sign(layers.Dropout(0.1)(layers.Reshape((WIDTH,))(x))), keras.ops.tanh)


def test_missing_norm_before_a_bounded_activation_is_reported(make_bench, run_of):
    for behind in NORMALIZED:
        assert advice(make_bench, run_of, network(behind)) == []
    for behind in BARE:
        (line,) = advice(make_bench, run_of, network(behind))
        assert "'middle'" in line
        assert "spread by about 8, and only 10 % lie within 1" in line
    for options in ({"kernel_quantizer": "magnitude_aware_sign"}, {"clip": 1 / 8}):  # small sums need no norm
        assert advice(make_bench, run_of, network(sign), **options) == []
    assert [len(advice(make_bench, run_of, network(sign, units=units))) for units in (9, 10)] == [0, 1]


def test_learning_rate_unsuited_to_the_clip_is_reported():
    for rate, steps, clip, expected in (
        (2.4e-4, 2000, 1.0, "move a latent weight by 0.48"),
        (2.6e-4, 2000, 1.0, None),
        (0.101, 2000, 1.0, "in 9.9 steps"),
        (1e-9, 99, 1.0, None),  # a trial run
        (1e-9, 100, 1.0, "keep their initial value"),
        (1e-4, 1000, 1.0, "Set optimizer.learning_rate=0.001,"),
        (2e-3, 1000, 0.01, "latent weight"),
    ):
        line = rate_advice(keras.optimizers.Adam(rate), steps=steps, clip=clip)
        assert line is None if expected is None else expected in line
    assert rate_advice(keras.optimizers.SGD(1e-6), steps=1000, clip=1.0) is None
