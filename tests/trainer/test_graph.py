"""Layers are selected by path patterns, and their tensors are found in the graph of a functional model."""

import keras
import numpy as np
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, layer_input, layer_output, layer_paths, select_layers
from tests.support.networks import Subclassed
from tests.support.refusals import assert_refused

layers = keras.layers


def nested_model():
    inner_input = keras.Input((8,))
    inner = keras.Model(inner_input, layers.Dense(8, name="dense_1")(inner_input), name="encoder")
    inputs = keras.Input((8,), name="image")
    x = inner(inputs)
    x = layers.Dense(8, name="dense_1")(x)
    x = layers.BatchNormalization(name="batch_norm_1")(x)
    x = inner(x)
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


class Block(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.first = layers.Dense(4, name="dense")
        self.second = layers.Dense(4, name="dense")

    def call(self, x):
        return self.second(self.first(x))


class OfBlocks(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(name="block_a"), Block(name="block_b")]
        self.shared = self.blocks[0]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.shared(x)


def test_layer_paths_are_nested_unique_and_list_a_shared_layer_once():
    paths = list(layer_paths(nested_model()))
    assert [path for path in paths if "dense" in path or path == "logits"] == ["encoder/dense_1", "dense_1", "logits"]
    assert len(paths) == len(set(paths))
    model = OfBlocks()
    model(keras.ops.zeros((1, 4)))
    blocks = [[block, f"{block}/dense", f"{block}/dense_1"] for block in ("block_a", "block_b")]
    assert list(layer_paths(model)) == [*blocks[0], *blocks[1]]


def test_pattern_matches_path_or_name_in_model_order():
    for patterns, expected in (
        ("dense_1", ["encoder/dense_1", "dense_1"]),
        ("encoder/*", ["encoder/dense_1"]),
        (["logits", "encoder/dense_1"], ["encoder/dense_1", "logits"]),
        ("[!d]*", ["encoder/dense_1", "logits"]),
    ):
        selected = select_layers(nested_model(), patterns, accept=lambda layer: isinstance(layer, layers.Dense))
        assert list(selected) == expected
        assert all(layer.name in path for path, layer in selected.items())


def test_pattern_without_match_is_refused_with_the_paths():
    many = keras.Sequential([keras.Input((2,))] + [layers.Dense(2, name=f"dense_{i}") for i in range(50)])
    for model, patterns, word in (
        (nested_model(), "logit", "Expected one of: encoder/dense_1, dense_1, logits"),
        (nested_model(), ["*", "batch_norm_1"], "'batch_norm_1' matches no"),
        (nested_model(), [], "No kernel layer pattern"),
        (many, "conv*", "and 10 more"),
    ):
        with pytest.raises(UserError, match=word):
            select_layers(model, patterns, accept=lambda layer: isinstance(layer, layers.Dense), kind="kernel layer")
    assert_refused("the model has none", select_layers, nested_model(), "*", accept=lambda layer: False)
    assert list(select_layers(nested_model(), "batch*")) == ["batch_norm_1"]


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


def test_only_built_sequential_and_functional_models_have_a_graph():
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


def test_layer_tensors_belong_to_the_graph_of_the_given_model():
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


def test_layers_that_cannot_be_tapped_are_refused():
    shared, added = keras.layers.Dense(4, name="shared"), keras.layers.Add(name="added")
    inputs = keras.Input((4,))
    twice = keras.Model(inputs, shared(shared(inputs)), name="twice")
    fork = keras.Model(inputs, added([inputs, keras.ops.relu(inputs)]))
    for tap, model, layer, word in (
        (layer_input, twice, shared, "called 2 times"),
        (layer_output, sequential(), sequential().get_layer("first"), "not a direct part"),  # of another model
        (layer_input, fork, added, "has 2 inputs"),
    ):
        assert_refused(word, tap, model, layer)
