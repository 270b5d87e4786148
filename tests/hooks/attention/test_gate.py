"""Attention layers: resizing, dilated convolutions, the mask and its seed, saving, the stripped model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.plain_model import check_plain, rebuilt, strip_model
from hookline.hooks.attention import options
from hookline.hooks.attention.gate import (
    AreaResize,
    AttentionMap,
    BernoulliGate,
    DilatedConv2D,
    area_resize,
    branch_logits,
    has_dilated_kernels,
)
from hookline.hooks.bnn_rounding import BnnRounding
from hookline.trainer.hook import GraphHook
from hookline.trainer.run.machine import computing_in
from tests.support.attention import SIDE, attention, binary_model, image_model, prepare
from tests.support.refusals import assert_refused

X = np.random.default_rng(0).normal(size=(6, 4, 4, 3)).astype(np.float32)
A = np.random.default_rng(1).uniform(0.1, 0.9, (6, 4, 4, 1)).astype(np.float32)


def call(gate: BernoulliGate, training: bool = False) -> tuple[np.ndarray, np.ndarray]:
    return tuple(value.numpy() for value in gate([X, A], training=training))


def test_each_training_call_draws_a_new_mask_and_advances_the_seed():
    for eval_mode in options.EVAL_MODES:
        gate = BernoulliGate(eval_mode=eval_mode, seed=1)
        (y, mask), (_, second), _ = (call(gate, training=True) for _ in range(3))
        assert set(np.unique(mask)) == {0.0, 1.0}
        np.testing.assert_array_equal(y, mask * X)
        assert len(np.unique(mask.reshape(6, -1), axis=0)) == 6
        assert not np.array_equal(mask, second)
        assert gate.seed_generator.state.numpy().tolist() == [1, 3]
        gate.seed_generator.state.assign([1, 1])
        np.testing.assert_array_equal(call(gate, training=True)[1], second)


def test_evaluation_draws_only_in_sample_mode():
    for given, expected in (
        ({}, A),
        ({"eval_mode": "threshold"}, (A >= 0.5).astype(np.float32)),
        ({"mode": "product", "eval_mode": "threshold"}, A),
    ):
        gate = BernoulliGate(seed=1, **given)
        before = [variable.numpy() for variable in gate.variables]
        for _ in range(2):
            y, mask = call(gate)
            np.testing.assert_array_equal(mask, expected)
            np.testing.assert_allclose(y, expected * X, rtol=1e-6)
        np.testing.assert_array_equal(before, [variable.numpy() for variable in gate.variables])
    assert set(np.unique(call(BernoulliGate(eval_mode="sample", seed=1))[1])) == {0.0, 1.0}
    product = BernoulliGate(mode="product")
    np.testing.assert_array_equal(call(product, training=True)[1], A)
    assert product.variables == []


def test_attention_map_is_float32_sigmoid_of_logits_over_temperature():
    logits = np.array([-4.0, 0.0, 7.0], np.float32)
    np.testing.assert_allclose(AttentionMap()(logits), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    np.testing.assert_allclose(AttentionMap(temperature=4.0)(logits), 1 / (1 + np.exp(-logits / 4)), rtol=1e-6)
    with computing_in("bfloat16"):
        of_bfloat16 = AttentionMap()(tf.constant(logits, tf.bfloat16))
    assert of_bfloat16.dtype == tf.float32
    assert of_bfloat16[2] < 1.0  # bfloat16 has no number between 0.996 and 1


def test_custom_branch_must_return_one_logit_per_position():
    own = keras.Sequential([layers.Conv2D(2, 5, padding="same"), layers.Conv2D(1, 1)])
    assert branch_logits(own, keras.Input((None, None, 3)), (None, None, None, 1)).shape == (None, None, None, 1)
    for layer in (layers.Conv2D(1, 3, name="own"), layers.Conv2D(2, 1, name="own")):
        assert_refused("own", branch_logits, layer, keras.Input((9, 7, 3)), (None, 9, 7, 1))


layers = keras.layers
INPUTS = np.random.default_rng(0).normal(size=(6, SIDE, SIDE, 1)).astype(np.float32)
DILATED = {"filters": [4, 3], "dilations": [1, 2]}


@pytest.mark.parametrize(
    ("given", "binary"),
    [
        ({"temperature": 0.3, "eval_mode": "threshold"}, False),
        ({"mode": "product", "eval_mode": "sample", "branch_input": "input", "join": "concatenate"}, False),
        ({}, True),
    ],
    ids=str,
)
def test_stripped_model_matches_evaluation_and_shares_its_weights(given, binary: bool, tmp_path):
    hooks: list[GraphHook] = [attention(**{"branch": DILATED, "temperature": 0.8, **given})]
    if binary:
        hooks.append(BnnRounding())
    trainer = prepare(hooks, binary_model() if binary else image_model())
    network, generator = trainer.networks["model"], np.random.default_rng(1)
    for variable in network.model.trainable_variables:
        if variable.path.endswith("attention_logits/kernel"):  # so that attention is not constant
            variable.assign(generator.normal(scale=5.0, size=variable.shape))
    plain = strip_model(trainer, "model")
    assert any(isinstance(each, AttentionMap) for each in network.model._flatten_layers())
    check_plain(plain)
    assert {id(each) for each in plain.weights} == {id(each) for each in network.model.weights}
    expected = network.model(INPUTS, training=False).numpy()
    np.testing.assert_allclose(plain(INPUTS, training=False).numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rebuilt(plain)(INPUTS).numpy(), expected, rtol=1e-5, atol=1e-6)
    plain.save(tmp_path / "plain.keras")
    loaded = keras.saving.load_model(tmp_path / "plain.keras")
    np.testing.assert_allclose(loaded(INPUTS).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_stripping_a_gate_that_draws_in_evaluation_is_refused():
    assert_refused("eval_mode=sample", strip_model, prepare([attention(eval_mode="sample")], image_model()), "model")
    model = image_model()
    assert strip_model(prepare([attention(mode="none", eval_mode="sample")], model), "model") is model


AREAS = np.random.default_rng(0).uniform(size=(2, 12, 10, 3)).astype(np.float32)


def test_area_resize_matches_tf_image_resize():
    for size in ((6, 5), (5, 7), (24, 30), (1, 1)):
        resized = tf.function(lambda maps, size=size: area_resize(maps, size), jit_compile=size == (5, 7))(AREAS)
        np.testing.assert_allclose(resized, tf.image.resize(AREAS, size, method="area"), rtol=1e-5)
        np.testing.assert_allclose(tf.reduce_mean(resized), AREAS.mean(), rtol=1e-5)  # no mass is lost
    layer = AreaResize(5, 4, name="resize")
    np.testing.assert_allclose(layer(AREAS), area_resize(AREAS, (5, 4)))
    assert AreaResize.from_config(layer.get_config()).get_config() == layer.get_config()
    assert area_resize(tf.cast(AREAS, tf.bfloat16), (5, 4)).dtype == tf.bfloat16


NATIVE = has_dilated_kernels((1, 8, 8, 2), (3, 3, 2, 3), (2, 2), "float32")


@pytest.mark.parametrize("native", [True, False] if NATIVE else [False])
@pytest.mark.parametrize(("dilation", "size", "kernel"), [(2, (3, 13), 3), (5, (12, 9), 4), (4, (1, 2), 3)])
def test_dilated_conv_and_gradients_match_keras(native: bool, dilation: int, size: tuple[int, int], kernel: int):
    layer = DilatedConv2D(3, kernel, dilation_rate=dilation, activation="relu", bias_initializer="ones")
    layer.build((None, 12, 9, 2))
    layer._native = native
    plain = keras.layers.Conv2D(3, kernel, padding="same", dilation_rate=dilation, activation="relu")
    plain.build((None, 12, 9, 2))
    plain.set_weights(layer.get_weights())
    maps = tf.constant(np.random.default_rng(0).normal(size=(4, *size, 2)), tf.float32)

    def all_of(each: keras.layers.Layer) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(maps)
            outputs = each(maps)
            loss = tf.reduce_sum(tf.sin(outputs))
        return [outputs, *tape.gradient(loss, [maps, *(weight.value for weight in each.trainable_weights)])]

    for found, expected in zip(all_of(layer), all_of(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
