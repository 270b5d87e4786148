"""LeNet++: the layers of the paper, features that spread in all directions, small and large images."""

from __future__ import annotations

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
from omegaconf import OmegaConf

from hooks.centers.features import find_features
from recipes.models.lenet_plus_plus import lenet_plus_plus
from trainer.errors import UserError

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "model" / "lenet_plus_plus.yaml"


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
    assert [tuple(v.shape) for v in model.variables if "prelu_3" in v.path] == [(1, 1, 128)] * 2


def test_a_slope_belongs_to_a_channel_and_starts_as_in_the_paper_on_prelu() -> None:
    slopes = [v for v in lenet_plus_plus((8, 8, 1), 10, filters=(2, 3, 4)).variables if "prelu" in v.path]
    assert [tuple(v.shape) for v in slopes] == [(1, 1, c) for c in (2, 2, 3, 3, 4, 4)]
    assert all((v.numpy() == 0.25).all() for v in slopes)


@pytest.mark.parametrize("size", [8, 9, 28, 40])
def test_images_of_eight_pixels_and_more_give_features_of_either_sign(size: int) -> None:
    model = lenet_plus_plus((size, size, 1), 7, features=3, filters=(4, 4, 4), kernel_size=3)
    images = np.random.default_rng(0).normal(size=(32, size, size, 1)).astype(np.float32)
    features = keras.Model(model.inputs[0], find_features(model, None))(images).numpy()
    assert features.shape == (32, 3)
    assert features.min() < 0 < features.max()
    assert model(images).shape == (32, 7)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((7, 8, 1), {}, "lenet_plus_plus got inputs of shape .7, 8, 1.*at least 8"),
        ((64,), {}, "Expected images .height, width, channels."),
        ((8, 8, 1), {"filters": [4, 4]}, r"Invalid filters: \[4, 4\]. Expected three"),
        ((8, 8, 1), {"filters": [4, 4, 0]}, "Invalid filters"),
        ((8, 8, 1), {"filters": "444"}, "Invalid filters: '444'"),
        ((8, 8, 1), {"features": 0}, "Invalid features: 0"),
        ((8, 8, 1), {"kernel_size": True}, "Invalid kernel_size: True"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(shape, options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lenet_plus_plus(shape, 10, **options)


def test_the_config_names_every_argument_with_its_default() -> None:
    config = OmegaConf.to_container(OmegaConf.load(CONFIG))
    assert CONFIG.read_text().startswith("# ")
    assert config.pop("_target_") == "recipes.models.lenet_plus_plus.lenet_plus_plus"
    parameters = inspect.signature(lenet_plus_plus).parameters
    defaults = {name: each.default for name, each in parameters.items() if name not in ("input_shape", "classes")}
    assert {name: tuple(v) if isinstance(v, list) else v for name, v in config.items()} == defaults
