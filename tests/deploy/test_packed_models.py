"""Packed networks against the Keras models that they were made of: the same integers, the same signs."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.packed import exact_inputs, inner_values, kinds, layers, pack, randomize, sign


def binary_cnn(*, pool_first: bool = True, padding: str = "valid", bias: bool = False, activation: str = "hard_tanh"):
    """Return convolutions that pool before or behind batch norm, then dense layers."""
    inputs = x = keras.Input((11, 10, 2), name="image")
    for block in (1, 2):
        if block > 1:
            x = sign(f"sign_{block}")(x)
        x = layers.Conv2D(8, 3, padding=padding, use_bias=bias, name=f"conv_{block}")(x)
        x = layers.MaxPooling2D(2, name=f"pool_{block}")(x) if pool_first else x
        x = layers.BatchNormalization(name=f"norm_{block}")(x)
        x = layers.Activation(activation, name=f"activation_{block}")(x)
        x = x if pool_first else layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(9, use_bias=bias, name="dense")(sign("sign_3")(x))
    x = layers.BatchNormalization(name="norm_3", scale=False)(x)
    x = layers.Dropout(0.5, name="dropout")(x)
    x = layers.Dense(4, use_bias=bias, name="logits")(sign("sign_4")(x))
    return keras.Model(inputs, layers.BatchNormalization(name="norm_4")(x), name="cnn")


def check(model: keras.Model, *, sums: tuple[str, ...] = (), signs: tuple[str, ...] = ()):
    """Check outputs, integers and signs of every example against the model's, and return the packed form."""
    packed, inputs = pack(model), exact_inputs(model)
    outputs, kept = packed.run(inputs, keep=[*sums, *signs])
    expected = np.asarray(model(inputs))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    if sums or signs:
        inner = inner_values(model, inputs)
        for name in (*sums, *signs):
            np.testing.assert_array_equal(kept[name], inner[name], err_msg=name)
        for name in sums:
            assert kept[name].dtype == np.int32
    return packed


SIGNS = ("sign_2", "sign_3", "sign_4")


@pytest.mark.parametrize(("pool_first", "padding", "seed"), [(True, "valid", 0), (False, "same", 1), (True, "same", 2)])
def test_integers_and_signs_are_those_of_the_model(pool_first: bool, padding: str, seed: int):
    model = binary_cnn(pool_first=pool_first, padding=padding)
    randomize(model, seed)
    packed = check(model, sums=("conv_2", "dense", "logits"), signs=SIGNS)
    assert kinds(packed).count("threshold") == 2
    assert [op.name for op in packed.graph.ops if op.op == "scale_shift"] == ["norm_1", "norm_4"]
    assert "activation" not in kinds(packed)
    assert kinds(packed).count("sign") == 1  # of float sums
    pooled = [packed.values[op.inputs[0]].kind for op in packed.graph.ops if op.op == "max_pool2d"]
    assert pooled == (["float", "integer"] if pool_first else ["float", "binary"])


def test_scales_and_biases_go_into_the_thresholds():
    for scale in (0.3, np.linspace(0.1, 2, 8)):
        model = binary_cnn(bias=True)
        randomize(model, 3, {"conv_2": scale, "dense": 0.5})
        packed = check(model, signs=SIGNS)
        assert kinds(packed).count("threshold") == 2
        for op in (op for op in packed.graph.ops if op.name in ("conv_2", "dense")):
            assert (op.fields["kernel"].encoding, op.fields["kernel"].scale, op.fields["bias"]) == ("sign", None, None)
            assert packed.values[op.output].kind == "integer"


def test_what_something_else_uses_too_is_kept():
    inputs = keras.Input((6,))
    x = layers.BatchNormalization()(layers.Dense(5, use_bias=False, name="first")(sign("sign_1")(inputs)))
    y = layers.Dense(5, use_bias=False, name="second")(sign("sign_2")(x))
    z = layers.Dense(5, use_bias=False, name="third")(sign("sign_2b")(x))
    model = keras.Model(inputs, layers.Add()([x, y, z]))
    randomize(model, 8)
    packed = check(model, sums=("first", "second", "third"))
    assert kinds(packed).count("sign") == 2  # the equal ones are one
    assert "threshold" not in kinds(packed)


def test_models_inside_models_are_taken_apart():
    stack = [
        keras.Input((6,)), sign("inner_sign"), layers.Dense(6, use_bias=False, name="inner_dense"),
        layers.BatchNormalization(name="inner_norm"), layers.Dropout(0.3),
    ]  # fmt: skip
    inner = keras.Sequential(stack, name="inner")
    inputs = keras.Input((6,))
    x = inner(inner(inputs))  # twice, with the same weights
    model = keras.Model(inputs, layers.Dense(3, use_bias=False, name="last")(sign("sign_2")(x)))
    randomize(model, 10)
    packed = check(model)
    assert kinds(packed) == ["sign", *["dense", "threshold"] * 2, "dense"]
    names = [op.name for op in packed.graph.ops if op.op == "dense"]
    assert names == ["inner/inner_dense", "inner/inner_dense", "last"]
