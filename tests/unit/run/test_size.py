"""Parameters and bytes."""

from __future__ import annotations

import keras
from keras import layers

from hookline.trainer.network import Network
from hookline.trainer.run.network_summary import add_up, layer_sizes, measure_size


def of(model: keras.Model) -> Network:
    return Network("model", model, keras.optimizers.SGD())


def small() -> Network:
    stack = [layers.Dense(8, use_bias=False, name="dense"), layers.BatchNormalization(name="norm"), layers.Dropout(0.5)]
    return of(keras.Sequential([keras.Input((4,)), *stack, layers.Dense(2, name="last")], name="net"))


def test_batch_norm_counts_two_floats_a_channel_and_seed_state_none() -> None:
    network = small()
    size = measure_size([network], {})
    floats = 4 * 8 + 2 * 8 + 8 * 2 + 2
    assert (size.total, size.trainable) == (floats + 2 * 8, floats)
    assert size.float32_bytes == size.deployed_bytes == 4 * floats
    assert measure_size([small(), small()], {}).float32_bytes == 2 * size.float32_bytes
    binary = measure_size([network], {"model": {"net/dense/kernel": 1.0}})
    assert (binary.deployed_bytes, binary.float32_bytes) == (4 * 8 // 8 + 4 * (floats - 4 * 8), 4 * floats)
    network.fixed = True
    fixed = measure_size([network], {})
    assert (fixed.trainable, fixed.total) == (0, size.total)


def test_every_weight_is_counted_once_in_its_innermost_layer() -> None:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="dense")], name="inner")
    model = keras.Sequential([keras.Input((4,)), inner, layers.BatchNormalization(name="norm")], name="net")
    bits = {"net/inner/dense/kernel": 2.0}
    sizes = layer_sizes(of(model), bits)
    found = {layer.path: (layer.total, layer.trainable) for layer in sizes if layer.weights}
    assert found == {"inner/dense": (15, 15), "norm": (12, 6)}
    assert add_up(sizes) == measure_size([of(model)], {"model": bits})
    inputs, dense = keras.Input((4,)), layers.Dense(4, name="dense")
    assert measure_size([of(keras.Model(inputs, dense(dense(inputs))))], {}).total == 20
