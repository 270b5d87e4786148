"""The table of a plain model: every entry counted once, in the row of its layer."""

from __future__ import annotations

import keras
import numpy as np

from trainer.export.layer_table import COLUMNS, layer_table

layers = keras.layers


def rows_of(model: keras.Model) -> dict[str, tuple[str, ...]]:
    contents = layer_table(model)
    assert contents.columns == COLUMNS
    return {row[0]: row[1:] for row in contents.rows}


def test_entries_values_zeros_and_bytes_are_counted_by_layer():
    dense, norm = layers.Dense(3, name="dense"), layers.BatchNormalization(name="norm")
    model = keras.Sequential([keras.Input((4,)), dense, norm])
    dense.kernel.assign(np.array([[1, -1, 0]] * 4, np.float32))
    assert rows_of(model) == {
        "dense": ("12", "3", "4", "0.3333", "48"),
        "others": ("15", "2", "9", "0.6000", "60"),  # a bias, beta and mean of 0; gamma and variance of 1
        "total": ("27", "3", "13", "0.4815", "108"),
    }


def test_layers_in_models_have_their_own_rows_and_shared_ones_one():
    shared = layers.Dense(4, use_bias=False, name="shared")
    inner = keras.Sequential([keras.Input((4,)), shared, layers.Dense(2, use_bias=False, name="head")], name="inner")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, inner(shared(inputs)))
    found = rows_of(model)
    assert {name: row[0] for name, row in found.items()} == {"shared": "16", "inner/head": "8", "total": "24"}
    assert keras.Model.count_params(model) == 24


def test_weights_of_layers_in_a_layer_count_once():
    model = keras.Sequential([keras.Input((5, 2)), layers.Bidirectional(layers.LSTM(3, name="lstm"), name="both")])
    found = rows_of(model)
    kernels = 2 * (2 + 3) * 4 * 3
    assert {name: row[0] for name, row in found.items()} == {"both": f"{kernels}", "others": "24", "total": "144"}


def test_a_model_without_weights_has_a_total():
    inputs = keras.Input((4,))
    assert rows_of(keras.Model(inputs, layers.Flatten()(inputs))) == {"total": ("0", "0", "0", "0.0000", "0")}


def test_notes_and_whether_it_is_lossy_are_passed_on():
    inputs = keras.Input((4,))
    contents = layer_table(keras.Model(inputs, layers.Dense(2)(inputs)), notes=("rounded",), lossy=True)
    assert (contents.notes, contents.lossy) == (("rounded",), True)
