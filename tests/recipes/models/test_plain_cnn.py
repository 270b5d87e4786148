"""The plain convolutional network: its layers, what an image costs, both heads, and what it refuses."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest

from hookline.recipes.models.plain_cnn import plain_cnn
from hookline.trainer.errors import UserError


def names(model: keras.Model) -> list[str]:
    return [layer.name for layer in model.layers]


def multiplications(model: keras.Model) -> int:
    """Return the multiplications of an image: every kernel entry at every place of its output."""
    count = 0
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D):
            count += math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:3])
        elif isinstance(layer, keras.layers.Dense):
            count += math.prod(layer.kernel.shape)
    return count


def test_every_block_is_convolution_norm_activation_pooling():
    model = plain_cnn((32, 32, 3), 7, filters=[4, 8], dropout=0.5, activation="hard_tanh", batch_norm_momentum=0.5)
    parts = ("conv", "batch_norm", "activation", "pool")
    blocks = [f"block_{block}_{part}" for block in (1, 2) for part in parts]
    assert names(model) == ["image", *blocks, "global_pooling", "dropout", "outputs"]
    assert model.output_shape == (None, 7)
    assert [model.get_layer(f"block_{block}_pool").output.shape[1:] for block in (1, 2)] == [(16, 16, 4), (8, 8, 8)]
    assert not model.get_layer("block_1_conv").use_bias
    assert model.get_layer("block_1_batch_norm").momentum == 0.5
    assert model.get_layer("block_1_activation").activation is keras.activations.hard_tanh
    assert model.layers[-1].activation is keras.activations.linear


def test_a_photograph_takes_17_million_multiplications():
    strided, dense = (plain_cnn((96, 96, 3), 64, first_stride=stride) for stride in (2, 1))
    assert multiplications(strided) == pytest.approx(17e6, rel=0.05)
    assert multiplications(dense) == pytest.approx(70e6, rel=0.05)
    assert strided.count_params() == dense.count_params() < 200_000


def test_the_flat_head_knows_places_and_the_pooled_head_does_not():
    image = np.zeros((1, 16, 16, 1), np.float32)
    image[0, 4:8, 4:8] = 1.0
    moved = np.roll(image, 4, axis=2)  # a whole step of both poolings, and far from the border
    pooled = plain_cnn((16, 16, 1), 3, filters=[4, 4])
    flat = plain_cnn((16, 16, 1), 3, filters=[4, 4], head="flatten")
    assert names(flat)[-2:] == ["flatten", "outputs"]
    assert flat.layers[-1].kernel.shape == (4 * 4 * 4, 3)
    np.testing.assert_allclose(pooled(image), pooled(moved), atol=1e-6)
    assert np.abs(flat(image) - flat(moved)).max() > 1e-3


@pytest.mark.parametrize(("stride", "side"), [(1, 8), (2, 16)])
def test_the_smallest_image_leaves_one_pixel(stride, side):
    options = {"filters": [2, 2, 2], "first_stride": stride}
    assert plain_cnn((side, side, 1), 2, **options).get_layer("block_3_pool").output.shape[1:3] == (1, 1)
    with pytest.raises(UserError, match=f"plain_cnn got inputs of shape .*at least {side} pixels a side for 3 blocks"):
        plain_cnn((side - 1, side, 1), 2, **options)
