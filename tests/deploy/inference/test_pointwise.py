"""Values that are arranged and joined: the same entries in the same order, packed as the next operation reads them."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.deploy.inference.engine import Model
from hookline.deploy.inference.shapes import BINARY, INTEGER
from tests.support.packed_graphs import GraphBuilder


def image(shape: tuple[int, ...], batch: int = 3) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(batch, *shape)).astype(np.float32)


def values_of(builder: GraphBuilder, *names: str) -> tuple[list[np.ndarray], list[str]]:
    model = Model(builder.graph(), builder.tensors)
    kept = model.run(image(builder.shape), keep=names)[1]
    return [kept[name] for name in names], [model.values[name].kind for name in names]


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
        (signs, sums), kinds = values_of(builder, made, builder.add("dense", kernel=kernel))
        expected = np.where(image(shape) >= 0, 1, -1).reshape(-1, *other)
        np.testing.assert_array_equal(signs, expected)
        np.testing.assert_array_equal(sums, expected @ builder.decoded[kernel.tensor])
        assert kinds == [BINARY, INTEGER]
