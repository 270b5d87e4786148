"""Patterns on layer paths and variable names, and the error when one matches nothing."""

import keras
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.select import layer_paths, select_layers
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


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(name="block_a"), Block(name="block_b")]
        self.shared = self.blocks[0]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.shared(x)


def test_paths_join_nested_names_are_unique_and_list_a_shared_layer_once():
    paths = list(layer_paths(nested_model()))
    assert [path for path in paths if "dense" in path or path == "logits"] == ["encoder/dense_1", "dense_1", "logits"]
    assert len(paths) == len(set(paths))
    model = Subclassed()
    model(keras.ops.zeros((1, 4)))
    blocks = [[block, f"{block}/dense", f"{block}/dense_1"] for block in ("block_a", "block_b")]
    assert list(layer_paths(model)) == [*blocks[0], *blocks[1]]


def test_a_pattern_matches_the_path_or_the_name_in_the_order_of_the_model():
    for patterns, expected in (
        ("dense_1", ["encoder/dense_1", "dense_1"]),
        ("encoder/*", ["encoder/dense_1"]),
        (["logits", "encoder/dense_1"], ["encoder/dense_1", "logits"]),
        ("[!d]*", ["encoder/dense_1", "logits"]),
    ):
        selected = select_layers(nested_model(), patterns, accept=lambda layer: isinstance(layer, layers.Dense))
        assert list(selected) == expected
        assert all(layer.name in path for path, layer in selected.items())


def test_a_pattern_that_matches_nothing_lists_the_paths():
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
