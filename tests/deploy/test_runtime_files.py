"""The table of a plain model: every entry counted once, in the row of its layer."""

from __future__ import annotations

import keras
import numpy as np

from hookline.deploy.runtime_files import layer_table

layers = keras.layers


def rows_of(model: keras.Model) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in layer_table(model).rows}


def test_entries_values_zeros_and_bytes_are_counted_by_layer():
    dense, norm = layers.Dense(3, name="dense"), layers.BatchNormalization(name="norm")
    model = keras.Sequential([keras.Input((4,)), dense, norm])
    dense.kernel.assign(np.array([[1, -1, 0]] * 4, np.float32))
    assert rows_of(model) == {
        "dense": ("12", "3", "4", "0.3333", "48"),
        "others": ("15", "2", "9", "0.6000", "60"),  # a bias, beta and mean of 0; gamma and variance of 1
        "total": ("27", "3", "13", "0.4815", "108"),
    }


def test_weights_of_shared_and_of_inner_layers_count_once():
    shared = layers.Dense(4, use_bias=False, name="shared")
    inner = keras.Sequential([keras.Input((4,)), shared, layers.Dense(2, use_bias=False, name="head")], name="inner")
    inputs = keras.Input((4,))
    found = rows_of(keras.Model(inputs, inner(shared(inputs))))
    assert {name: row[0] for name, row in found.items()} == {"shared": "16", "inner/head": "8", "total": "24"}
