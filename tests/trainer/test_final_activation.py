"""Final activations: removed if they are found, restored as they were, refused if they are not found."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.final_activation import check_logits, put_back, take_off, undo
from tests.support.finished import Rows
from tests.support.networks import Subclassed
from tests.support.refusals import assert_refused

layers = keras.layers
INPUTS = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(2, 6)


def stack(*parts, name="net"):
    return keras.Sequential([keras.Input((6,)), layers.Dense(5, name="hidden"), *parts], name=name)


def functional(end):
    inputs = keras.Input((6,))
    return keras.Model(inputs, end(layers.Dense(3, name="logits")(inputs)), name="net")


def nested(inner):
    inputs = keras.Input((6,))
    return keras.Model(inputs, inner(layers.Dense(6)(inputs)), name="outer")


def pixelwise():
    convolution = layers.Conv2D(3, 1, activation="softmax")
    return keras.Sequential([keras.Input((6,)), layers.Reshape((1, 1, 6)), convolution, layers.Flatten()])


ENDS = {
    "dense": lambda: stack(layers.Dense(3, activation="softmax", name="last")),
    "dense of TensorFlow": lambda: stack(layers.Dense(3, activation=tf.nn.softmax)),
    "activation": lambda: stack(layers.Dense(3), layers.Activation("softmax", dtype="float32")),
    "softmax layer": lambda: stack(layers.Dense(3), layers.Softmax()),
    "sigmoid operation": lambda: functional(keras.activations.sigmoid),
    "convolution and flatten": pixelwise,
    "nested softmax layer": lambda: nested(nested(stack(layers.Dense(3), layers.Softmax()))),
}


@pytest.mark.parametrize("end", ENDS)
def test_final_activation_is_taken_off_and_put_back(end):
    model = ENDS[end]()
    expected, variables = np.array(model(INPUTS)), list(model.variables)
    logits_model, activations = take_off(model)
    (found,) = activations
    assert found.name == ("sigmoid" if "sigmoid" in end else "softmax")
    assert [id(each) for each in logits_model.variables] == [id(each) for each in variables]
    logits = logits_model(INPUTS)
    np.testing.assert_allclose(getattr(keras.ops, found.name)(logits), expected, rtol=1e-5)
    with put_back(logits_model, activations) as shipped:
        np.testing.assert_array_equal(shipped(INPUTS), expected)
        assert shipped.name == model.name
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(shipped))
        given = undo(shipped, activations)(INPUTS)
        assert [each.name for each in take_off(again)[1]] == [found.name]
    np.testing.assert_allclose(keras.ops.softmax(given), keras.ops.softmax(logits), rtol=1e-4)
    np.testing.assert_array_equal(logits_model(INPUTS), logits)


def shared():
    dense, inputs = layers.Dense(6, activation="softmax"), keras.Input((6,))
    return keras.Model(inputs, dense(dense(inputs)))


def used_inside():
    inputs = keras.Input((6,))
    first = layers.Dense(3, activation="softmax")(inputs)
    return keras.Model(inputs, [first, layers.Dense(2)(first)])


def averaged():
    inputs = keras.Input((6,))
    heads = [layers.Dense(3, activation="softmax")(inputs) for _ in range(2)]
    return keras.Model(inputs, layers.Average()(heads))


def subclassed():
    model = Subclassed("softmax")
    model(INPUTS)
    return model


DATA = SimpleNamespace(train=SimpleNamespace(source=Rows(), indices=np.arange(20)))


def test_activation_that_cannot_be_separated_is_kept():
    for make in (shared, used_inside, averaged, subclassed):
        model = make()
        before = [np.array(each) for each in keras.tree.flatten(model(INPUTS))]
        assert take_off(model) == (model, ())
        for found, expected in zip(keras.tree.flatten(model(INPUTS)), before, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_undetected_probabilities_are_refused_and_other_outputs_are_logits():
    for make in (averaged, subclassed):
        assert_refused(r"returns probabilities .* a second softmax. Expected logits", check_logits, make(), DATA)
    for last in (layers.Dense(3, activation="relu"), layers.UnitNormalization()):
        model = stack(last)
        assert take_off(model) == (model, ())
        check_logits(model, DATA)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, [layers.Dense(3, activation="softmax")(inputs), layers.Dense(1, "sigmoid")(inputs)])
    _, activations = take_off(model)
    assert [(each.name, each.output) for each in activations] == [("softmax", 0), ("sigmoid", 1)]
