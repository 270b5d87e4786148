"""Values that are arranged and joined: the same entries in the same order, packed as the next operation reads them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.packed_graphs import GraphBuilder
from trainer.inference.engine import Model
from trainer.inference.shapes import BINARY, FLOAT, INTEGER


def image(shape: tuple[int, ...], batch: int = 3) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(batch, *shape)).astype(np.float32)


def values_of(builder: GraphBuilder, *names: str) -> tuple[list[np.ndarray], list[str]]:
    model = Model(builder.graph(), builder.tensors)
    kept = model.run(image(builder.shape), keep=names)[1]
    return [kept[name] for name in names], [model.values[name].kind for name in names]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((2, 3, 8), (6, 8)), ((2, 3, 8), (3, 16)), ((2, 2, 16), (8, 8)), ((2, 3, 8), (12, 4)), ((2, 3, 4), (3, 8)),
        ((2, 3, 5), (5, 6)), ((2, 3, 5), (6, 5)), ((2, 1, 12), (3, 8)), ((1, 2, 9), (18,)), ((4, 2, 24), (12, 16)),
    ],
)  # fmt: skip
def test_signs_of_another_shape_are_the_same_signs(shape: tuple[int, ...], other: tuple[int, ...], flat: bool):
    builder = GraphBuilder(shape)
    builder.add("sign")
    if flat:
        builder.add("flatten")
    made = builder.add("reshape", shape=other)
    last = builder.add("dense", kernel=builder.signs((other[-1], 3)))
    (signs, sums), kinds = values_of(builder, made, last)
    expected = np.where(image(shape) >= 0, 1, -1).reshape(-1, *other)
    np.testing.assert_array_equal(signs, expected)
    kernel = next(each for each in builder.decoded.values() if each.shape == (other[-1], 3))
    np.testing.assert_array_equal(sums, expected @ kernel)
    assert kinds == [BINARY, INTEGER]


@pytest.mark.parametrize("kind", [FLOAT, INTEGER, BINARY])
def test_zeros_around_any_kind_are_floats(kind: str):
    builder = GraphBuilder((2, 3, 5))
    name = "image" if kind == FLOAT else builder.add("sign")
    if kind == INTEGER:
        name = builder.add("dense", kernel=builder.signs((5, 9)))
    last = builder.add("zero_pad2d", padding=((1, 0), (0, 2)))
    (given, found), kinds = values_of(builder, name, last)
    np.testing.assert_array_equal(found, np.pad(given, ((0, 0), (1, 0), (0, 2), (0, 0))))
    assert (kinds, found.dtype) == ([kind, FLOAT], np.float32)


@pytest.mark.parametrize("axis", [1, -1])
def test_a_join_of_images_with_one_pixel_repeats_it(axis: int):
    builder = GraphBuilder((4, 3, 2))
    builder.add("global_max_pool2d")
    one = builder.add("reshape", shape=(1, 1, 2))
    last = builder.add("multiply", inputs=("image", one)[::axis])
    (product,), _ = values_of(builder, last)
    np.testing.assert_array_equal(product, image((4, 3, 2)) * image((4, 3, 2)).max(axis=(1, 2), keepdims=True))
