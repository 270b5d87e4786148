"""LeNet++: the layers of the paper, features that spread in all directions, small and large images."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.hooks.centers.features import find_features
from hookline.recipes.models.lenet import lenet_plus_plus


def test_the_layers_are_those_of_the_paper_under_readable_names() -> None:
    model = lenet_plus_plus((28, 28, 1), 10)
    blocks = [[f"{kind}_{b}_{n}" for n in (1, 2) for kind in ("conv", "prelu")] + [f"pool_{b}"] for b in (1, 2, 3)]
    expected = ["image", *blocks[0], *blocks[1], *blocks[2], "flatten", "features", "logits"]
    assert [layer.name for layer in model.layers] == expected
    kernels = {v.path.removesuffix("/kernel"): tuple(v.shape) for v in model.variables if v.path.endswith("/kernel")}
    assert kernels == {
        "conv_1_1": (5, 5, 1, 32),
        "conv_1_2": (5, 5, 32, 32),
        "conv_2_1": (5, 5, 32, 64),
        "conv_2_2": (5, 5, 64, 64),
        "conv_3_1": (5, 5, 64, 128),
        "conv_3_2": (5, 5, 128, 128),
        "features": (3 * 3 * 128, 2),
        "logits": (2, 10),
    }
    assert not any(v.path == "logits/bias" for v in model.variables)
    slopes = [v for v in model.variables if "prelu" in v.path]  # one a channel
    assert [tuple(v.shape) for v in slopes] == [(1, 1, c) for c in (32, 32, 64, 64, 128, 128)]
    assert all((v.numpy() == 0.25).all() for v in slopes)


@pytest.mark.parametrize("size", [8, 9])
def test_images_of_eight_pixels_and_more_give_features_of_either_sign(size: int) -> None:
    model = lenet_plus_plus((size, size, 1), 7, features=3, filters=(4, 4, 4), kernel_size=3)
    images = np.random.default_rng(0).normal(size=(32, size, size, 1)).astype(np.float32)
    features = keras.Model(model.inputs[0], find_features(model, None))(images).numpy()
    assert features.shape == (32, 3)
    assert features.min() < 0 < features.max()
    assert model(images).shape == (32, 7)
