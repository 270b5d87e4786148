"""The networks of GANs: shapes, ranges, sizes, stacked forms, and what they refuse."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.recipes.models.dcgan import dcgan
from hookline.recipes.models.gan_mlp import gan_mlp
from tests.support.refusals import assert_refused

GENERATOR = {"role": "generator", "latent_size": 5}
DISCRIMINATOR = {"role": "discriminator", "latent_size": 5}


def draw(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(2,), (8, 8, 1)])
@pytest.mark.parametrize("stacked", [None, 3])
def test_dense_networks_map_noise_to_examples_and_examples_to_scores(shape, stacked):
    leading = (None,) if stacked is None else (stacked, None)
    generator = gan_mlp(shape, stacked=stacked, units=[6], **GENERATOR)
    discriminator = gan_mlp(shape, stacked=stacked, units=[6], **DISCRIMINATOR)
    assert generator.input_shape == (*leading, 5)
    assert generator.output_shape == discriminator.input_shape == (*leading, *shape)
    assert discriminator.output_shape == (*leading, 1)
    inputs = draw((7, 5) if stacked is None else (stacked, 7, 5))
    outputs = generator(100.0 * inputs)
    assert (np.abs(outputs).max() <= 1.0) == (len(shape) == 3)  # images alone are held in their range
    assert outputs.shape[-len(shape) :] == shape
    assert discriminator(outputs).shape == (*inputs.shape[:-1], 1)


@pytest.mark.parametrize("shape", [(8, 8, 1), (16, 12, 3)])
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
    followed = {"both": {"project", "conv_transpose_1", "conv_2"}, "generator": {"project", "conv_transpose_1"}}
    layers = [layer for model in models for layer in model.layers if hasattr(layer, "use_bias")]
    without = {layer.name for layer in layers if not layer.use_bias}
    assert without == followed.get(batch_norm, set())  # a bias is where no batch norm follows


def test_a_wrong_option_is_one_clear_line():
    for model, options, message in (
        (gan_mlp, {}, "model=gan_mlp received, .*recipe=gan"),
        (gan_mlp, {**GENERATOR, "activation": "rleu"}, "'rleu'"),
        (dcgan, {**GENERATOR, "stacked": 2}, "dcgan cannot be stacked"),
        (dcgan, {**GENERATOR, "filters": [1, 2, 3, 4]}, "multiples of 16, for 4 filters"),
        (dcgan, {**GENERATOR, "batch_norm": "bot"}, "'both'"),
    ):
        assert_refused(message, model, (8, 8, 1), **options)
    assert_refused("model=gan_mlp", dcgan, (2,), **GENERATOR)
