"""Models in float32 made of mixed ones: the same layers, names and values; nothing is left in half precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from trainer.export.full_precision import is_mixed, with_values
from trainer.run.precision import computing_in

layers = keras.layers
INPUTS = np.random.default_rng(0).normal(size=(4, 6, 6, 1)).astype(np.float32)


def nested_model() -> keras.Model:
    """Return a model with layers inside of layers, and one with a policy of its own."""
    inner = keras.Sequential([keras.Input((4, 4, 2)), layers.BatchNormalization(name="norm")], name="inner")
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(2, 3, name="conv"),
            inner,
            layers.Reshape((16, 2), name="rows"),
            layers.Bidirectional(layers.LSTM(3, name="lstm"), name="both"),
            layers.Dropout(0.5, seed=1, name="dropout"),
            layers.Dense(2, name="own", dtype="float64"),
        ],
        name="nested",
    )


def functional_model() -> keras.Model:
    """Return a model with operations that are no layers."""
    inputs = keras.Input((6, 6, 1))
    x = layers.Dense(3, name="dense")(layers.Flatten(name="flatten")(inputs))
    return keras.Model(inputs, keras.ops.relu(x) * 2.0 + x, name="operations")


@pytest.mark.parametrize("build", [nested_model, functional_model])
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_outputs_are_those_of_the_same_weights_in_float32(build, precision: str):
    with computing_in(precision):
        mixed = build()
    found = with_values(mixed, mixed, full=True)
    plain = build()
    plain.set_weights(mixed.get_weights())
    assert (is_mixed(mixed), is_mixed(found)) == (True, False)
    assert [layer.name for layer in found._flatten_layers()] == [layer.name for layer in mixed._flatten_layers()]
    np.testing.assert_array_equal(found(INPUTS), plain(INPUTS))
    np.testing.assert_allclose(found(INPUTS), np.float32(mixed(INPUTS)), atol=0.05, rtol=2**-6)  # bfloat16: 8 bits
    assert np.any(np.float32(mixed(INPUTS)) != np.float32(found(INPUTS)))


def test_policies_that_are_not_mixed_stay():
    with computing_in("float16"):
        mixed = nested_model()
    found = with_values(mixed, mixed, full=True)
    assert found.get_layer("own").dtype_policy.name == "float64"
    assert found.get_layer("both").forward_layer.cell.compute_dtype == "float32"


def test_a_model_in_float32_is_copied_as_it_is():
    model = functional_model()
    found = with_values(model, model, full=True)
    np.testing.assert_array_equal(found(INPUTS), model(INPUTS))
    assert found is not model


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_nothing_between_the_layers_stays_in_half_precision(precision: str):
    with computing_in(precision):
        inputs = keras.Input((6,))
        x = layers.Dense(4, name="dense")(inputs)
        y = keras.ops.cast(keras.ops.sigmoid(x), x.dtype)
        inner = keras.Sequential([layers.Dense(3, name="inner_dense")], name="inner")
        mixed = keras.Model(inputs, inner(y) * 3.0)
    found = with_values(mixed, mixed, full=True)
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    dense, inner_dense = mixed.get_layer("dense").get_weights(), inner.get_layer("inner_dense").get_weights()
    gate = 1.0 / (1.0 + np.exp(-(x @ dense[0] + dense[1])))
    np.testing.assert_allclose(found(x), (gate @ inner_dense[0] + inner_dense[1]) * 3.0, rtol=1e-5, atol=1e-6)


def test_values_go_into_new_variables():
    model = nested_model()
    made = with_values(model, model)
    model.get_layer("conv").kernel.assign(model.get_layer("conv").kernel * 0.0)
    assert np.any(made.get_layer("conv").kernel)
