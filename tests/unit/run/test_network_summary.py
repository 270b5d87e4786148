"""What a network is made of: rows that add up to the size, and what it is called."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
from trainer.network import Network
from trainer.run.network_summary import Forms, NetworkSummary, precision, summarize_network
from trainer.run.size import measure_size


def network(*layers: keras.layers.Layer, shape: tuple[int, ...] = (6, 6, 2)) -> Network:
    model = keras.Sequential([keras.Input(shape), *layers], name="net")
    return Network("model", model, keras.optimizers.SGD())


def shipped(own: Network) -> dict[str, np.ndarray]:
    return {name: weight.numpy() for name, weight in own.weights.items()}


def rows(summary: NetworkSummary) -> dict[str, dict]:
    return {row["layer"]: row for row in summary.as_json()["layers"]}


def test_larqs_tutorial_network_has_the_counts_of_larqs_own_summary():
    """13.19 KiB, 2,599,552 binary and 194,688 32-bit multiply-accumulates: the table of Larq's MNIST tutorial."""
    own = Network("model", larq_tutorial_cnn((28, 28, 1), 10), keras.optimizers.SGD())
    kernels = [name for name in own.weights if name.endswith("kernel")]
    forms = Forms(
        shipped(own),
        stored_bits=dict.fromkeys(kernels, 1.0),
        weight_bits=dict.fromkeys(kernels, 1),
        input_bits=dict.fromkeys(("conv_2", "conv_3", "dense_1", "logits"), 1),
    )
    found = summarize_network(own, forms)
    by_hand = {
        "conv_1": 26 * 26 * 32 * 3 * 3 * 1,
        "conv_2": 11 * 11 * 64 * 3 * 3 * 32,
        "conv_3": 3 * 3 * 64 * 3 * 3 * 64,
        "dense_1": 576 * 64,
        "logits": 64 * 10,
    }
    assert {name: row["macs"] for name, row in rows(found).items() if row["macs"]} == by_hand
    assert found.macs_by_precision == {"1-bit x 1-bit": 2_599_552, "32-bit x 1-bit": 194_688}
    assert found.kind == "BNN"
    assert f"{found.size.deployed_bytes / 1024:.2f}" == "13.19"
    assert rows(found)["batch_norm_2"]["bytes"] == 64 * 2 * 4
    assert rows(found)["conv_2"]["output"] == [11, 11, 64]


@settings(max_examples=15, deadline=None)
@given(
    units=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    bits=st.lists(st.sampled_from([1.0, 1.5, 3.3, 5.0, 32.0]), min_size=4, max_size=4),
)
def test_rows_add_up_to_the_size_whatever_the_bits(units, bits):
    layers: list[keras.layers.Layer] = [keras.layers.Flatten()]
    for size in units:
        layers += [keras.layers.Dense(size), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
    own = network(*layers)
    kernels = [name for name in own.weights if name.endswith("kernel")]
    stored = dict(zip(kernels, bits, strict=False))
    found = summarize_network(own, Forms(stored_bits=stored))
    assert found.size == measure_size([own], {"model": stored})
    listed = found.as_json()["layers"]
    assert sum(row["params"] for row in listed) == found.size.total
    assert math.ceil(sum(row["bytes"] * 8 for row in listed) / 8) == found.size.deployed_bytes
    assert sum(row["macs"] for row in listed) == found.as_json()["macs"]["total"]


@pytest.mark.parametrize(
    ("weights", "inputs", "kind"),
    [
        (1, 1, "BNN"),
        (1, 32, "BWN"),
        (32, 1, "BAN"),
        (5, 32, "quantized"),
        (32, 2, "quantized"),
        (32, 32, "full precision"),
    ],
)
def test_a_network_is_called_by_what_is_binary(weights, inputs, kind):
    own = network(keras.layers.Flatten(), keras.layers.Dense(4, name="a"), keras.layers.Dense(3, name="b"))
    forms = Forms(weight_bits={"net/b/kernel": weights, "b/kernel": weights}, input_bits={"b": inputs})
    found = summarize_network(own, forms)
    assert found.kind == kind
    assert found.macs_by_precision == (
        {"float32": 72 * 4 + 12} if kind == "full precision" else {"float32": 72 * 4, precision(inputs, weights): 12}
    )


def test_sparsity_counts_zeros_of_kernels_and_not_of_biases():
    own = network(keras.layers.Flatten(), keras.layers.Dense(2, name="a"))
    values = shipped(own)
    values[next(name for name in values if name.endswith("kernel"))][:36] = 0.0
    row = rows(summarize_network(own, Forms(values)))["a"]
    assert (row["sparsity"], row["weight_bits"], row["input_bits"]) == (0.5, 32.0, 32)


def test_a_layer_that_is_called_twice_multiplies_twice_and_is_stored_once():
    inputs, dense = keras.Input((4,)), keras.layers.Dense(4, name="dense")
    own = Network("model", keras.Model(inputs, dense(dense(inputs))), keras.optimizers.SGD())
    row = rows(summarize_network(own, Forms()))["dense"]
    assert (row["macs"], row["params"]) == (2 * 16, 20)


def test_a_nested_model_shows_its_own_layers_as_often_as_it_is_called():
    body = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="inner")], name="body")
    inputs = keras.Input((4,))
    own = Network("model", keras.Model(inputs, body(body(inputs))), keras.optimizers.SGD())
    assert {name: row["macs"] for name, row in rows(summarize_network(own, Forms())).items()} == {"body/inner": 32}


