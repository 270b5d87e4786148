"""Predictions that differ by rounding are told from those that differ by a mistake."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.deploy.inference.engine import Model
from hookline.deploy.packed import differ_by_rounding
from tests.support.packed import layers, pack, pack_arrays, randomize, sign


def network() -> keras.Model:
    """Return a float layer, two binary ones inside a model of their own, called twice, and logits."""
    norm = layers.BatchNormalization(name="norm", scale=False)
    dense = layers.Dense(8, use_bias=False, name="dense")
    inner = keras.Sequential([keras.Input((8,)), sign("sign"), dense, norm], name="inner")
    inputs = keras.Input((5,))
    x = layers.Dense(8, name="first")(inputs)
    x = layers.Dense(3, name="logits")(sign("last")(inner(inner(x))))
    model = keras.Model(inputs, x)
    randomize(model, 3, {"first": None, "logits": None})
    return model


def inputs(count: int = 40) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)


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


def test_another_threshold_is_a_mistake():
    model, given = network(), inputs()
    graph, tensors = pack_arrays(model)
    assert differ_by_rounding(model, pack(model), given).all()
    for name in (op.fields["thresholds"] for op in graph.ops if op.op == "threshold"):
        for by in (-2, 2):  # sums of 8 signs are even
            wrong = {**tensors, name: tensors[name] + np.int8(by)}
            assert not differ_by_rounding(model, Model(graph, wrong), given).all()
    name = graph.ops[-1].fields["kernel"].tensor
    for factor, accepted in ((1.00001, True), (1.01, False)):
        wrong = {**tensors, name: tensors[name] * np.float32(factor)}
        assert differ_by_rounding(model, Model(graph, wrong), given).all() == accepted
