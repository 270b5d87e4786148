"""The networks: their layers, sizes and shapes, what their configs name, and what they refuse."""

from __future__ import annotations

import importlib
import inspect
import math
from pathlib import Path

import keras
import numpy as np
import pytest
from omegaconf import OmegaConf

from hookline.recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
from hookline.recipes.models.lenet import lenet_5, lenet_300_100, lenet_plus_plus
from hookline.recipes.models.mlp import mlp
from hookline.recipes.models.plain_cnn import plain_cnn
from hookline.recipes.models.two_headed_cnn import two_headed_cnn
from hookline.trainer.errors import UserError

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "model"
INJECTED = {"input_shape", "classes", "role", "latent_size", "stacked"}


def names(model):
    return [layer.name for layer in model.layers]


def kernel_entries(model):
    return sum(math.prod(v.shape) for v in model.trainable_variables if v.path.endswith("kernel"))


def norms(model):
    return [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]


def test_the_tutorial_network_is_the_published_one():
    model = larq_tutorial_cnn((28, 28, 1), 10)
    assert kernel_entries(model) == 93_088
    channels = sum(layer.moving_mean.shape[0] for layer in norms(model))
    assert channels == 234
    assert round((kernel_entries(model) / 8 + 2 * 4 * channels) / 1024, 2) == 13.19  # KiB
    scales = [variable.path for variable in model.variables if variable.path.endswith(("bias", "gamma"))]
    assert scales == ["batch_norm_logits/gamma"]
    tutorial = larq_tutorial_cnn((28, 28, 1), 10, logits_scale=False)
    assert not any(variable.path.endswith("gamma") for variable in tutorial.variables)
    expected = ["image"]
    for block in (1, 2, 3):  # pools before batch norm, and activates after it
        pool = [f"pool_{block}"] if block < 3 else []
        expected += [f"conv_{block}", *pool, f"batch_norm_{block}", f"activation_{block}"]
    expected += ["flatten", "dense_1", "batch_norm_4", "activation_4", "logits", "batch_norm_logits"]
    assert names(model) == expected
    assert larq_tutorial_cnn((18, 18, 3), 2).get_layer("conv_3").output.shape == (None, 1, 1, 64)


@pytest.mark.parametrize(("network", "weights"), [(lenet_300_100, 266_610), (lenet_5, 431_080)])
def test_the_lenets_have_the_published_sizes(network, weights):
    model = network((28, 28, 1), 10)
    assert model.count_params() == weights
    assert model.output_shape == (None, 10)
    assert sum("dropout" in name for name in names(network((28, 28, 1), 10, dropout=0.5))) in (1, 2)


def test_the_mlp_repeats_dense_norm_activation():
    model = mlp((8, 8, 1), 10, units=[32, 16])
    assert names(model) == [
        *("image", "flatten", "dense_1", "batch_norm_1", "activation_1"),
        *("dense_2", "batch_norm_2", "activation_2", "logits", "batch_norm_logits"),
    ]
    assert kernel_entries(model) == 64 * 32 + 32 * 16 + 16 * 10
    assert not any(variable.path.endswith("bias") for variable in model.variables)
    assert "dropout_2" in names(mlp((4,), 3, dropout=0.5))
    assert names(mlp((4,), 3, units=[])) == ["image", "flatten", "logits", "batch_norm_logits"]


@pytest.mark.parametrize("make", [mlp, larq_tutorial_cnn])
def test_binary_networks_clip_activations_and_end_in_logits(make):
    model = make((28, 28, 1), 10, batch_norm_momentum=0.5, batch_norm_epsilon=0.01)
    assert {(layer.momentum, layer.epsilon) for layer in norms(model)} == {(0.5, 0.01)}
    logits = model(np.random.default_rng(0).normal(size=(64, 28, 28, 1)).astype(np.float32), training=True).numpy()
    np.testing.assert_allclose(logits.mean(axis=0), np.zeros(10), atol=1e-4)
    assert logits.min() < 0
    # As a straight-through sign does, they keep the sign, and the gradient mask.
    activations = [layer.activation for layer in model.layers if isinstance(layer, keras.layers.Activation)]
    x = keras.ops.convert_to_tensor([-3.0, -1.0, -0.2, 0.0, 0.5, 1.0, 2.0])
    assert activations
    for activation in activations:
        np.testing.assert_array_equal(activation(x), np.clip(x, -1, 1))


def test_a_wrong_argument_is_one_clear_line():
    image = (28, 28, 1)
    for network, shape, options, message in (
        (larq_tutorial_cnn, (28, 17, 1), {}, "18 pixels a side"),
        (larq_tutorial_cnn, (784,), {}, r"shape \(784,\)"),
        (larq_tutorial_cnn, image, {"activation": "hard_tahn"}, "'hard_tanh'"),
        (larq_tutorial_cnn, image, {"batch_norm_epsilon": 0}, "batch_norm_epsilon: 0"),
        (mlp, (4,), {"units": "8"}, "units: '8'"),
        (mlp, (4,), {"units": [True]}, "units"),
        (mlp, (4,), {"batch_norm_momentum": 1.0}, "batch_norm_momentum: 1.0"),
        (lenet_300_100, image, {"dropout": 1.0}, "dropout: 1.0"),
        (lenet_5, (8, 8, 1), {}, "model=lenet_300_100"),
        (lenet_plus_plus, (7, 8, 1), {}, "at least 8"),
        (lenet_plus_plus, image, {"filters": [4, 4]}, "Expected three"),
        (plain_cnn, image, {"first_stride": 3}, "first_stride: 3"),
        (plain_cnn, image, {"head": "flaten"}, "'flatten'"),
        (two_headed_cnn, (3, 4, 1), {}, "at least 4 pixels a side"),
        (two_headed_cnn, image, {"class_units": [0]}, r"class_units: \[0\]"),
        (two_headed_cnn, image, {"kernel_size": 0}, "kernel_size: 0"),
    ):
        with pytest.raises(UserError, match=message) as error:
            network(shape, 10, **options)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted({path.stem for path in CONFIGS.glob("*.yaml")} - {"custom"}))
def test_a_model_config_says_its_purpose_and_names_every_argument(name):
    path = CONFIGS / f"{name}.yaml"
    assert path.read_text().startswith("# ")
    config = OmegaConf.to_container(OmegaConf.load(path))
    module, _, function = config.pop("_target_").rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), function)).parameters
    assert set(config) == set(parameters) - INJECTED
    if path.stem != "mobilenet_v2":
        defaults = {key: each.default for key, each in parameters.items() if key not in INJECTED}
        listed = {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}
        assert config == listed
