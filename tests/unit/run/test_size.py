"""Parameters and bytes."""

from __future__ import annotations

import keras

from trainer.network import Network
from trainer.run.size import add_up, layer_sizes, measure_size


def small() -> Network:
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8, use_bias=False, name="dense"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(2, name="last"),
    ]
    return Network("model", keras.Sequential(layers, name="net"), keras.optimizers.SGD())


def test_batch_norm_counts_two_floats_a_channel_and_seed_state_nothing() -> None:
    size = measure_size([small()], {})
    assert size.total == 4 * 8 + 4 * 8 + 8 * 2 + 2
    assert size.trainable == 4 * 8 + 2 * 8 + 8 * 2 + 2
    assert size.float32_bytes == size.deployed_bytes == 4 * (4 * 8 + 2 * 8 + 8 * 2 + 2)


def test_one_bit_weights_count_one_bit() -> None:
    size = measure_size([small()], {"model": {"net/dense/kernel": 1.0}})
    assert size.deployed_bytes == 4 * 8 // 8 + 4 * (2 * 8 + 8 * 2 + 2)
    assert size.float32_bytes == 4 * (4 * 8 + 2 * 8 + 8 * 2 + 2)


def test_networks_add_up() -> None:
    one, two = measure_size([small()], {}), measure_size([small(), small()], {})
    assert two.float32_bytes == 2 * one.float32_bytes


def test_a_fixed_network_trains_nothing() -> None:
    network = small()
    whole = measure_size([network], {})
    network.fixed = True
    fixed = measure_size([network], {})
    assert fixed.trainable == 0 < whole.trainable
    assert fixed.total == whole.total


def test_every_weight_is_counted_in_the_innermost_layer_that_holds_it() -> None:
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")], name="inner")
    model = keras.Sequential([keras.Input((4,)), inner, keras.layers.BatchNormalization(name="norm")], name="net")
    network = Network("model", model, keras.optimizers.SGD())
    layers = layer_sizes(network, {"net/inner/dense/kernel": 2.0})
    assert {layer.path: layer.total for layer in layers if layer.weights} == {"inner/dense": 15, "norm": 12}
    assert {layer.path: layer.trainable for layer in layers if layer.weights} == {"inner/dense": 15, "norm": 6}
    assert add_up(layers) == measure_size([network], {"model": {"net/inner/dense/kernel": 2.0}})
    assert add_up(layers).total == sum(weight.value.numpy().size for weight in model.weights)


def test_a_layer_in_two_places_is_stored_once() -> None:
    inputs, dense = keras.Input((4,)), keras.layers.Dense(4, name="dense")
    network = Network("model", keras.Model(inputs, dense(dense(inputs))), keras.optimizers.SGD())
    assert measure_size([network], {}).total == 20
