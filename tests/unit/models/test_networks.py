"""The networks: their layers, sizes and shapes, and what they refuse."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import keras
import numpy as np
import pytest
from omegaconf import OmegaConf

from recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
from recipes.models.lenet_5 import lenet_5
from recipes.models.lenet_300_100 import lenet_300_100
from recipes.models.mlp import mlp
from recipes.models.plain_cnn import plain_cnn
from trainer.errors import UserError

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "model"
INJECTED = {"input_shape", "classes", "role", "latent_size", "stacked"}


def names(model: keras.Model) -> list[str]:
    return [layer.name for layer in model.layers]


def kernel_entries(model: keras.Model) -> int:
    return sum(math.prod(v.shape) for v in model.trainable_variables if v.path.endswith("kernel"))


def norm_channels(model: keras.Model) -> int:
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    return sum(layer.moving_mean.shape[0] for layer in norms)


def test_the_tutorial_network_has_the_published_size():
    model = larq_tutorial_cnn((28, 28, 1), 10)
    assert kernel_entries(model) == 93_088
    assert norm_channels(model) == 234
    kibibytes = (kernel_entries(model) / 8 + 2 * 4 * norm_channels(model)) / 1024
    assert round(kibibytes, 2) == 13.19
    scales = [variable.path for variable in model.variables if variable.path.endswith(("bias", "gamma"))]
    assert scales == ["batch_norm_logits/gamma"]
    tutorial = larq_tutorial_cnn((28, 28, 1), 10, logits_scale=False)
    assert not any(variable.path.endswith("gamma") for variable in tutorial.variables)


@pytest.mark.parametrize(("network", "weights"), [(lenet_300_100, 266_610), (lenet_5, 431_080)])
def test_the_lenets_have_the_published_sizes(network, weights):
    model = network((28, 28, 1), 10)
    assert model.count_params() == weights
    assert model.output_shape == (None, 10)
    assert sum("dropout" in name for name in names(network((28, 28, 1), 10, dropout=0.5))) in (1, 2)
    with pytest.raises(UserError, match=r"Invalid dropout: 1\.0"):
        network((28, 28, 1), 10, dropout=1.0)


def test_the_lenet_of_convolutions_refuses_small_images():
    with pytest.raises(UserError, match="lenet_5 got inputs of shape .8, 8, 1.*model=lenet_300_100"):
        lenet_5((8, 8, 1), 10)


def test_the_tutorial_network_pools_before_batch_norm_and_activates_after_it():
    expected = ["image"]
    for block in (1, 2, 3):
        pool = [f"pool_{block}"] if block < 3 else []
        expected += [f"conv_{block}", *pool, f"batch_norm_{block}", f"activation_{block}"]
    expected += ["flatten", "dense_1", "batch_norm_4", "activation_4", "logits", "batch_norm_logits"]
    assert names(larq_tutorial_cnn((28, 28, 1), 10)) == expected


def test_the_mlp_repeats_dense_norm_activation_and_ends_in_normalised_logits():
    model = mlp((8, 8, 1), 10, units=[32, 16])
    assert names(model) == [
        *("image", "flatten", "dense_1", "batch_norm_1", "activation_1"),
        *("dense_2", "batch_norm_2", "activation_2", "logits", "batch_norm_logits"),
    ]
    assert kernel_entries(model) == 64 * 32 + 32 * 16 + 16 * 10
    assert not any(variable.path.endswith("bias") for variable in model.variables)


def test_the_mlp_takes_dropout_and_no_hidden_layer():
    assert "dropout_2" in names(mlp((4,), 3, dropout=0.5))
    assert names(mlp((4,), 3, units=[])) == ["image", "flatten", "logits", "batch_norm_logits"]


@pytest.mark.parametrize("model", [mlp((28, 28, 1), 10), larq_tutorial_cnn((28, 28, 1), 10)], ids=["mlp", "cnn"])
def test_outputs_are_logits_and_not_probabilities(model: keras.Model):
    images = np.random.default_rng(0).normal(size=(64, 28, 28, 1)).astype(np.float32)
    logits = model(images, training=True).numpy()
    assert logits.shape == (64, 10)
    np.testing.assert_allclose(logits.mean(axis=0), np.zeros(10), atol=1e-4)
    assert logits.min() < 0


@pytest.mark.parametrize("make", [mlp, larq_tutorial_cnn])
def test_hidden_activations_keep_the_sign_and_the_gradient_mask_of_a_straight_through_sign(make):
    model = make((28, 28, 1), 10)
    activations = [layer.activation for layer in model.layers if isinstance(layer, keras.layers.Activation)]
    x = keras.ops.convert_to_tensor([-3.0, -1.0, -0.2, 0.0, 0.5, 1.0, 2.0])
    assert activations
    for activation in activations:
        np.testing.assert_array_equal(activation(x), np.clip(x, -1, 1))


@pytest.mark.parametrize("make", [mlp, larq_tutorial_cnn])
def test_batch_norm_takes_its_options(make):
    model = make((28, 28, 1), 10, batch_norm_momentum=0.5, batch_norm_epsilon=0.01)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert {(layer.momentum, layer.epsilon) for layer in norms} == {(0.5, 0.01)}


def test_the_smallest_image_of_the_tutorial_network_is_just_large_enough():
    assert larq_tutorial_cnn((18, 18, 3), 2).get_layer("conv_3").output.shape == (None, 1, 1, 64)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: larq_tutorial_cnn((8, 8, 1), 10), r"shape \(8, 8, 1\).*18 pixels a side"),
        (lambda: larq_tutorial_cnn((28, 17, 1), 10), "18 pixels a side"),
        (lambda: larq_tutorial_cnn((784,), 10), r"shape \(784,\). Expected images \[height, width, channels\]"),
        (lambda: larq_tutorial_cnn((28, 28, 1), 10, activation="hard_tahn"), "Did you mean 'hard_tanh'"),
        (lambda: larq_tutorial_cnn((28, 28, 1), 10, batch_norm_epsilon=0), "Invalid batch_norm_epsilon: 0"),
        (lambda: mlp((4,), 3, activation="rellu"), "Unknown activation 'rellu'. Did you mean 'relu'"),
        (lambda: mlp((4,), 3, units=[8, 0]), r"Invalid units: \[8, 0\]"),
        (lambda: mlp((4,), 3, units="8"), "Invalid units: '8'"),
        (lambda: mlp((4,), 3, units=[8.0]), "Invalid units"),
        (lambda: mlp((4,), 3, units=[True]), "Invalid units"),
        (lambda: mlp((4,), 3, units=None), "Invalid units: None"),
        (lambda: mlp((4,), 3, dropout=1.0), "Invalid dropout: 1.0"),
        (lambda: mlp((4,), 3, batch_norm_momentum=1.0), "Invalid batch_norm_momentum: 1.0"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(build, message):
    with pytest.raises(UserError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


TARGETS = {
    "mlp": mlp,
    "larq_tutorial_cnn": larq_tutorial_cnn,
    "plain_cnn": plain_cnn,
    "mobilenet_v2": keras.applications.MobileNetV2,
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_model_config_says_its_purpose_and_names_every_argument(name: str):
    path = CONFIGS / f"{name}.yaml"
    assert path.read_text().startswith("# ")
    config = OmegaConf.to_container(OmegaConf.load(path))
    target = config.pop("_target_")
    assert target.rpartition(".")[2] == TARGETS[name].__name__
    parameters = inspect.signature(TARGETS[name]).parameters
    assert set(config) == set(parameters) - INJECTED
    if name != "mobilenet_v2":
        assert {key: list(value) if isinstance(value, list) else value for key, value in config.items()} == {
            key: list(each.default) if isinstance(each.default, tuple) else each.default
            for key, each in parameters.items()
            if key not in INJECTED
        }


def test_the_mobilenet_config_builds_a_network_with_logits():
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / "mobilenet_v2.yaml"))
    config.pop("_target_")
    model = keras.applications.MobileNetV2(**{**config, "alpha": 0.35}, input_shape=(32, 32, 3), classes=10)
    assert model.output_shape == (None, 10)
    assert model.layers[-1].activation is keras.activations.linear
