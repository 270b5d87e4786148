"""Predictions that differ by rounding are told from those that differ by a mistake."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.packed import layers, pack, pack_arrays, randomize, sign
from trainer.export.rounding import differ_by_rounding
from trainer.inference.engine import Model


def network() -> keras.Model:
    """Return a float layer, two binary ones inside a model of their own, called twice, and logits."""
    inner = keras.Sequential(
        [
            keras.Input((8,)),
            sign("sign"),
            layers.Dense(8, use_bias=False, name="dense"),
            layers.BatchNormalization(name="norm", scale=False),
        ],
        name="inner",
    )
    inputs = keras.Input((5,))
    x = layers.Dense(8, name="first")(inputs)
    x = layers.Dense(3, name="logits")(sign("last")(inner(inner(x))))
    model = keras.Model(inputs, x)
    randomize(model, 3, {"first": None, "logits": None})
    return model


def inputs(count: int = 40) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)


def test_the_same_network_differs_by_rounding_at_most():
    model = network()
    assert differ_by_rounding(model, pack(model), inputs()).all()


@pytest.mark.parametrize("by", [1e-7, 0.3])
def test_a_float_sum_next_to_zero_may_have_another_sign(by: float):
    model, given = network(), inputs()
    first = model.get_layer("first")
    bias = first.bias.numpy() - np.eye(8, dtype=np.float32)[0] * np.asarray(first(given))[7, 0]
    first.bias.assign(bias + np.eye(8)[0] * by)  # channel 0 of example 7 is 0, up to this
    packed = pack(model)
    first.bias.assign(bias - np.eye(8)[0] * by)
    assert (packed(given)[7] != np.asarray(model(given))[7]).any()
    assert differ_by_rounding(model, packed, given).all() == (by < 0.1)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("by", [-2, 2])  # sums of 8 signs are even
def test_a_threshold_beside_the_right_one_is_a_mistake(which: int, by: int):
    model, given = network(), inputs()
    graph, tensors = pack_arrays(model)
    name = [op.fields["thresholds"] for op in graph.ops if op.op == "threshold"][which]
    wrong = {**tensors, name: tensors[name] + np.int8(by)}
    assert not differ_by_rounding(model, Model(graph, wrong), given).all()


@pytest.mark.parametrize(("factor", "accepted"), [(1.00001, True), (1.01, False)])
def test_outputs_behind_equal_signs_are_as_near_as_sums_are(factor: float, accepted: bool):
    model, given = network(), inputs()
    graph, tensors = pack_arrays(model)
    name = graph.ops[-1].fields["kernel"].tensor
    wrong = {**tensors, name: tensors[name] * np.float32(factor)}
    assert differ_by_rounding(model, Model(graph, wrong), given).all() == accepted
