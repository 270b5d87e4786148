"""What the rounding hook does in a step: exact values, gradients to latent weights, projection, measures."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.bnn_rounding import BnnRounding
from trainer.errors import UserError
from trainer.network import Network
from trainer.step.context import BuildContext

layers = keras.layers
INPUTS = np.random.default_rng(0).normal(size=(32, 12)).astype(np.float32)
TARGETS = (INPUTS @ np.random.default_rng(1).normal(size=(12, 3))).argmax(-1)


def functional() -> keras.Model:
    inputs = x = keras.Input((12,))
    for index in (1, 2, 3):
        x = layers.Dense(16, use_bias=False, name=f"dense_{index}")(x)
        x = layers.BatchNormalization(name=f"batch_norm_{index}")(x)
        x = layers.Activation("hard_tanh", name=f"activation_{index}")(x)
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


def kernels(bench) -> dict[str, np.ndarray]:
    return {name: v.numpy() for name, v in bench.network.trainable_variables.items() if name in bench.hook.projected()}


def test_selected_kernels_are_signs_and_everything_else_is_left_alone(make_bench):
    bench = make_bench(BnnRounding(), functional())
    assert bench.hook.projected() == {"dense_2/kernel", "dense_3/kernel"}
    for training in (True, False):
        for name, value in bench.weights(training=training).items():
            latent = bench.network.trainable_variables[name].numpy()
            expected = np.where(latent >= 0, 1, -1) if name in bench.hook.projected() else latent
            np.testing.assert_array_equal(value, expected)


def test_a_zero_latent_weight_counts_as_plus_one(make_bench):
    bench = make_bench(BnnRounding(all_binary=True), functional())
    bench.network.trainable_variables["dense_2/kernel"].assign(np.zeros((16, 16)))
    np.testing.assert_array_equal(bench.weights()["dense_2/kernel"], np.ones((16, 16)))


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_step_keeps_signs_clip_and_measures_as_a_numpy_oracle_says(make_bench, jit: bool):
    bench = make_bench(BnnRounding(all_binary=True, clip=0.2), functional(), keras.optimizers.SGD(0.3), jit=jit)
    for variable in bench.network.trainable_variables.values():
        if variable.path in bench.hook.projected():
            variable.assign(np.clip(variable.numpy(), -0.2, 0.2))
    moved = 0.0
    for _ in range(4):
        before = kernels(bench)
        measures = bench.step(INPUTS, TARGETS)
        after = kernels(bench)
        for name, value in before.items():
            np.testing.assert_array_equal(bench.weights_of_step[name], np.where(value >= 0, 1, -1) * np.float32(0.2))
            assert np.abs(after[name]).max() <= np.float32(0.2)
        flips = {name: (before[name] >= 0) != (after[name] >= 0) for name in before}
        starved = {name: np.abs(after[name]) >= np.float32(0.2) for name in before}
        for metric, flags in (("flip_ratio", flips), ("starved_ratio", starved)):
            total = np.concatenate([flag.ravel() for flag in flags.values()]).mean()
            assert measures[f"bnn/{metric}"] == pytest.approx(total, abs=1e-6)
            for name, flag in flags.items():
                layer = name.removesuffix("/kernel")
                assert measures[f"bnn/{metric}/{layer}"] == pytest.approx(flag.mean(), abs=1e-6)
        moved += measures["bnn/flip_ratio"] * measures["bnn/starved_ratio"]
    assert moved > 0, "the steps must flip and starve something, or the comparison says nothing"


def test_gradients_reach_the_latent_weights_up_to_the_clip_inclusive(make_bench):
    bench = make_bench(BnnRounding(clip=0.5), functional())
    latent = np.resize([0.5, -0.5, 0.50001, 0.3, -2.0, 0.0], (16, 16)).astype(np.float32)
    bench.network.trainable_variables["dense_2/kernel"].assign(latent)

    @tf.function(autograph=False)
    def gradients():
        context = bench.context(tf.constant(0, tf.int64), training=True)
        upstream = tf.random.stateless_normal((16, 16), [1, 2])
        loss = tf.reduce_sum(context.weights["dense_2/kernel"] * upstream)
        return upstream, tf.gradients(loss, context.latent["dense_2/kernel"])[0]

    upstream, gradient = gradients()
    np.testing.assert_allclose(gradient, upstream * (np.abs(latent) <= 0.5), rtol=1e-6)


def test_every_latent_kernel_learns(make_bench):
    bench = make_bench(BnnRounding(all_binary=True), functional(), keras.optimizers.Adam(0.05))
    before = kernels(bench)
    bench.step(INPUTS, TARGETS)
    for name, value in kernels(bench).items():
        assert np.mean(value != before[name]) > 0.5, name


def test_training_lowers_the_loss_of_the_binary_network(make_bench):
    bench = make_bench(BnnRounding(), functional(), keras.optimizers.Adam(0.02))
    for _ in range(80):
        bench.step(INPUTS, TARGETS)
    assert np.mean(bench.predict(INPUTS).argmax(-1) == TARGETS) > 0.9


def test_a_latent_weight_outside_the_clip_is_brought_back_not_only_read_as_clipped(make_bench):
    bench = make_bench(BnnRounding(), functional())
    kernel = bench.network.trainable_variables["dense_2/kernel"]
    kernel.assign(np.full((16, 16), 1.5))
    bench.step(INPUTS, TARGETS)
    assert np.abs(kernel.numpy()).max() <= 1.0
    np.testing.assert_array_equal(bench.network.trainable_variables["logits/kernel"].shape, (16, 3))


@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "loss_scale"])
def test_the_clip_holds_after_the_moving_average_replaces_the_weights(make_bench, wrap: bool):
    optimizer = keras.optimizers.SGD(30.0, use_ema=True, ema_momentum=0.5)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0) if wrap else optimizer
    bench = make_bench(BnnRounding(all_binary=True, clip=0.1), functional(), optimizer)
    for _ in range(3):
        bench.step(INPUTS, TARGETS)
    inner = optimizer.inner_optimizer if wrap else optimizer
    inner.finalize_variable_values(bench.network.model.trainable_variables)
    for value in kernels(bench).values():
        assert np.abs(value).max() <= np.float32(0.1)


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


def test_flips_of_stochastic_kernels_are_those_of_the_sign(make_bench):
    bench = make_bench(BnnRounding(stochastic=True, all_binary=True), functional(), keras.optimizers.SGD(1e-12))
    assert bench.step(INPUTS, TARGETS)["bnn/flip_ratio"] == 0


@pytest.mark.parametrize(
    ("quantizer", "bits", "values"),
    [
        ("binary_tanh", 1, 2),
        ("approx_sign", 1, 2),
        ("swish_sign", 1, 2),
        ("ste_tern", 2, 3),
        ({"name": "ste_tern", "ternary_weight_networks": True}, 2, 3),
        ({"name": "dorefa", "k_bit": 3}, 3, 8),
        ({"name": "dorefa", "k_bit": 1}, 1 + 32 / 256, 2),
        ("magnitude_aware_sign", 1 + 32 * 16 / 256, 32),
    ],
    ids=str,
)
def test_every_kernel_quantizer_trains_and_says_how_many_bits_it_stores(make_bench, quantizer, bits, values):
    bench = make_bench(BnnRounding(kernel_quantizer=quantizer), functional(), keras.optimizers.SGD(1.0))
    assert bench.hook.stored_bits(bench.weights())["dense_2/kernel"] == bits
    assert len(np.unique(bench.weights()["dense_2/kernel"])) == values
    flips = 0.0
    for _ in range(3):
        before = bench.weights()
        measures = bench.step(INPUTS, TARGETS)
        after = bench.weights()
        changed = [np.sign(before[name]) != np.sign(after[name]) for name in kernels(bench)]
        if isinstance(quantizer, dict) and quantizer.get("k_bit") == 3:
            changed = [before[name] != after[name] for name in kernels(bench)]
        assert measures["bnn/flip_ratio"] == pytest.approx(np.mean(changed), abs=1e-6)
        flips += measures["bnn/flip_ratio"]
    assert flips > 0


def test_a_clip_other_than_one_scales_values_and_costs_one_float(make_bench):
    bench = make_bench(BnnRounding(kernel_quantizer="ste_tern", clip=0.5), functional())
    np.testing.assert_array_equal(np.unique(bench.weights()["dense_2/kernel"]), [-0.5, 0, 0.5])
    assert bench.hook.stored_bits(bench.weights())["dense_2/kernel"] == 2 + 32 / 256


def test_nan_in_a_latent_weight_stays_visible(make_bench):
    bench = make_bench(BnnRounding(), functional())
    kernel = bench.network.trainable_variables["dense_2/kernel"]
    kernel.assign(np.full((16, 16), np.nan))
    assert np.isnan(bench.weights()["dense_2/kernel"]).all()


def test_input_quantizers_alone_leave_every_weight_alone(make_bench):
    bench = make_bench(BnnRounding(kernel_quantizer=None), functional())
    assert bench.step(INPUTS, TARGETS) == {}
    assert bench.hook.projected() == set()
    assert bench.hook.stored_bits(bench.weights()) == {}
    assert bench.hook.summary()["kind"] == "BAN"


def test_the_measures_of_a_second_hook_carry_its_name(make_bench):
    hook = BnnRounding()
    hook.name = "ternary_rounding"
    measures = make_bench(hook, functional()).step(INPUTS, TARGETS)
    assert "ternary_rounding/flip_ratio/dense_2" in measures


def test_the_summary_says_what_was_quantized(make_bench):
    bench = make_bench(BnnRounding(input_quantizer={"name": "dorefa", "k_bit": 2}), functional())
    assert bench.hook.summary() == {
        "kind": "BNN",
        "kernel_quantizer": {"name": "ste_sign"},
        "input_quantizer": {"name": "dorefa", "k_bit": 2},
        "stochastic": False,
        "latent_dtype": ["float32"],
        "kernel_bits": 1,
        "kernel_entries": {"dense_2": 256, "dense_3": 256},
        "float_scales": 0,
        "full_precision": ["dense_1", "logits"],
        "zero_padded": [],
    }
    assert BnnRounding().summary() == {}
    assert bench.hook.state() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_quantizer": "ste_sing"}, "Unknown kernel_quantizer 'ste_sing'. Did you mean 'ste_sign'?"),
        ({"input_quantizer": "magnitude_aware_sign"}, "Unknown input_quantizer 'magnitude_aware_sign'"),
        ({"kernel_quantizer": {"name": "dorefa", "kbit": 2}}, "Unknown argument of kernel_quantizer dorefa 'kbit'"),
        ({"kernel_quantizer": {"name": "dorefa", "mode": "weights"}}, "Unknown argument"),
        ({"kernel_quantizer": {"name": "dorefa", "k_bit": 0}}, "Expected a whole number from 1 to 8"),
        ({"kernel_quantizer": {"name": "dorefa", "k_bit": 2.0}}, "Expected a whole number from 1 to 8"),
        ({"kernel_quantizer": {"name": "dorefa", "k_bit": True}}, "Expected a whole number from 1 to 8"),
        ({"input_quantizer": {"name": "swish_sign", "beta": -1}}, "Expected a number above 0"),
        ({"input_quantizer": {"name": "swish_sign", "beta": "x"}}, "Expected a number above 0"),
        ({"kernel_quantizer": {"name": "ste_tern", "threshold": -0.1}}, "Expected a number of 0 or more"),
        ({"kernel_quantizer": {"name": "ste_tern", "ternary_weight_networks": 1}}, "Expected true or false"),
        ({"kernel_quantizer": {"k_bit": 2}}, "Expected a name such as ste_sign"),
        ({"kernel_quantizer": 3}, "Expected a name such as ste_sign"),
        ({"kernel_quantizer": None, "input_quantizer": None}, "both null"),
        ({"clip": 0}, "Invalid clip: 0"),
        ({"clip": float("nan")}, "Invalid clip: nan"),
        ({"clip": "1"}, "Invalid clip: '1'"),
        ({"clip": True}, "Invalid clip: True"),
        ({"all_binary": "yes"}, "Invalid all_binary: 'yes'. Expected true or false."),
        ({"layers": ""}, "Invalid layers"),
        ({"layers": []}, "Invalid layers"),
        ({"layers": [3]}, "Invalid layers"),
        ({"layers": None}, "Invalid layers"),
        (
            {"stochastic": True, "kernel_quantizer": "ste_tern"},
            "Expected kernel_quantizer=ste_sign. Received: ste_tern",
        ),
        ({"stochastic": True, "kernel_quantizer": None}, "Received: None"),
        ({"quantize_first_input": True}, "Expected all_binary=true"),
    ],
    ids=str,
)
def test_a_wrong_option_is_one_clear_line(options, message):
    with pytest.raises(UserError) as error:
        BnnRounding(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_frozen_kernel_cannot_be_selected(make_bench):
    model = functional()
    model.get_layer("dense_2").trainable = False
    with pytest.raises(UserError, match="kernel of layer 'dense_2' is not trainable"):
        make_bench(BnnRounding(), model)
    make_bench(BnnRounding(layers="dense_3"), model)


def test_a_hook_can_be_built_again_for_another_model(make_bench):
    hook = BnnRounding()
    for _ in range(2):
        bench = make_bench(hook, functional())
        assert bench.step(INPUTS, TARGETS)["bnn/flip_ratio"] >= 0
        assert hook.projected() == {"dense_2/kernel", "dense_3/kernel"}


def test_what_other_hooks_made_of_the_weights_is_what_gets_rounded(make_bench):
    bench = make_bench(BnnRounding(), functional())
    context = bench.context(tf.constant(0, tf.int64), training=True)
    masked = {name: -tf.abs(value) - 0.1 for name, value in context.latent.items()}
    np.testing.assert_array_equal(bench.hook.transform_weights(masked, context)["dense_2/kernel"], -np.ones((16, 16)))


def test_build_selects_by_itself():
    hook = BnnRounding(input_quantizer=None)
    hook.build(BuildContext(Network("model", functional(), keras.optimizers.SGD()), 1, 1.0, 1, 0))
    assert hook.projected() == {"dense_2/kernel", "dense_3/kernel"}
