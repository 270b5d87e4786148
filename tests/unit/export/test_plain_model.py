"""A network as a plain Keras model: a deep copy, refused where it could not load elsewhere."""

from __future__ import annotations

from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.plain_model import check_plain, finished_model, single_model, strip_model
from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from hookline.trainer.run.precision import computing_in
from tests.support.finished import Halve, finished_run
from tests.support.toy import StatelessHook

layers = keras.layers


class Double(layers.Layer):
    """Double its input."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2.0 * inputs


def double(x: tf.Tensor) -> tf.Tensor:
    return 2.0 * x


def with_layer(*given: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, name="dense"), *given], name="net")


def test_what_is_not_of_keras_is_named_and_what_is_of_keras_is_taken():
    for model, named in (
        (with_layer(Double(name="twice")), "twice (Double)"),
        (with_layer(layers.Activation(double, name="activation")), "double"),
        (with_layer(layers.Lambda(double, name="lambda")), "double"),
        (keras.Sequential([keras.Input((4,)), with_layer(Double(name="twice"))], name="net"), "twice (Double)"),
    ):
        with pytest.raises(UserError, match="format=sparse holds parts of Keras alone.") as caught:
            check_plain(model, "sparse")
        assert f"also has: {named}." in str(caught.value)
    for given in (
        [layers.Activation("relu"), layers.Activation(keras.activations.gelu)],
        [layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1), kernel_initializer="he_normal")],
        [layers.Reshape((3, 1)), layers.Bidirectional(layers.LSTM(2))],
    ):
        check_plain(with_layer(*given), "sparse")


def values_of(network: Network) -> dict[str, bytes]:
    return {name: variable.numpy().tobytes() for name, variable in network.variables.items()}


def test_the_copy_holds_what_evaluation_uses_and_the_run_stays_as_it_was_byte_for_byte():
    run = finished_run(Halve("halve"))
    network = run.parts.trainer.networks["model"]
    before, kept = {name: variable.numpy() for name, variable in network.variables.items()}, values_of(network)
    copy = finished_model(run, "model")
    for weight in copy.weights:
        np.testing.assert_array_equal(weight.numpy(), 0.5 * before[weight.path])
    assert copy.name == network.model.name
    assert [layer.name for layer in copy.layers] == [layer.name for layer in network.model.layers]
    trainable = [each.path for each in network.model.trainable_variables]
    assert [each.path for each in copy.trainable_variables] == trainable
    assert not {id(each) for each in copy.variables} & {id(each) for each in network.model.variables}
    for weight in copy.weights:
        weight.assign(weight * 0.0 + 7.0)
    assert values_of(network) == kept


def test_a_run_in_half_precision_ships_a_model_in_float32():
    with computing_in("bfloat16"):
        run = finished_run()
    own = run.parts.trainer.networks["model"].model
    assert {layer.compute_dtype for layer in own.layers} == {"bfloat16"}
    assert {layer.compute_dtype for layer in finished_model(run, "model").layers} == {"float32"}


class Wrap(StatelessHook):
    """Note when its layers are taken out."""

    order: ClassVar[list[str]] = []

    def strip_model(self, model: keras.Model) -> keras.Model:
        self.order.append(self.name)
        return model


def test_hooks_take_out_what_they_put_in_the_other_way_round(monkeypatch):
    monkeypatch.setattr(Wrap, "order", [])
    run = finished_run(Wrap("first"), Wrap("second"))
    assert strip_model(run.parts.trainer, "model") is run.parts.trainer.networks["model"].model
    assert Wrap.order == ["second", "first"]


def test_formats_of_one_tensor_refuse_several():
    run, (x, y) = finished_run(), (keras.Input((3,)), keras.Input((3,)))
    for model, words in (
        (keras.Model([x, y], x + y), "has 2 inputs and 1 outputs"),
        (keras.Model(x, [x + 1.0, x * 2.0]), "has 1 inputs and 2 outputs"),
    ):
        with pytest.raises(UserError, match=words):
            single_model(run, "model", model, "onnx")
