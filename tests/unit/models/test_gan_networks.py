"""The networks of GANs: shapes, ranges, sizes, stacked forms, and what they refuse."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest

from recipes.models.dcgan import dcgan
from recipes.models.gan_mlp import gan_mlp
from recipes.models.stacked_dense import StackedDense
from trainer.errors import UserError

GENERATOR = {"role": "generator", "latent_size": 5}
DISCRIMINATOR = {"role": "discriminator", "latent_size": 5}


def draw(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(2,), (8, 8, 1), (3, 4)])
@pytest.mark.parametrize("stacked", [None, 3])
def test_dense_networks_map_noise_to_examples_and_examples_to_scores(shape, stacked):
    leading = (None,) if stacked is None else (stacked, None)
    generator = gan_mlp(shape, stacked=stacked, units=[6], **GENERATOR)
    discriminator = gan_mlp(shape, stacked=stacked, units=[6], **DISCRIMINATOR)
    assert generator.input_shape == (*leading, 5)
    assert generator.output_shape == discriminator.input_shape == (*leading, *shape)
    assert discriminator.output_shape == (*leading, 1)
    inputs = draw((7, 5) if stacked is None else (stacked, 7, 5))
    outputs = generator(inputs)
    assert outputs.shape[-len(shape) :] == shape
    assert discriminator(outputs).shape == (*inputs.shape[:-1], 1)


def test_only_images_are_held_in_their_range():
    noise = 100.0 * draw((50, 5))
    assert np.abs(gan_mlp((8, 8, 1), units=[6], **GENERATOR)(noise)).max() <= 1.0
    assert np.abs(gan_mlp((2,), units=[6], **GENERATOR)(noise)).max() > 1.0


def test_the_discriminator_may_be_larger():
    options = {"units": [6, 7], "discriminator_units": [9]}
    assert [layer.units for layer in gan_mlp((2,), **options, **GENERATOR).layers if hasattr(layer, "units")] == [
        6,
        7,
        2,
    ]
    found = [layer.units for layer in gan_mlp((2,), **options, **DISCRIMINATOR).layers if hasattr(layer, "units")]
    assert found == [9, 1]


def test_stacked_layers_start_as_dense_layers_of_one_network_do():
    layer = StackedDense(200, 3)
    layer.build((3, None, 100))
    plain = keras.layers.Dense(200)
    plain.build((None, 100))
    limit = math.sqrt(6.0 / 300)
    assert np.abs(plain.kernel.numpy()).max() == pytest.approx(limit, rel=0.01)
    for kernel in layer.kernel.numpy():
        assert np.abs(kernel).max() == pytest.approx(limit, rel=0.01)
        assert kernel.std() == pytest.approx(plain.kernel.numpy().std(), rel=0.02)
    assert not np.array_equal(layer.kernel.numpy()[0], layer.kernel.numpy()[1])
    assert not layer.bias.numpy().any()


@pytest.mark.parametrize("stacked", [None, 3])
def test_units_of_the_first_layer_bend_all_over_the_data(stacked):
    model = gan_mlp((2,), stacked=stacked, units=[200, 100], **DISCRIMINATOR)
    kernels, biases = ([v.numpy() for v in model.variables if v.path.endswith(name)] for name in ("kernel", "bias"))
    expected = [(math.sqrt(3.0), 1.0), (math.sqrt(6.0 / 200), 1 / math.sqrt(200)), (math.sqrt(6.0 / 100), 0.0)]
    for kernel, bias, (kernel_limit, bias_limit) in zip(kernels, biases, expected, strict=True):
        assert np.abs(kernel).max() == pytest.approx(kernel_limit, rel=0.05)
        assert np.abs(bias).max() == pytest.approx(bias_limit, rel=0.05)
        assert kernel.std() == pytest.approx(kernel_limit / math.sqrt(3), rel=0.1)
    if stacked:
        assert len(np.unique(kernels[0])) == kernels[0].size  # no network starts as another does


def test_a_stacked_network_can_be_saved(tmp_path):
    model = gan_mlp((4, 4, 1), stacked=2, units=[6], **GENERATOR)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    noise = draw((2, 3, 5))
    np.testing.assert_array_equal(again(noise), model(noise))


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (16, 12, 3)])
def test_dcgan_doubles_and_halves_images(shape):
    generator, discriminator = (dcgan(shape, filters=[4, 8], **role) for role in (GENERATOR, DISCRIMINATOR))
    images = generator(100.0 * draw((6, 5)))
    assert images.shape == (6, *shape)
    assert np.abs(images).max() <= 1.0
    assert discriminator(images).shape == (6, 1)
    height, width = shape[0] // 4, shape[1] // 4
    assert discriminator.get_layer("flatten").output.shape[1:] == (height * width * 8,)
    assert generator.get_layer("reshape").output.shape[1:] == (height, width, 8)


@pytest.mark.parametrize(("batch_norm", "expected"), [("both", (2, 1)), ("generator", (2, 0)), ("none", (0, 0))])
def test_batch_norm_is_where_it_is_asked_for_and_never_at_images(batch_norm, expected):
    models = [dcgan((8, 8, 1), filters=[4, 8], batch_norm=batch_norm, **role) for role in (GENERATOR, DISCRIMINATOR)]
    norms = [[x.name for x in model.layers if isinstance(x, keras.layers.BatchNormalization)] for model in models]
    assert tuple(map(len, norms)) == expected
    assert models[0].layers[-2].name == "image"
    for model in models:  # a layer has a bias exactly where no batch norm follows it
        for before, after in zip(model.layers[1:], model.layers[2:], strict=False):
            if hasattr(before, "use_bias"):
                follows = {
                    type(after),
                    type(model.layers[model.layers.index(after) + 1]) if before.name == "project" else None,
                }
                assert before.use_bias != (keras.layers.BatchNormalization in follows), before.name


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (gan_mlp, {}, "model=gan_mlp received, which is a generator and a discriminator. Expected recipe=gan or"),
        (dcgan, {}, "model=dcgan received"),
        (gan_mlp, {"role": "generator", "latent_size": 0}, "latent_size=0 received"),
        (gan_mlp, {**GENERATOR, "units": [0]}, r"Invalid units: \[0\]"),
        (gan_mlp, {**DISCRIMINATOR, "discriminator_units": 3}, "Invalid discriminator_units: 3"),
        (gan_mlp, {**GENERATOR, "activation": "rleu"}, "Unknown activation 'rleu'. Did you mean"),
        (gan_mlp, {**GENERATOR, "discriminator_activation": "x"}, "Unknown activation 'x'"),
        (
            dcgan,
            {**GENERATOR, "stacked": 2},
            "dcgan cannot be stacked: convolutions in groups have no gradient on a CPU",
        ),
        (dcgan, {**GENERATOR, "filters": []}, r"Invalid filters: \[\]"),
        (dcgan, {**GENERATOR, "filters": [1, 2, 3, 4]}, "multiples of 16, for 4 filters"),
        (dcgan, {**GENERATOR, "batch_norm": "bot"}, "Unknown batch_norm 'bot'. Did you mean 'both'"),
        (dcgan, {**GENERATOR, "batch_norm_momentum": 1.0}, "Invalid batch_norm_momentum"),
    ],
)
def test_a_wrong_option_is_one_clear_line(model, options, message):
    with pytest.raises(UserError, match=message) as error:
        model((8, 8, 1), **options)
    assert "\n" not in str(error.value)


def test_dcgan_is_for_images():
    with pytest.raises(UserError, match=r"dcgan got inputs of shape \(2,\). Expected images.* or model=gan_mlp"):
        dcgan((2,), **GENERATOR)
