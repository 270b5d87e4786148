"""A network as a plain Keras model: a deep copy, refused where it could not load elsewhere."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.finished import Halve, finished_run
from tests.support.toy import StatelessHook
from trainer.errors import UserError
from trainer.export.plain_model import check_plain, finished_model, single_model, strip_model
from trainer.network import Network
from trainer.run.precision import computing_in
from trainer.step.trainer import Trainer

layers = keras.layers


class Double(layers.Layer):
    """Double its input."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2.0 * inputs


def double(x: tf.Tensor) -> tf.Tensor:
    return 2.0 * x


def with_layer(layer: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, name="dense"), layer], name="net")


class Subclassed(keras.Model):
    """Be no functional model."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.dense = layers.Dense(3)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: with_layer(Double(name="twice")), "twice (Double)"),
        (lambda: with_layer(layers.Activation(double, name="activation")), "double"),
        (lambda: with_layer(layers.Lambda(double, name="lambda")), "double"),
        (lambda: keras.Sequential([keras.Input((4,)), with_layer(Double(name="twice"))], name="net"), "twice (Double)"),
        (Subclassed, "own (Subclassed)"),
    ],
)
def test_what_is_not_of_keras_is_named(make, named: str):
    with pytest.raises(UserError, match="format=sparse holds parts of Keras alone.") as caught:
        check_plain(make(), "sparse")
    assert f"also has: {named}." in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Activation("relu"),
        layers.Activation(keras.activations.gelu),
        layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1), kernel_initializer="he_normal"),
        layers.Bidirectional(layers.LSTM(2)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_is_of_keras_is_taken(layer: keras.Layer):
    reshaped = [layers.Reshape((3, 1))] if isinstance(layer, layers.Bidirectional) else []
    check_plain(keras.Sequential([keras.Input((4,)), layers.Dense(3), *reshaped, layer]), "sparse")


class Wrap(StatelessHook):
    """Put an activation behind the model, and take it away again."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__(name)
        self.order = order

    def strip_model(self, model: keras.Model) -> keras.Model:
        self.order.append(self.name)
        return model


def values_of(network: Network) -> dict[str, bytes]:
    return {name: variable.numpy().tobytes() for name, variable in network.variables.items()}


def test_the_copy_holds_what_evaluation_uses_and_the_run_stays_as_it_was_byte_for_byte():
    run = finished_run(Halve("halve"))
    network = run.parts.trainer.networks["model"]
    before = {name: variable.numpy() for name, variable in network.variables.items()}
    copy = finished_model(run, "model")
    for weight in copy.weights:
        np.testing.assert_array_equal(weight.numpy(), 0.5 * before[weight.path])
    assert values_of(network) == {name: value.tobytes() for name, value in before.items()}
    assert not {id(each) for each in copy.variables} & {id(each) for each in network.model.variables}
    for weight in copy.weights:
        weight.assign(weight * 0.0 + 7.0)
    assert values_of(network) == {name: value.tobytes() for name, value in before.items()}


def test_a_copy_keeps_names_and_its_layers_are_trainable_as_before():
    run = finished_run()
    own = run.parts.trainer.networks["model"].model
    copy = finished_model(run, "model")
    assert copy.name == own.name
    assert [layer.name for layer in copy.layers] == [layer.name for layer in own.layers]
    assert [each.path for each in copy.trainable_variables] == [each.path for each in own.trainable_variables]


def test_a_run_in_half_precision_ships_a_model_in_float32():
    with computing_in("bfloat16"):
        run = finished_run()
    copy = finished_model(run, "model")
    own = run.parts.trainer.networks["model"].model
    assert {layer.compute_dtype for layer in own.layers} == {"bfloat16"}
    assert {layer.compute_dtype for layer in copy.layers} == {"float32"}


def test_hooks_take_out_what_they_put_in_the_other_way_round():
    order: list[str] = []
    run = finished_run(Wrap("first", order), Wrap("second", order))
    assert [hook.name for hook in run.parts.trainer.hooks] == ["first", "second"]
    assert strip_model(run.parts.trainer, "model") is run.parts.trainer.networks["model"].model
    assert order == ["second", "first"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: keras.Model([x, y], x + y, name="two"), "'two' has 2 inputs and 1 outputs."),
        (lambda x, y: keras.Model(x, [x + 1.0, x * 2.0], name="heads"), "'heads' has 1 inputs and 2 outputs."),
    ],
)
def test_formats_of_one_tensor_refuse_several(make, message: str):
    model = make(keras.Input((3,)), keras.Input((3,)))
    with pytest.raises(UserError) as caught:
        single_model(finished_run(), "model", model, "onnx")
    assert str(caught.value) == f"{message} Expected one of each for format=onnx, or format=keras."


def test_the_evaluation_of_another_trainer_is_of_the_same_split():
    run = finished_run()
    trainer = run.parts.trainer
    other = Trainer(list(trainer.networks.values()), trainer.objectives, [], seed=0)
    assert run.parts.test.of(other).run(7) == run.parts.test.run(7)
