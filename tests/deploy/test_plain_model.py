"""Networks as plain Keras models: deep copies, refused if they could not be loaded elsewhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.plain_model import assign_weights, check_plain, finished_model, mixed_dtypes, rebuilt
from hookline.trainer.errors import UserError
from hookline.trainer.run.machine import computing_in
from tests.support.finished import Halve, finished_run

layers = keras.layers


class Double(layers.Layer):
    """Double its input."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2.0 * inputs


class Lookalike(Double):
    """Look like a layer of Keras by the name of its module."""

    __module__ = "keras_extra.layers"


def double(x: tf.Tensor) -> tf.Tensor:
    return 2.0 * x


def with_layer(*given: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, name="dense"), *given], name="net")


def test_parts_that_are_not_of_keras_are_refused_by_name():
    for model, named in (
        (with_layer(Double(name="twice")), "twice (Double)"),
        (with_layer(Lookalike(name="alike")), "alike (Lookalike)"),
        (with_layer(layers.Activation(double, name="activation")), "double"),
        (with_layer(layers.Lambda(double, name="lambda")), "double"),
        (keras.Sequential([keras.Input((4,)), with_layer(Double(name="twice"))], name="net"), "twice (Double)"),
    ):
        with pytest.raises(UserError, match="format=sparse holds only Keras parts.") as caught:
            check_plain(model)
        assert f"also has: {named}." in str(caught.value)
    for given in (
        [layers.Activation("relu"), layers.Activation(keras.activations.gelu)],
        [layers.Dense(3, "relu", kernel_regularizer="l2", kernel_initializer="he_normal", name="second")],
        [layers.Reshape((3, 1)), layers.Bidirectional(layers.SimpleRNN(2))],
    ):
        check_plain(with_layer(*given))


def test_copy_has_evaluated_weights_and_run_is_unchanged():
    run = finished_run(Halve("halve"))
    network = run.trainer.networks["model"]
    before = {name: variable.numpy() for name, variable in network.variables.items()}
    copy = finished_model(run, "model")
    for weight in copy.weights:
        np.testing.assert_array_equal(weight.numpy(), 0.5 * before[weight.path])
        weight.assign(weight * 0.0 + 7.0)
    assert copy.name == network.model.name
    assert [layer.name for layer in copy.layers] == [layer.name for layer in network.model.layers]
    trainable = [each.path for each in network.model.trainable_variables]
    assert [each.path for each in copy.trainable_variables] == trainable
    assert not {id(each) for each in copy.variables} & {id(each) for each in network.model.variables}
    for name, variable in network.variables.items():
        np.testing.assert_array_equal(variable.numpy(), before[name])


INPUTS = np.random.default_rng(0).normal(size=(4, 6, 6, 1)).astype(np.float32)


def nested_model() -> keras.Model:
    """Return a model with nested layers, and a layer with its own dtype policy."""
    inner = keras.Sequential([keras.Input((4, 4, 2)), layers.BatchNormalization(name="norm")], name="inner")
    stack = [
        keras.Input((6, 6, 1)), layers.Conv2D(2, 3, name="conv"), inner, layers.Reshape((16, 2), name="rows"),
        layers.TimeDistributed(layers.Dense(3), name="rows_alike"), layers.Flatten(),
        layers.Dropout(0.5, seed=1, name="dropout"), layers.Dense(2, name="own", dtype="float64"),
    ]  # fmt: skip
    return keras.Sequential(stack, name="nested")


def functional_model() -> keras.Model:
    """Return a model with operations that are not layers, one of which stores a dtype, and with an inner model."""
    inputs = keras.Input((6, 6, 1))
    x = layers.Dense(3, name="dense")(layers.Flatten(name="flatten")(inputs))
    x = keras.ops.cast(keras.ops.sigmoid(x), x.dtype)
    inner = keras.Sequential([layers.Dense(3, name="inner_dense")], name="inner")
    return keras.Model(inputs, keras.ops.relu(inner(x)) * 2.0 + x, name="operations")


@pytest.mark.parametrize(("build", "precision"), [(nested_model, "float16"), (functional_model, "bfloat16")])
def test_rebuilt_model_matches_float32_model_of_same_weights(build, precision: str):
    with computing_in(precision):
        mixed = build()
    found = rebuilt(mixed, full=True)
    plain = build()
    plain.set_weights(mixed.get_weights())
    assert (bool(mixed_dtypes(mixed)), mixed_dtypes(found)) == (True, set())
    assert [layer.name for layer in found._flatten_layers()] == [layer.name for layer in mixed._flatten_layers()]
    np.testing.assert_array_equal(found(INPUTS), plain(INPUTS))
    np.testing.assert_allclose(found(INPUTS), np.float32(mixed(INPUTS)), atol=0.05, rtol=2**-6)  # bfloat16: 8 bits
    assert np.any(np.float32(mixed(INPUTS)) != np.float32(found(INPUTS)))
    if build is nested_model:
        assert found.get_layer("own").dtype_policy.name == "float64"  # which was not mixed
        assert found.get_layer("rows_alike").layer.compute_dtype == "float32"


def test_seed_states_are_assigned_to_matching_layers():
    """A dropout that is created with rate 0 has no seed state."""

    def dropouts(first: float) -> keras.Model:
        stack = [layers.Dropout(first, seed=1, name="first"), layers.Dropout(0.5, seed=2, name="second")]
        return keras.Sequential([keras.Input((3,)), *stack], name="net")

    values, made = dropouts(0.3), dropouts(0.0)
    state = made.get_layer("second").seed_generator.state
    values.get_layer("second").seed_generator.state.assign([5, 6])
    assign_weights(made, values)
    assert np.asarray(state).tolist() == [5, 6]


def test_operation_named_like_a_layer_stays_an_operation():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Add()([inputs + 3.0, inputs]))
    np.testing.assert_array_equal(rebuilt(model)(np.ones([2, 3])), np.full([2, 3], 5.0))
