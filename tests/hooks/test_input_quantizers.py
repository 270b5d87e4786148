"""Input quantizers in real models: where they go, what the layers then see, and what is refused."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.kernels import is_kernel_layer
from hookline.hooks.quantization.layers import InputQuantizer, quantize
from hookline.hooks.quantization.quantizers import parse_quantizer
from hookline.hooks.quantization.selection import Facts, trace_kernel_inputs
from hookline.trainer.graph import layer_paths
from tests.support.refusals import assert_refused

layers = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(8, 10, 10, 2)).astype(np.float32)
TARGETS = np.random.default_rng(1).integers(0, 3, 8)


def block(x, name: str, **options):
    x = layers.Conv2D(4, 3, padding="same", use_bias=False, name=name)(x)
    x = layers.BatchNormalization(name=f"{name}_norm")(x)
    return layers.Activation(options.get("activation", "hard_tanh"), name=f"{name}_activation")(x)


def sequential() -> keras.Model:
    convs = [layers.Conv2D(4, 3, name="conv_1"), layers.DepthwiseConv2D(3, depth_multiplier=2, name="conv_2")]
    convs += [layers.SeparableConv2D(4, 3, name="conv_3"), layers.Conv2DTranspose(4, 3, name="conv_4")]
    body = [each for conv in convs for each in (conv, layers.BatchNormalization())]
    dense = [layers.Flatten(), layers.Dense(8, name="dense_1"), layers.BatchNormalization()]
    return keras.Sequential([keras.Input((10, 10, 2)), *body, *dense, layers.Dense(3, name="logits")], name="net")


def nested_with_shared_layer() -> keras.Model:
    inner_input, inputs = keras.Input((10, 10, 4)), keras.Input((10, 10, 2))
    inner = keras.Model(inner_input, block(inner_input, "conv_a"), name="body")
    shared = layers.Conv2D(4, 3, padding="same", name="shared")
    x = layers.BatchNormalization(name="norm_a")(shared(inner(block(inputs, "conv_1"))))
    x = layers.BatchNormalization(name="norm_b")(shared(x))
    return keras.Model(inputs, layers.Dense(3, name="logits")(layers.Flatten()(x)))


def quantizers(model: keras.Model) -> list[InputQuantizer]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, InputQuantizer)]


def seen_inputs(bench, path_of_quantizer: str, inputs: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of an input quantizer, one per call, with the quantized weights in place."""
    seen: list[np.ndarray] = []
    layer = next(each for each in quantizers(bench.network.model) if each.name == path_of_quantizer)
    original = layer.call
    layer.call = lambda value: seen.append(original(value)) or seen[-1]
    try:
        bench.predict(inputs)
    finally:
        del layer.call
    return [value.numpy() for value in seen]


@pytest.mark.parametrize(("make_model", "jit"), [(sequential, False), (nested_with_shared_layer, True)])
def test_inputs_and_kernels_of_binary_layers_are_signs(make_bench, make_model, jit: bool):
    bench = make_bench(BnnRounding(), make_model(), keras.optimizers.Adam(0.01), jit=jit)
    binary = bench.hook.declare().projected
    assert len(quantizers(bench.network.model)) == len(bench.hook.summary()["kernel_entries"]) > 0
    for training in (True, False):
        bench.step(IMAGES, TARGETS)
        for name in binary:
            assert set(np.unique(bench.weights(training=training)[name])) == {-1.0, 1.0}, name
    for layer in quantizers(bench.network.model):
        seen = seen_inputs(bench, layer.name, IMAGES)
        assert len(seen) == 1 + layer.name.startswith("shared")  # a layer that is called twice has one quantizer
        assert set(np.unique(seen)) == {-1.0, 1.0}, layer.name
    received = bench.predict(IMAGES)
    for name, value in bench.weights().items():
        bench.network.trainable_variables[name].assign(value)
    np.testing.assert_allclose(received, bench.network.model(IMAGES).numpy(), rtol=1e-5, atol=1e-5)


def test_every_kind_of_convolution_has_a_scale_per_output_channel(make_bench):
    bench = make_bench(BnnRounding(kernel_quantizer="magnitude_aware_sign", layers="conv_?"), sequential())
    axes = {"conv_2/kernel": (0, 1), "conv_3/depthwise_kernel": (0, 1), "conv_3/pointwise_kernel": (0, 1, 2)}
    axes = {f"net/{name}": reduced for name, reduced in {**axes, "conv_4/kernel": (0, 1, 3)}.items()}
    for name, reduced in axes.items():
        latent = bench.network.trainable_variables[name].numpy()
        expected = np.where(latent >= 0, 1, -1) * np.abs(latent).mean(axis=reduced, keepdims=True)
        np.testing.assert_allclose(bench.weights()[name], expected, rtol=1e-5)
        channels = latent.size // np.prod([latent.shape[axis] for axis in reduced])
        assert bench.hook.shipped_bits(bench.weights()).stored[name] == 1 + 32 * channels / latent.size


