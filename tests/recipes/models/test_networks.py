"""The networks: their layers, sizes, shapes, ranges and gradients, and what they refuse."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.models.cnn import larq_tutorial_cnn, plain_cnn
from hookline.recipes.models.dcgan import dcgan
from hookline.recipes.models.gan_mlp import gan_mlp
from hookline.recipes.models.lenet import lenet_5, lenet_300_100, lenet_plus_plus
from hookline.recipes.models.mlp import mlp
from hookline.recipes.models.resnet import resnet
from hookline.recipes.models.toy_product import ROUTES, product, product_gradients, toy_product
from hookline.trainer.graph import layer_input, layer_output
from tests.support.refusals import assert_refused


def names(model):
    return [layer.name for layer in model.layers]


def kernel_entries(model):
    return sum(math.prod(v.shape) for v in model.trainable_variables if v.path.endswith("kernel"))


def norms(model):
    return [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]


def test_larq_tutorial_cnn_matches_published_network():
    model = larq_tutorial_cnn((28, 28, 1), 10)
    assert kernel_entries(model) == 93_088
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


@pytest.mark.parametrize(("network", "weights"), [(lenet_300_100, 266_610), (lenet_5, 431_080)])
def test_lenets_have_published_sizes(network, weights):
    model = network((28, 28, 1), 10)
    assert model.count_params() == weights
    assert model.output_shape == (None, 10)
    assert sum("dropout" in name for name in names(network((28, 28, 1), 10, dropout=0.5))) in (1, 2)


def test_mlp_repeats_dense_norm_activation():
    model = mlp((8, 8, 1), 10, units=[32, 16])
    assert names(model) == [
        *("image", "flatten", "dense_1", "batch_norm_1", "activation_1"),
        *("dense_2", "batch_norm_2", "activation_2", "logits", "batch_norm_logits"),
    ]
    assert kernel_entries(model) == 64 * 32 + 32 * 16 + 16 * 10
    assert not any(variable.path.endswith("bias") for variable in model.variables)
    assert names(mlp((4,), 3, units=[])) == ["image", "flatten", "logits", "batch_norm_logits"]


@pytest.mark.parametrize("make", [mlp, larq_tutorial_cnn])
def test_binary_networks_clip_activations_and_end_in_logits(make):
    model = make((28, 28, 1), 10, batch_norm_momentum=0.5, batch_norm_epsilon=0.01)
    assert {(layer.momentum, layer.epsilon) for layer in norms(model)} == {(0.5, 0.01)}
    logits = model(np.random.default_rng(0).normal(size=(64, 28, 28, 1)).astype(np.float32), training=True).numpy()
    np.testing.assert_allclose(logits.mean(axis=0), np.zeros(10), atol=1e-4)
    assert logits.min() < 0
    # Like a straight-through sign, they keep the sign and mask the gradient.
    activations = [layer.activation for layer in model.layers if isinstance(layer, keras.layers.Activation)]
    x = keras.ops.convert_to_tensor([-3.0, -1.0, -0.2, 0.0, 0.5, 1.0, 2.0])
    assert activations
    for activation in activations:
        np.testing.assert_array_equal(activation(x), np.clip(x, -1, 1))


def test_layers_of_lenet_plus_plus_match_paper() -> None:
    model = lenet_plus_plus((28, 28, 1), 10)
    blocks = [[f"{kind}_{b}_{n}" for n in (1, 2) for kind in ("conv", "prelu")] + [f"pool_{b}"] for b in (1, 2, 3)]
    expected = ["image", *blocks[0], *blocks[1], *blocks[2], "flatten", "features", "logits"]
    assert [layer.name for layer in model.layers] == expected
    assert kernel_entries(model) == 25 * (32 + 32**2 + 32 * 64 + 64**2 + 64 * 128 + 128**2) + 3 * 3 * 128 * 2 + 2 * 10
    assert not any(v.path == "logits/bias" for v in model.variables)
    slopes = [v for v in model.variables if "prelu" in v.path]  # one per channel
    assert [tuple(v.shape) for v in slopes] == [(1, 1, c) for c in (32, 32, 64, 64, 128, 128)]
    assert all((v.numpy() == 0.25).all() for v in slopes)


def test_resnet_matches_published_network_of_mlperf_tiny() -> None:
    model = resnet((32, 32, 3), 10)
    assert (model.count_params(), model.output_shape) == (78_666, (None, 10))
    shapes = {model.get_layer(f"block_{block}_add").output.shape[1:] for block in (1, 2, 3)}
    assert shapes == {(32, 32, 16), (16, 16, 32), (8, 8, 64)}
    decayed = [layer.name for layer in model.layers if getattr(layer, "kernel_regularizer", None)]
    assert len(decayed) == 9  # every convolution, including shortcuts
    assert model.layers[-1].activation is keras.activations.linear


def test_resnet_20_has_size_of_paper_and_a_form_for_binary_inputs() -> None:
    nine = [16, 16, 16, 32, 32, 32, 64, 64, 64]
    model = resnet((32, 32, 3), 10, filters=nine)
    assert kernel_entries(model) == 16 * 27 + 9 * (6 * 16**2 + 512 + 5 * 32**2 + 2048 + 5 * 64**2) + 512 + 2048 + 640
    assert sum(len(layer.name) == len("block_1_add") for layer in model.layers if layer.name.endswith("add")) == 9
    form = resnet((32, 32, 3), 10, filters=nine, shortcuts="convolution", activation="hard_tanh")
    assert kernel_entries(form) == kernel_entries(model)
    for layer in (each for each in form.layers if isinstance(each, keras.layers.Add)):
        conv = form.get_layer(layer.name.replace("add", "conv"))
        real, computed = layer.input
        assert computed is layer_output(form, form.get_layer(layer.name.replace("add", "batch_norm")))
        assert real is layer_input(form, conv) or "shortcut" in real._keras_history.operation.name
        assert layer_input(form, conv)._keras_history.operation.activation is keras.activations.hard_tanh
    around = resnet((32, 32, 3), 10, shortcuts="convolution", activation="prelu", norm="around")
    norm = layer_input(around, around.get_layer("block_2_1_conv"))._keras_history.operation
    slopes = layer_input(around, norm)._keras_history.operation.alpha
    assert (norm.name, slopes.shape) == ("block_2_1_input_norm", (1, 1, 16))


def test_invalid_arguments_are_refused():
    image = (28, 28, 1)
    for network, shape, options, message in (
        (larq_tutorial_cnn, (28, 17, 1), {}, "18 pixels a side"),
        (lenet_5, (8, 8, 1), {}, "model=lenet_300_100"),
        (plain_cnn, image, {"first_stride": 3}, "first_stride=3"),
        (resnet, (3, 4, 1), {}, "at least 4"),
        (plain_cnn, (2,), {}, "Use fewer filters"),
    ):
        assert_refused(message, network, shape, 10, **options)


GENERATOR = {"role": "generator", "latent_size": 5}
DISCRIMINATOR = {"role": "discriminator", "latent_size": 5}


def draw(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(2,), (8, 8, 1)])
@pytest.mark.parametrize("stacked", [None, 3])
def test_gan_mlp_maps_noise_to_examples_and_examples_to_scores(shape, stacked):
    leading = (None,) if stacked is None else (stacked, None)
    generator = gan_mlp(shape, stacked=stacked, units=[6], **GENERATOR)
    discriminator = gan_mlp(shape, stacked=stacked, units=[6], **DISCRIMINATOR)
    assert generator.input_shape == (*leading, 5)
    assert generator.output_shape == discriminator.input_shape == (*leading, *shape)
    assert discriminator.output_shape == (*leading, 1)
    inputs = draw((7, 5) if stacked is None else (stacked, 7, 5))
    outputs = generator(100.0 * inputs)
    assert (np.abs(outputs).max() <= 1.0) == (len(shape) == 3)  # only images are kept in their range
    assert outputs.shape[-len(shape) :] == shape
    assert discriminator(outputs).shape == (*inputs.shape[:-1], 1)


@pytest.mark.parametrize("shape", [(8, 8, 1), (16, 12, 3)])
def test_dcgan_doubles_sizes_in_generator_and_halves_in_discriminator(shape):
    generator, discriminator = (dcgan(shape, filters=[4, 8], **role) for role in (GENERATOR, DISCRIMINATOR))
    images = generator(100.0 * draw((6, 5)))
    assert images.shape == (6, *shape)
    assert np.abs(images).max() <= 1.0
    assert discriminator(images).shape == (6, 1)
    height, width = shape[0] // 4, shape[1] // 4
    assert discriminator.get_layer("flatten").output.shape[1:] == (height * width * 8,)
    assert generator.get_layer("reshape").output.shape[1:] == (height, width, 8)


@pytest.mark.parametrize(("batch_norm", "expected"), [("both", (2, 1)), ("generator", (2, 0)), ("none", (0, 0))])
def test_batch_norm_is_only_where_requested_and_never_next_to_images(batch_norm, expected):
    models = [dcgan((8, 8, 1), filters=[4, 8], batch_norm=batch_norm, **role) for role in (GENERATOR, DISCRIMINATOR)]
    norms = [[x.name for x in model.layers if isinstance(x, keras.layers.BatchNormalization)] for model in models]
    assert tuple(map(len, norms)) == expected
    assert models[0].layers[-2].name == "image"
    followed = {"both": {"project", "conv_transpose_1", "conv_2"}, "generator": {"project", "conv_transpose_1"}}
    layers = [layer for model in models for layer in model.layers if hasattr(layer, "use_bias")]
    without = {layer.name for layer in layers if not layer.use_bias}
    assert without == followed.get(batch_norm, set())  # layers have a bias where no batch norm follows


def test_invalid_gan_options_are_refused():
    for model, options, message in (
        (gan_mlp, {}, "model=gan_mlp builds a generator .*recipe=gan"),
        (dcgan, {**GENERATOR, "stacked": 2}, "dcgan cannot be stacked"),
        (dcgan, {**GENERATOR, "filters": [1, 2, 3, 4]}, "multiples of 16, for 4 filters"),
        (dcgan, {**GENERATOR, "batch_norm": "bot"}, "'both'"),
    ):
        assert_refused(message, model, (8, 8, 1), **options)
    assert_refused("model=gan_mlp", dcgan, (2,), **GENERATOR)


B = np.array([[1.0, 2.0], [-0.5, 0.25], [2.0, -1.0]], np.float32)
C, K = np.array([0.06, -0.03], np.float32), np.array([-0.08, 0.11], np.float32)
LABELS = np.array([1, 1, 0])


def chain_rule() -> list[np.ndarray]:
    d, e = B + C, C + K
    exponentials = np.exp(d * e)
    to_a = exponentials / exponentials.sum(axis=1, keepdims=True) - np.eye(2)[LABELS]
    return [e * to_a, ((e + d) * to_a).sum(axis=0), (d * to_a).sum(axis=0)]


@pytest.mark.parametrize("route", ROUTES)
def test_gradients_of_every_route_match_chain_rule(route: str) -> None:
    def traced(*inputs: tf.Tensor) -> list[tf.Tensor]:
        logits = ROUTES[route](*inputs)
        assert logits.shape == B.shape
        return tf.gradients(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits), list(inputs))

    found = tf.function(traced, autograph=False)(*map(tf.constant, (B, C, K)))
    for gradient, expected in zip(found, chain_rule(), strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-6, rtol=0)


def test_toy_product_has_four_weights_reloads_and_refuses_other_data() -> None:
    np.testing.assert_allclose(product(B, C, K), (B + C) * (C + K))
    found = product_gradients(tf.ones([3, 2]), list(map(tf.constant, (B, C, K))))
    np.testing.assert_allclose(found[2], (B + C).sum(axis=0), rtol=1e-6)
    model = toy_product((2,), 2, route="numpy")
    model.set_weights([C, K])
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert model.count_params() == 4
    assert again.get_layer("product").route == "numpy"
    np.testing.assert_allclose(again(B), product(B, C, K), rtol=1e-6)
    assert_refused("data=toy_points", toy_product, (8, 8, 1), 10)
    assert_refused("'numpy'", toy_product, (2,), 2, route="nunpy")
