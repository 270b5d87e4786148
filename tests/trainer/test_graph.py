"""The graph of a model: which models have one, and the tensors at a layer in it."""

import keras
import numpy as np

from hookline.trainer.graph import as_functional, is_graph, layer_input, layer_output
from tests.support.refusals import assert_refused


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.dense = keras.layers.Dense(2, name="dense")

    def call(self, inputs):
        return self.dense(inputs)


class Doubled(keras.Model):
    def call(self, inputs):
        return 2.0 * super().call(inputs)


def sequential():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(2, name="second")], name="two"
    )


def rebuilt(model):
    def call(layer, *args, **kwargs):
        result = layer(*args, **kwargs)
        return keras.ops.relu(result) if layer.name == "first" else result

    return keras.models.clone_model(as_functional(model), clone_function=lambda layer: layer, call_function=call)


def values(model, tensor):
    inputs = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)
    return keras.Model(model.inputs[0], tensor)(inputs).numpy()


def test_which_models_have_a_graph():
    subclassed = Subclassed()
    subclassed(np.zeros((1, 4), np.float32))
    assert_refused("is a Subclassed", layer_output, subclassed, subclassed.dense)
    assert is_graph(sequential())
    assert is_graph(as_functional(sequential()))
    assert not is_graph(subclassed)
    assert not is_graph(keras.layers.Dense(2))
    assert not is_graph(keras.Sequential([keras.layers.Dense(2)]))  # not built
    inputs = keras.Input((4,))
    assert not is_graph(Doubled(inputs, keras.layers.Dense(2)(inputs)))
    assert not is_graph(keras.Model(name="bare"))  # Keras's own `call`, and no layers


def test_tensors_at_a_layer_are_those_of_the_model_s_own_graph():
    model = sequential()
    made = as_functional(model)
    assert (made.name, made.layers[1:]) == ("two", model.layers)
    assert as_functional(made) is made
    for each in (model, made):
        first, second = each.get_layer("first"), each.get_layer("second")
        np.testing.assert_array_equal(values(each, layer_output(each, first)), values(each, layer_input(each, second)))
        assert layer_output(each, second) is each.outputs[0]
    old = sequential()
    new = rebuilt(old)
    second = new.get_layer("second")
    assert (values(new, layer_input(new, second)) >= 0.0).all()  # after the ReLU
    assert (values(old, layer_input(old, second)) < 0.0).any()  # the old graph still has none
    assert layer_output(new, second) is new.outputs[0]


def test_what_cannot_be_tapped_is_refused():
    shared, added = keras.layers.Dense(4, name="shared"), keras.layers.Add(name="added")
    inputs = keras.Input((4,))
    twice = keras.Model(inputs, shared(shared(inputs)), name="twice")
    fork = keras.Model(inputs, added([inputs, keras.ops.relu(inputs)]))
    for tap, model, layer, word in (
        (layer_input, twice, shared, "called 2 times"),
        (layer_output, sequential(), sequential().get_layer("first"), "not a direct part"),  # another's
        (layer_input, fork, added, "has 2 inputs"),
    ):
        assert_refused(word, tap, model, layer)
