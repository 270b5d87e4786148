"""What a network is made of: rows that add up to the size, and what it is called."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from hookline.recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
from hookline.trainer.network import Network
from hookline.trainer.run.network_summary import Forms, measure_size, precision, summarize_network


def of(model: keras.Model) -> Network:
    return Network("model", model, keras.optimizers.SGD())


def network(*stack: layers.Layer, shape: tuple[int, ...] = (6, 6, 2)) -> Network:
    return of(keras.Sequential([keras.Input(shape), *stack], name="net"))


def kernels(own: Network) -> list[str]:
    return [name for name in own.weights if name.endswith("kernel")]


def shipped(own: Network) -> dict[str, np.ndarray]:
    return {name: weight.numpy() for name, weight in own.weights.items()}


def rows(summary) -> dict[str, dict]:
    return {row["layer"]: row for row in summary.as_json()["layers"]}


def test_larqs_tutorial_network_has_the_counts_of_larqs_own_summary():
    """13.19 KiB, 2,599,552 binary and 194,688 32-bit multiply-accumulates: the table of Larq's MNIST tutorial."""
    own = of(larq_tutorial_cnn((28, 28, 1), 10))
    binary = dict.fromkeys(kernels(own), 1)
    inputs = dict.fromkeys(("conv_2", "conv_3", "dense_1", "logits"), 1)
    found = summarize_network(own, Forms(shipped(own), stored_bits=binary, weight_bits=binary, input_bits=inputs))
    macs = {"conv_1": 26 * 26 * 32 * 3 * 3 * 1, "conv_2": 11 * 11 * 64 * 3 * 3 * 32, "conv_3": 3 * 3 * 64 * 3 * 3 * 64}
    by_hand = {**macs, "dense_1": 576 * 64, "logits": 64 * 10}
    assert {name: row["macs"] for name, row in rows(found).items() if row["macs"]} == by_hand
    assert found.macs_by_precision == {"1-bit x 1-bit": 2_599_552, "32-bit x 1-bit": 194_688}
    assert (found.kind, f"{found.size.deployed_bytes / 1024:.2f}") == ("BNN", "13.19")
    assert rows(found)["batch_norm_2"]["bytes"] == 64 * 2 * 4
    assert rows(found)["conv_2"]["output"] == [11, 11, 64]


@settings(max_examples=15, deadline=None)
@given(
    units=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    bits=st.lists(st.sampled_from([1.0, 1.5, 3.3, 5.0, 32.0]), min_size=4, max_size=4),
)
def test_rows_add_up_to_the_size_whatever_the_bits(units, bits):
    stack: list[layers.Layer] = [layers.Flatten()]
    for size in units:
        stack += [layers.Dense(size), layers.BatchNormalization(), layers.Dropout(0.1)]
    own = network(*stack)
    stored = dict(zip(kernels(own), bits, strict=False))
    found = summarize_network(own, Forms(stored_bits=stored))
    assert found.size == measure_size([own], {"model": stored})
    listed = found.as_json()["layers"]
    assert sum(row["params"] for row in listed) == found.size.total
    assert math.ceil(sum(row["bytes"] * 8 for row in listed) / 8) == found.size.deployed_bytes
    assert sum(row["macs"] for row in listed) == found.as_json()["macs"]["total"]


def test_a_network_is_called_by_what_is_binary_and_zeros_are_counted():
    own = network(layers.Flatten(), layers.Dense(4, name="a"), layers.Dense(3, name="b"))
    for weights, inputs, kind in ((1, 1, "BNN"), (1, 32, "BWN"), (32, 1, "BAN"), (5, 32, "quantized")):
        bits = {name: weights for name in kernels(own) if name.endswith("b/kernel")}
        found = summarize_network(own, Forms(weight_bits=bits, input_bits={"b": inputs}))
        assert found.kind == kind
        assert found.macs_by_precision == {"float32": 72 * 4, precision(inputs, weights): 12}
    values = shipped(own)
    values[kernels(own)[0]][:36] = 0.0
    found = summarize_network(own, Forms(values))
    assert (found.kind, rows(found)["a"]["sparsity"]) == ("full precision", 0.5)


def test_what_is_called_twice_multiplies_twice_and_is_stored_once():
    inputs, dense = keras.Input((4,)), layers.Dense(4, name="dense")
    row = rows(summarize_network(of(keras.Model(inputs, dense(dense(inputs)))), Forms()))["dense"]
    assert (row["macs"], row["params"]) == (2 * 16, 20)
    body = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="inner")], name="body")
    found = rows(summarize_network(of(keras.Model(inputs, body(body(inputs)))), Forms()))
    assert {name: row["macs"] for name, row in found.items()} == {"body/inner": 32}


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential([layers.Dense(5, name="inner")], name="body")
        self.head = layers.Dense(3, name="head")
        self.factor = self.add_weight(shape=(), name="factor")

    def call(self, inputs):
        return self.head(keras.ops.relu(self.body(inputs))) * self.factor


def test_of_a_subclassed_model_weights_are_known_and_the_rest_left_open():
    model = Subclassed()
    model(np.zeros((1, 4), np.float32))
    own = of(model)
    found = summarize_network(own, Forms(shipped(own)))
    assert found.size == measure_size([own], {})
    assert {name: row["params"] for name, row in rows(found).items()} == {model.name: 1, "body/inner": 25, "head": 18}
    assert {row["output"] is None for row in rows(found).values()} == {True}
    assert found.as_json()["macs"] == {"total": 0, "by_precision": {}, "uncounted": ["body/inner", "head"]}
    own = network(layers.LSTM(4, name="lstm"), shape=(5, 3))
    found = summarize_network(own, Forms())
    assert "lstm" in found.uncounted
    assert found.size == measure_size([own], {})


def test_the_summary_is_json_and_a_fixed_network_trains_nothing():
    own = network(layers.Conv2D(3, 3, name="conv"), layers.BatchNormalization(name="norm"))
    text = json.dumps(summarize_network(own, Forms(shipped(own))).as_json(), allow_nan=False)
    first = {"layer": "conv", "kind": "Conv2D", "output": [4, 4, 3], "params": 57, "weight_bits": 32.0}
    first |= {"input_bits": 32, "bytes": 228.0, "sparsity": 0.0, "macs": 864, "macs_by_precision": {"float32": 864}}
    assert json.loads(text)["layers"][0] == first
    own.fixed = True
    assert summarize_network(own, Forms()).size.trainable == 0