def test_rebuilt_model_keeps_its_variables_and_can_be_saved_and_loaded(tmp_path):
    model = nested_with_shared_layer()
    before = list(model.variables)
    (inner,) = quantizers(BnnRounding(layers="body/*").rebuild_model(model))  # only of a layer inside the inner model
    assert inner.name == "conv_a_input_quantizer"
    rebuilt = BnnRounding().rebuild_model(model)
    assert {id(variable) for variable in rebuilt.variables} == {id(variable) for variable in before}
    assert [variable.path for variable in rebuilt.variables] == [variable.path for variable in before]
    assert BnnRounding().rebuild_model(rebuilt) is rebuilt
    rebuilt.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(quantizers(loaded)) == len(quantizers(rebuilt)) > 0
    np.testing.assert_array_equal(loaded(IMAGES), rebuilt(IMAGES))


@pytest.mark.parametrize(
    ("options", "binary", "quantized_inputs"),
    [
        ({}, {"conv_2", "conv_3", "conv_4", "dense_1"}, {"conv_2", "conv_3", "conv_4", "dense_1"}),
        ({"layers": ["conv_1", "dense_1"]}, {"dense_1"}, {"dense_1"}),
        ({"all_binary": True, "layers": ["conv_1", "logits"]}, {"conv_1", "logits"}, {"logits"}),
        ({"all_binary": True, "quantize_first_input": True, "layers": "conv_1"}, {"conv_1"}, {"conv_1"}),
    ],
    ids=["as_it_is", "the_first", "all_binary", "first_input"],
)
def test_first_and_last_layers_stay_float_unless_requested(make_bench, options, binary, quantized_inputs):
    bench = make_bench(BnnRounding(**options), sequential())
    assert {name.split("/")[1] for name in bench.hook.declare().projected} == binary
    names = {layer.name.removesuffix("_input_quantizer") for layer in quantizers(bench.network.model)}
    assert names == quantized_inputs
    assert bench.hook.shipped_bits(bench.weights()).inputs == dict.fromkeys(quantized_inputs, 1)


def test_first_and_last_layers_are_found_by_graph_not_by_list_order(make_bench):
    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
    left = layers.Dense(6, name="left")(inputs["a"])
    right = layers.Dense(6, name="right")(inputs["b"])
    middle = layers.Dense(6, name="middle")(layers.Concatenate()([left, right]))
    outputs = [layers.Dense(3, name="head_1")(middle), layers.Dense(3, name="head_2")(middle)]
    model = keras.Model(inputs, outputs)
    bench = make_bench(BnnRounding(), model)
    assert bench.hook.declare().projected == {"middle/kernel"}
    assert set(bench.hook.summary()["full_precision"]) == {"left", "right", "head_1", "head_2"}


def feed(transform) -> keras.Model:
    inputs = keras.Input((10, 10, 2))
    x = layers.Conv2D(4, 3, name="conv_1")(inputs)
    x = transform(x)
    x = layers.Flatten()(x) if len(x.shape) > 2 else x
    x = layers.Dense(4, name="dense_1")(x)
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


def test_sign_of_nonnegative_inputs_is_refused():
    relu = feed(lambda x: layers.AveragePooling2D(2)(layers.ReLU(name="rectifier")(x)))
    for quantizer in ("ste_sign", "swish_sign"):
        hook = BnnRounding(layers="dense_1", input_quantizer=quantizer)
        assert_refused("rectifier", hook.rebuild_model, relu)
    for quantizer in ({"name": "dorefa", "k_bit": 2}, "ste_tern", None):
        BnnRounding(layers="dense_1", input_quantizer=quantizer).rebuild_model(relu)
    shifted = feed(lambda x: layers.ReLU()(x) + (-0.5))
    assert len(quantizers(BnnRounding(layers="dense_1").rebuild_model(shifted))) == 1
    inner = [layers.TimeDistributed(layers.Dense(4, name="inner")), layers.Flatten(), layers.Dense(3)]
    wrapped = keras.Sequential([keras.Input((5, 4)), layers.Dense(4), *inner])
    for options, model, word in (
        ({"layers": ["conv_1", "logits"]}, sequential(), "all_binary=true"),
        ({"layers": "cnv_1"}, sequential(), "conv_1"),
        ({}, wrapped, "inner.*input_quantizer=null"),
    ):
        assert_refused(word, BnnRounding(**options).rebuild_model, model)