def test_a_separable_convolution_has_binary_inputs_for_its_first_kernel_alone():
    own = network(keras.layers.SeparableConv2D(4, 3, name="a", use_bias=False))
    kernels = [name for name in own.weights if name.endswith("kernel")]
    found = summarize_network(own, Forms(weight_bits=dict.fromkeys(kernels, 1), input_bits={"a": 1}))
    assert found.macs_by_precision == {"1-bit x 1-bit": 4 * 4 * 2 * 9, "32-bit x 1-bit": 4 * 4 * 2 * 4}


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential([keras.layers.Dense(5, name="inner")], name="body")
        self.head = keras.layers.Dense(3, name="head")
        self.factor = self.add_weight(shape=(), name="factor")

    def call(self, inputs):
        return self.head(keras.ops.relu(self.body(inputs))) * self.factor


def test_of_a_subclassed_model_weights_are_known_and_the_rest_is_left_open():
    model = Subclassed()
    model(np.zeros((1, 4), np.float32))
    own = Network("model", model, keras.optimizers.SGD())
    found = summarize_network(own, Forms(shipped(own)))
    listed = rows(found)
    assert found.size == measure_size([own], {})
    assert {name: row["params"] for name, row in listed.items()} == {model.name: 1, "body/inner": 25, "head": 18}
    assert {row["output"] is None for row in listed.values()} == {True}
    assert found.uncounted == ["body/inner", "head"]
    assert found.as_json()["macs"] == {"total": 0, "by_precision": {}, "uncounted": ["body/inner", "head"]}


def test_what_a_composite_layer_computes_inside_is_said_not_to_be_known():
    inputs = keras.Input((5, 3))
    own = Network("model", keras.Model(inputs, keras.layers.LSTM(4, name="lstm")(inputs)), keras.optimizers.SGD())
    found = summarize_network(own, Forms())
    assert "lstm" in found.uncounted
    assert found.size == measure_size([own], {})


def test_a_fixed_network_trains_nothing():
    own = network(keras.layers.Flatten(), keras.layers.Dense(2))
    own.fixed = True
    assert summarize_network(own, Forms()).size.trainable == 0


def test_the_summary_is_json():
    own = network(keras.layers.Conv2D(3, 3, name="conv"), keras.layers.BatchNormalization(name="norm"))
    text = json.dumps(summarize_network(own, Forms(shipped(own))).as_json(), allow_nan=False)
    assert json.loads(text)["layers"][0] == {
        "layer": "conv",
        "kind": "Conv2D",
        "output": [4, 4, 3],
        "params": 57,
        "weight_bits": 32.0,
        "input_bits": 32,
        "bytes": 228.0,
        "sparsity": 0.0,
        "macs": 4 * 4 * 3 * 18,
        "macs_by_precision": {"float32": 864},
    }
