"""Pointwise operations give what Keras gives; values that are arranged hold the same entries in the same order."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.inference.engine import Model
from hookline.deploy.inference.graph import ACTIVATIONS
from hookline.deploy.inference.shapes import BINARY, INTEGER
from hookline.trainer.ops.estimators import dorefa, ste_sign, ste_tern
from tests.support.packed_graphs import GraphBuilder

SHAPE = (7, 6, 5)


def image(shape: tuple[int, ...]) -> np.ndarray:
    """Return values at 0 and beyond -3 and +3 too."""
    inputs = np.random.default_rng(1).normal(scale=2, size=(3, *shape)).astype(np.float32)
    inputs.reshape(-1)[:2] = 0.0, -0.0
    return inputs


def compare(layer, inputs: np.ndarray, op: str, **fields) -> None:
    builder = GraphBuilder(inputs.shape[1:])
    builder.add(op, **fields)
    found = Model(builder.graph(), builder.tensors)(inputs)
    np.testing.assert_allclose(found, layer(tf.constant(inputs)), rtol=2e-5, atol=2e-5)


def test_operations_without_weights():
    compare(ste_sign, image(SHAPE), "sign")
    compare(ste_tern, image(SHAPE), "ternary", threshold=0.05)
    for bits in (1, 2, 8):
        compare(lambda x, bits=bits: dorefa(x, k_bit=bits), image(SHAPE), "round", bits=bits)
    for function in ACTIVATIONS:
        layer = keras.activations.get(function)
        for inputs in (image(SHAPE), np.array([[-80.0, 80.0], [80.0, -80.0]], np.float32)):  # finite, too
            compare(layer, inputs, "activation", function=function)
    for function, name in {"leaky_relu": "negative_slope", "elu": "alpha"}.items():
        layer = getattr(keras.activations, function)
        sloped = lambda x, layer=layer, name=name: layer(x, **{name: 0.3})  # noqa: E731
        compare(sloped, image(SHAPE), "activation", function=function, slope=0.3)


@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((2, 3, 8), (6, 8)), ((2, 3, 8), (3, 16)), ((2, 3, 8), (12, 4)), ((2, 3, 5), (5, 6)), ((2, 3, 5), (6, 5)),
        ((2, 1, 12), (3, 8)), ((1, 2, 9), (18,)), ((4, 2, 24), (12, 16)),
    ],
)  # fmt: skip
def test_signs_of_another_shape_are_the_same_signs(shape: tuple[int, ...], other: tuple[int, ...]):
    for flat in (True, False):
        builder = GraphBuilder(shape)
        builder.add("sign")
        if flat:
            builder.add("flatten")
        made = builder.add("reshape", shape=other)
        kernel = builder.signs((other[-1], 3))
        builder.add("dense", kernel=kernel)
        model = Model(builder.graph(), builder.tensors)
        sums, kept = model.run(image(shape), keep=[made])
        expected = np.where(image(shape) >= 0, 1, -1).reshape(-1, *other)
        np.testing.assert_array_equal(kept[made], expected)
        np.testing.assert_array_equal(sums, expected @ builder.decoded[kernel.tensor])
        assert [model.values[name].kind for name in (made, model.graph.output)] == [BINARY, INTEGER]