# Input quantizers as Keras operations: the same outputs without a custom layer.

QUANTIZERS = [
    *("ste_sign", "binary_tanh", {"name": "swish_sign", "beta": 3.0}, {"name": "ste_tern", "threshold": 0.3}),
    {"name": "ste_tern", "ternary_weight_networks": True, "clip_value": 2.0},
    *({"name": "dorefa", "k_bit": bits} for bits in (1, 3)),
]
EDGES = np.array([-2, -1, -0.5, -0.3, -0.05, -1e-9, -0.0, 0.0, 1e-9, 0.05, 1 / 6, 0.3, 0.5, 5 / 6, 1, 2], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keras_operations_match_the_quantizer_bit_for_bit(dtype: str):
    noise = np.random.default_rng(0).normal(size=500)
    for spec in QUANTIZERS:
        quantizer = parse_quantizer(spec, role="input", option="quantizer")
        odd = [] if "ternary_weight_networks" in spec else [np.nan]  # whose threshold is a mean
        inputs = keras.ops.cast(np.concatenate([EDGES, odd, noise]).astype(np.float32), dtype)
        expected, found = quantizer(inputs), quantize(inputs, quantizer=quantizer)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(keras.ops.cast(found, "float32"), keras.ops.cast(expected, "float32"))


# What is claimed about the tensors of a graph, checked against their values.

ops = keras.ops
RNG = np.random.default_rng(0)
MAPS = RNG.normal(size=(2, 6, 6, 2)).astype(np.float32)
ROWS = RNG.normal(size=(2, 6, 2)).astype(np.float32)
FLAT = RNG.normal(size=(2, 6)).astype(np.float32)

Build = Callable[[Any], Any]


def relu(x: Any) -> Any:
    return layers.ReLU()(x)


def facts_behind(build: Build, values: np.ndarray) -> tuple[Facts, np.ndarray]:
    """Return what is claimed about the output of `build`, and its values."""
    x = keras.Input(values.shape[1:])
    y = build(x)
    kernel = layers.Dense(2, name="kernel")
    model = keras.Model(x, kernel(y))
    paths = {path: layer for path, layer in layer_paths(model).items() if is_kernel_layer(layer)}
    (facts,) = trace_kernel_inputs(model, paths).calls["kernel"]
    return facts, np.asarray(keras.Model(x, y)(values))


NON_NEGATIVE: dict[str, tuple[Build, np.ndarray]] = {
    **{
        name: (lambda x, name=name: getattr(ops, name)(x), FLAT)
        for name in ("relu6", "hard_sigmoid", "softplus", "exp", "softmax", "absolute", "square")
    },
    "an activation by name": (lambda x: layers.Activation("sigmoid")(x), FLAT),
    "a layer as an activation": (lambda x: layers.Dense(6, activation=layers.ReLU())(x), FLAT),
    "upsampled": (lambda x: layers.UpSampling2D(2, interpolation="bilinear")(relu(x)), MAPS),
    "pooled": (lambda x: layers.GlobalMaxPooling1D()(layers.AveragePooling1D(2)(relu(x))), ROWS),
    "merged": (lambda x: layers.Average()([layers.Maximum()([relu(x), relu(x)]), relu(x)]), FLAT),
}
UNKNOWN: dict[str, tuple[Build, np.ndarray]] = {
    "curves through it": (lambda x: layers.UpSampling2D(2, interpolation="bicubic")(relu(x)), MAPS),
    "leaky by a layer": (lambda x: layers.Dense(6, activation=layers.ReLU(negative_slope=0.5))(x), FLAT),
    "one of three": (lambda x: layers.Add()([relu(x), x, relu(x)]), FLAT),
    "a function of somebody's own": (lambda x: layers.Lambda(lambda y: y - 1.0)(relu(x)), FLAT),
}


def test_nonnegative_tensors_are_claimed_and_no_others() -> None:
    for name, case in NON_NEGATIVE.items():
        facts, values = facts_behind(*case)
        assert facts.non_negative, name
        assert values.min() >= 0.0, name
    for name, case in UNKNOWN.items():
        facts, values = facts_behind(*case)
        assert not facts.non_negative, name
        assert values.min() < 0.0, name  # so the claim would be wrong
