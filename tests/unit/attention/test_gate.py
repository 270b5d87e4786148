"""The gate as a Keras layer: what the mask is in training and evaluation, its seed, saving."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.attention.gate import EVAL_MODES, AttentionMap, BernoulliGate
from hookline.trainer.run.precision import computing_in

X = np.random.default_rng(0).normal(size=(6, 4, 4, 3)).astype(np.float32)
A = np.random.default_rng(1).uniform(0.1, 0.9, (6, 4, 4, 1)).astype(np.float32)


def call(gate: BernoulliGate, training: bool = False) -> tuple[np.ndarray, np.ndarray]:
    return tuple(value.numpy() for value in gate([X, A], training=training))


def test_each_training_call_draws_a_mask_anew_from_a_counted_seed():
    for eval_mode in EVAL_MODES:
        gate = BernoulliGate(eval_mode=eval_mode, seed=1)
        (y, mask), (_, second), _ = (call(gate, training=True) for _ in range(3))
        assert set(np.unique(mask)) == {0.0, 1.0}
        np.testing.assert_array_equal(y, mask * X)
        assert len(np.unique(mask.reshape(6, -1), axis=0)) == 6
        assert not np.array_equal(mask, second)
        assert gate.seed_generator.state.numpy().tolist() == [1, 3]
        gate.seed_generator.state.assign([1, 1])
        np.testing.assert_array_equal(call(gate, training=True)[1], second)


def test_evaluation_does_not_draw_unless_it_samples():
    for options, expected in (
        ({}, A),
        ({"eval_mode": "threshold"}, (A >= 0.5).astype(np.float32)),
        ({"mode": "product", "eval_mode": "threshold"}, A),
    ):
        gate = BernoulliGate(seed=1, **options)
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


def test_attention_is_the_sigmoid_over_the_temperature_in_float32():
    logits = np.array([-4.0, 0.0, 7.0], np.float32)
    np.testing.assert_allclose(AttentionMap()(logits), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    np.testing.assert_allclose(AttentionMap(temperature=4.0)(logits), 1 / (1 + np.exp(-logits / 4)), rtol=1e-6)
    with computing_in("bfloat16"):
        of_bfloat16 = AttentionMap()(tf.constant(logits, tf.bfloat16))
    assert of_bfloat16.dtype == tf.float32
    assert of_bfloat16[2] < 1.0  # bfloat16 has no number between 0.996 and 1
