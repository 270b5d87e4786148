"""The gate as a Keras layer: what the mask is in training and evaluation, its seed, saving."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.attention.attention_map import AttentionMap
from hooks.attention.gate import EVAL_MODES, BernoulliGate

X = np.random.default_rng(0).normal(size=(6, 4, 4, 3)).astype(np.float32)
A = np.random.default_rng(1).uniform(0.1, 0.9, (6, 4, 4, 1)).astype(np.float32)


def call(gate: BernoulliGate, training: bool = False) -> tuple[np.ndarray, np.ndarray]:
    return tuple(value.numpy() for value in gate([X, A], training=training))


@pytest.mark.parametrize("eval_mode", EVAL_MODES)
def test_training_draws_a_mask_for_each_example_and_position(eval_mode: str):
    y, mask = call(BernoulliGate(eval_mode=eval_mode, seed=1), training=True)
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert mask.shape == A.shape
    np.testing.assert_array_equal(y, mask * X)
    assert len(np.unique(mask.reshape(6, -1), axis=0)) == 6


def test_each_training_call_draws_anew_from_a_counted_seed_and_repeats_from_it():
    gate = BernoulliGate(seed=1)
    masks = [call(gate, training=True)[1] for _ in range(3)]
    assert not np.array_equal(masks[0], masks[1])
    assert gate.seed_generator.state.numpy().tolist() == [1, 3]
    gate.seed_generator.state.assign([1, 1])
    np.testing.assert_array_equal(call(gate, training=True)[1], masks[1])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, A),
        ({"eval_mode": "expectation"}, A),
        ({"eval_mode": "threshold"}, (A >= 0.5).astype(np.float32)),
        ({"mode": "product"}, A),
        ({"mode": "product", "eval_mode": "threshold"}, A),
    ],
)
def test_evaluation_does_not_draw(options, expected):
    gate = BernoulliGate(seed=1, **options)
    before = [variable.numpy() for variable in gate.variables]
    for _ in range(2):
        y, mask = call(gate)
        np.testing.assert_array_equal(mask, expected)
        np.testing.assert_allclose(y, expected * X, rtol=1e-6)
    np.testing.assert_array_equal(before, [variable.numpy() for variable in gate.variables])


def test_a_sample_in_evaluation_is_drawn():
    y, mask = call(BernoulliGate(eval_mode="sample", seed=1))
    assert set(np.unique(mask)) == {0.0, 1.0}
    np.testing.assert_array_equal(y, mask * X)


def test_product_multiplies_in_training_too_and_has_no_seed():
    gate = BernoulliGate(mode="product")
    np.testing.assert_array_equal(call(gate, training=True)[1], A)
    assert gate.variables == []


@pytest.mark.parametrize("mode", ["bernoulli", "product"])
def test_the_gradient_goes_to_features_and_attention(mode: str):
    x, a = tf.constant(X), tf.constant(A)
    with tf.GradientTape() as tape:
        tape.watch([x, a])
        y, mask = BernoulliGate(mode=mode)([x, a], training=True)
    to_features, to_attention = tape.gradient(y, [x, a])
    np.testing.assert_allclose(to_features, np.broadcast_to(mask, X.shape))
    np.testing.assert_allclose(to_attention, X.sum(axis=-1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_lower_precision_of_features_leaves_attention_in_float32():
    gate = BernoulliGate(dtype="bfloat16", seed=1)
    y, mask = gate([tf.cast(X, tf.bfloat16), A], training=True)
    assert (y.dtype, mask.dtype) == (tf.bfloat16, tf.float32)
    spec = gate.compute_output_spec(
        [keras.KerasTensor((None, 4, 4, 3), "bfloat16"), keras.KerasTensor((None, 4, 4, 1))]
    )
    assert [(each.shape, each.dtype) for each in spec] == [((None, 4, 4, 3), "bfloat16"), ((None, 4, 4, 1), "float32")]


def test_stateless_calls_hand_the_next_seed_out():
    x, a = keras.Input((4, 4, 3)), keras.Input((4, 4, 1))
    model = keras.Model([x, a], BernoulliGate(seed=5)([x, a]))
    (_, first), state = model.stateless_call(
        [], [v.value for v in model.non_trainable_variables], [X, A], training=True
    )
    (_, second), later = model.stateless_call([], state, [X, A], training=True)
    assert [value.numpy().tolist() for value in (*state, *later)] == [[5, 1], [5, 2]]
    assert not np.array_equal(first, second)
    assert model.non_trainable_variables[0].numpy().tolist() == [5, 0]


def test_layers_come_back_from_their_config():
    gate = BernoulliGate(mode="bernoulli", eval_mode="threshold", seed=3, name="gate")
    again = BernoulliGate.from_config(gate.get_config())
    np.testing.assert_array_equal(call(again, training=True)[1], call(gate, training=True)[1])
    assert again.get_config() == gate.get_config()
    attention = AttentionMap(temperature=2.0, name="map")
    assert AttentionMap.from_config(attention.get_config()).get_config() == attention.get_config()
    for layer in (gate, attention):
        assert keras.saving.get_registered_object(keras.saving.get_registered_name(type(layer))) is type(layer)


def test_attention_is_the_sigmoid_of_logits_over_the_temperature_in_float32():
    logits = np.array([-4.0, 0.0, 7.0], np.float32)
    np.testing.assert_allclose(AttentionMap()(logits), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    np.testing.assert_allclose(AttentionMap(temperature=4.0)(logits), 1 / (1 + np.exp(-logits / 4)), rtol=1e-6)
    of_bfloat16 = AttentionMap()(tf.constant(logits, tf.bfloat16))
    assert of_bfloat16.dtype == tf.float32
    assert of_bfloat16[2] < 1.0  # bfloat16 has no number between 0.996 and 1


@pytest.mark.parametrize("options", [{"mode": "none"}, {"eval_mode": "mean"}])
def test_unknown_modes_are_refused(options):
    with pytest.raises(ValueError, match="Expected a mode of"):
        BernoulliGate(**options)
