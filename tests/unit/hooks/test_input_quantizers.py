"""Input quantizers in real models: where they go, what the layers then see, and what is refused."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.bnn_rounding import BnnRounding
from hooks.quantization.input_quantizer import InputQuantizer
from hooks.quantization.selection import choose_kernel_layers
from trainer.errors import UserError

layers = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(8, 10, 10, 2)).astype(np.float32)
TARGETS = np.random.default_rng(1).integers(0, 3, 8)


def block(x, name: str, **options):
    x = layers.Conv2D(4, 3, padding="same", use_bias=False, name=name)(x)
    x = layers.BatchNormalization(name=f"{name}_norm")(x)
    return layers.Activation(options.get("activation", "hard_tanh"), name=f"{name}_activation")(x)


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((10, 10, 2)),
            layers.Conv2D(4, 3, name="conv_1"),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3, depth_multiplier=2, name="conv_2"),
            layers.BatchNormalization(),
            layers.SeparableConv2D(4, 3, name="conv_3"),
            layers.BatchNormalization(),
            layers.Conv2DTranspose(4, 3, name="conv_4"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(8, name="dense_1"),
            layers.BatchNormalization(),
            layers.Dense(3, name="logits"),
        ],
        name="net",
    )


def functional_with_shared_layer() -> keras.Model:
    inputs = keras.Input((10, 10, 2))
    x = block(inputs, "conv_1")
    shared = layers.Conv2D(4, 3, padding="same", name="shared")
    y = layers.BatchNormalization(name="norm_a")(shared(x))
    z = layers.BatchNormalization(name="norm_b")(shared(y))
    x = layers.Flatten()(layers.Add()([x, z]))
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


def nested(kind: str = "functional") -> keras.Model:
    inner_input = keras.Input((10, 10, 4))
    if kind == "functional":
        inner = keras.Model(inner_input, block(block(inner_input, "conv_a"), "conv_b"), name="body")
    else:
        stack = [inner_input, layers.Conv2D(4, 3, name="conv_a"), layers.BatchNormalization()]
        inner = keras.Sequential(stack, name="body")
    inputs = keras.Input((10, 10, 2))
    x = layers.Flatten()(inner(block(inputs, "conv_1")))
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(4, 3, name="conv")
        self.middle = layers.Conv2D(4, 3, name="middle")
        self.norm = layers.BatchNormalization()
        self.flatten = layers.Flatten()
        self.logits = layers.Dense(3, name="logits")

    def call(self, x, training=False):
        return self.logits(self.flatten(self.norm(self.middle(self.conv(x)), training=training)))


def subclassed() -> keras.Model:
    model = Subclassed()
    model(IMAGES)
    return model


def mobilenet() -> keras.Model:
    return keras.applications.MobileNetV2(
        input_shape=(32, 32, 3), alpha=0.35, weights=None, classes=3, classifier_activation=None
    )


def quantizers(model: keras.Model) -> list[InputQuantizer]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, InputQuantizer)]


def seen_inputs(bench, path_of_quantizer: str, inputs: np.ndarray) -> list[np.ndarray]:
    """Return what an input quantizer put out, once for each of its calls, with the quantized weights in place."""
    seen: list[np.ndarray] = []
    layer = next(each for each in quantizers(bench.network.model) if each.name == path_of_quantizer)
    original = layer.call
    layer.call = lambda value: seen.append(original(value)) or seen[-1]
    try:
        bench.predict(inputs)
    finally:
        del layer.call
    return [value.numpy() for value in seen]


@pytest.mark.parametrize(
    ("make_model", "jit"), [(sequential, False), (functional_with_shared_layer, False), (nested, False), (nested, True)]
)
def test_layers_see_signs_and_use_signs_in_training_and_evaluation(make_bench, make_model, jit: bool):
    bench = make_bench(BnnRounding(), make_model(), keras.optimizers.Adam(0.01), jit=jit)
    binary = bench.hook.projected()
    assert len(quantizers(bench.network.model)) == len(bench.hook.summary()["kernel_entries"]) > 0
    for _ in range(2):
        bench.step(IMAGES, TARGETS)
        for name in binary:
            assert set(np.unique(bench.weights_of_step[name])) == {-1.0, 1.0}, name
    for name in binary:
        assert set(np.unique(bench.weights()[name])) == {-1.0, 1.0}, name
    for layer in quantizers(bench.network.model):
        for value in seen_inputs(bench, layer.name, IMAGES):
            assert set(np.unique(value)) == {-1.0, 1.0}, layer.name


def test_the_forward_pass_really_uses_the_signs(make_bench):
    bench = make_bench(BnnRounding(), sequential())
    received = bench.predict(IMAGES)
    for name, value in bench.weights().items():
        bench.network.trainable_variables[name].assign(value)
    np.testing.assert_allclose(received, bench.network.model(IMAGES).numpy(), rtol=1e-5, atol=1e-5)


def test_separable_depthwise_and_transposed_kernels_have_a_scale_per_output_channel(make_bench):
    bench = make_bench(BnnRounding(kernel_quantizer="magnitude_aware_sign", layers="conv_?"), sequential())
    axes = {"conv_2/kernel": (0, 1), "conv_3/depthwise_kernel": (0, 1), "conv_3/pointwise_kernel": (0, 1, 2)}
    axes = {f"net/{name}": reduced for name, reduced in {**axes, "conv_4/kernel": (0, 1, 3)}.items()}
    for name, reduced in axes.items():
        latent = bench.network.trainable_variables[name].numpy()
        expected = np.where(latent >= 0, 1, -1) * np.abs(latent).mean(axis=reduced, keepdims=True)
        np.testing.assert_allclose(bench.weights()[name], expected, rtol=1e-5)
        channels = latent.size // np.prod([latent.shape[axis] for axis in reduced])
        assert bench.hook.stored_bits(bench.weights())[name] == 1 + 32 * channels / latent.size


def test_both_kernels_of_a_separable_convolution_count_as_one_layer(make_bench):
    bench = make_bench(BnnRounding(layers="conv_3"), sequential(), keras.optimizers.SGD(5.0))
    before = {name: bench.network.trainable_variables[name].numpy() for name in bench.hook.projected()}
    assert len(before) == 2
    measures = bench.step(IMAGES, TARGETS)
    flips = [(before[n] >= 0) != (bench.network.trainable_variables[n].numpy() >= 0) for n in sorted(before)]
    expected = np.concatenate([each.ravel() for each in flips]).mean()
    assert measures["bnn/flip_ratio/conv_3"] == pytest.approx(expected, abs=1e-6)
    assert measures["bnn/flip_ratio/conv_3"] > 0


def test_a_layer_that_is_called_twice_has_one_quantizer_called_twice(make_bench):
    bench = make_bench(BnnRounding(layers="shared"), functional_with_shared_layer())
    assert [layer.name for layer in quantizers(bench.network.model)] == ["shared_input_quantizer"]
    assert len(seen_inputs(bench, "shared_input_quantizer", IMAGES)) == 2


@pytest.mark.parametrize("make_model", [sequential, functional_with_shared_layer, nested, lambda: nested("sequential")])
def test_the_rebuilt_model_has_the_same_variables_and_saves_and_loads(make_model, tmp_path):
    model = make_model()
    before = list(model.variables)
    rebuilt = BnnRounding().rebuild_model(model)
    assert {id(variable) for variable in rebuilt.variables} == {id(variable) for variable in before}
    assert [variable.path for variable in rebuilt.variables] == [variable.path for variable in before]
    rebuilt.summary(print_fn=lambda *_, **__: None)
    rebuilt.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(quantizers(loaded)) == len(quantizers(rebuilt)) > 0
    np.testing.assert_array_equal(loaded(IMAGES), rebuilt(IMAGES))


def test_weights_only_leaves_the_model_as_it_is():
    model = functional_with_shared_layer()
    assert BnnRounding(input_quantizer=None).rebuild_model(model) is model


def test_rebuilding_a_rebuilt_model_adds_nothing():
    hook = BnnRounding()
    rebuilt = hook.rebuild_model(sequential())
    assert hook.rebuild_model(rebuilt) is rebuilt
    with pytest.raises(UserError, match="is quantized by .*ste_sign.* already"):
        BnnRounding(input_quantizer="ste_tern").rebuild_model(rebuilt)


@pytest.mark.parametrize(
    ("options", "binary", "quantized_inputs"),
    [
        ({}, {"conv_2", "conv_3", "conv_4", "dense_1"}, {"conv_2", "conv_3", "conv_4", "dense_1"}),
        ({"layers": "conv_*"}, {"conv_2", "conv_3", "conv_4"}, {"conv_2", "conv_3", "conv_4"}),
        ({"layers": ["conv_1", "dense_1"]}, {"dense_1"}, {"dense_1"}),
        ({"all_binary": True, "layers": ["conv_1", "logits"]}, {"conv_1", "logits"}, {"logits"}),
        ({"all_binary": True, "quantize_first_input": True, "layers": "conv_1"}, {"conv_1"}, {"conv_1"}),
    ],
    ids=["as_it_is", "a_pattern", "the_first", "all_binary", "first_input"],
)
def test_first_and_last_layers_and_the_networks_input_are_kept_unless_asked_for(
    make_bench, options, binary, quantized_inputs
):
    bench = make_bench(BnnRounding(**options), sequential())
    assert {name.split("/")[1] for name in bench.hook.projected()} == binary
    names = {layer.name.removesuffix("_input_quantizer") for layer in quantizers(bench.network.model)}
    assert names == quantized_inputs


def test_first_and_last_are_found_in_the_graph_not_in_the_list_of_layers(make_bench):
    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
    left = layers.Dense(6, name="left")(inputs["a"])
    right = layers.Dense(6, name="right")(inputs["b"])
    middle = layers.Dense(6, name="middle")(layers.Concatenate()([left, right]))
    outputs = [layers.Dense(3, name="head_1")(middle), layers.Dense(3, name="head_2")(middle)]
    model = keras.Model(inputs, outputs)
    bench = make_bench(BnnRounding(), model)
    assert bench.hook.projected() == {"middle/kernel"}
    assert set(bench.hook.summary()["full_precision"]) == {"left", "right", "head_1", "head_2"}


def test_a_last_layer_that_is_called_on_its_own_output_is_still_the_last():
    inputs = keras.Input((6,))
    head = layers.Dense(6, name="head")
    x = layers.Dense(6, name="middle")(layers.Dense(6, name="first")(inputs))
    selection = choose_kernel_layers(keras.Model(inputs, head(head(x))), "*", all_binary=False)
    assert list(selection.layers) == ["middle"]
    assert selection.full_precision == ["first", "head"]


def test_only_first_and_last_layers_chosen_is_an_error():
    with pytest.raises(UserError, match="Nothing to quantize.*all_binary=true"):
        BnnRounding(layers=["conv_1", "logits"]).rebuild_model(sequential())


def test_a_pattern_that_matches_no_kernel_layer_lists_those_there_are():
    with pytest.raises(UserError, match="matches no kernel layer.*Did you mean 'conv_1'.*logits"):
        BnnRounding(layers="cnv_1").rebuild_model(sequential())


def test_a_subclassed_model_takes_weights_only(make_bench):
    with pytest.raises(UserError, match="subclassed model has no graph.*input_quantizer=null"):
        BnnRounding().rebuild_model(subclassed())
    bench = make_bench(BnnRounding(input_quantizer=None), subclassed())
    bench.step(IMAGES, TARGETS)
    (name,) = bench.hook.projected()
    assert name.endswith("middle/kernel")
    assert set(np.unique(bench.weights_of_step[name])) == {-1.0, 1.0}
    assert set(np.unique(bench.weights()[name])) == {-1.0, 1.0}
    assert bench.hook.summary()["kind"] == "BWN"


def test_a_functional_model_with_a_call_of_its_own_counts_as_subclassed():
    class Doubled(keras.Model):
        def call(self, inputs, training=False, mask=None):
            return 2.0 * super().call(inputs, training=training, mask=mask)

    inner = sequential()
    with pytest.raises(UserError, match="subclassed model has no graph"):
        BnnRounding().rebuild_model(Doubled(inner.inputs, inner.outputs))


def test_a_kernel_inside_a_wrapper_takes_weights_only(make_bench):
    def model():
        inputs = keras.Input((5, 4))
        x = layers.Dense(4, name="first")(inputs)
        x = layers.TimeDistributed(layers.Dense(4, name="inner"), name="wrapper")(x)
        return keras.Model(inputs, layers.Dense(3, name="last")(layers.Flatten()(x)))

    with pytest.raises(UserError, match=r"before layer 'wrapper/inner'.*input_quantizer=null"):
        BnnRounding().rebuild_model(model())
    bench = make_bench(BnnRounding(input_quantizer=None), model())
    assert {name.split("/")[-2] for name in bench.hook.projected()} <= {"inner", "wrapper"}
    assert len(bench.hook.projected()) == 1


def feed(transform) -> keras.Model:
    inputs = keras.Input((10, 10, 2))
    x = layers.Conv2D(4, 3, name="conv_1")(inputs)
    x = transform(x)
    x = layers.Flatten()(x) if len(x.shape) > 2 else x
    x = layers.Dense(4, name="dense_1")(x)
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


NEVER_NEGATIVE = {
    "relu": lambda x: layers.Activation("relu", name="rectifier")(x),
    "relu_layer": lambda x: layers.ReLU(name="rectifier")(x),
    "relu6_layer": lambda x: layers.ReLU(6.0, name="rectifier")(x),
    "relu_op": lambda x: keras.ops.relu(x),
    "sigmoid": lambda x: layers.Activation("sigmoid", name="rectifier")(x),
    "softplus": lambda x: layers.Activation("softplus", name="rectifier")(x),
    "exponential": lambda x: layers.Activation("exponential", name="rectifier")(x),
    "softmax": lambda x: layers.Softmax(name="rectifier")(x),
    "activation_of_a_layer": lambda x: layers.Conv2D(4, 1, activation="relu", name="rectifier")(x),
    "pooled": lambda x: layers.AveragePooling2D(2)(layers.MaxPooling2D()(layers.ReLU(name="rectifier")(x))),
    "global": lambda x: layers.GlobalAveragePooling2D()(layers.ReLU(name="rectifier")(x)),
    "dropped": lambda x: layers.SpatialDropout2D(0.1)(layers.Dropout(0.5)(layers.ReLU(name="rectifier")(x))),
    "padded": lambda x: layers.Cropping2D(1)(layers.ZeroPadding2D(2)(layers.ReLU(name="rectifier")(x))),
    "reshaped": lambda x: layers.Permute((2, 1))(layers.Reshape((-1, 4))(layers.ReLU(name="rectifier")(x))),
    "added": lambda x: layers.Add()([layers.ReLU(name="rectifier")(x), layers.ReLU()(x)]),
    "joined": lambda x: layers.Concatenate()([layers.ReLU(name="rectifier")(x), layers.Activation("sigmoid")(x)]),
    "operator": lambda x: layers.ReLU(name="rectifier")(x) + 1.0,
    "nested": lambda x: keras.Sequential([keras.Input(x.shape[1:]), layers.ReLU(name="rectifier")])(x),
    "linear": lambda x: layers.Activation("linear")(layers.ReLU(name="rectifier")(x)),
}
MAY_BE_NEGATIVE = {
    "hard_tanh": lambda x: layers.Activation("hard_tanh")(x),
    "leaky": lambda x: layers.LeakyReLU()(x),
    "leaky_relu": lambda x: layers.ReLU(negative_slope=0.1)(x),
    "normalised": lambda x: layers.BatchNormalization()(layers.ReLU()(x)),
    "added": lambda x: layers.Add()([layers.ReLU()(x), x]),
    "subtracted": lambda x: layers.Subtract()([layers.ReLU()(x), layers.ReLU()(x)]),
    "shifted": lambda x: layers.ReLU()(x) + (-0.5),
    "turned": lambda x: layers.ReLU()(x) * -1.0,
    "joined": lambda x: layers.Concatenate()([layers.ReLU()(x), x]),
}


@pytest.mark.parametrize("quantizer", ["ste_sign", "swish_sign"])
@pytest.mark.parametrize("transform", NEVER_NEGATIVE.values(), ids=NEVER_NEGATIVE)
def test_a_sign_of_what_is_never_negative_is_refused_with_the_reason(transform, quantizer):
    with pytest.raises(UserError, match=r"'dense_1' is never negative, because of '(rectifier|relu\w*)'.*\+1 always"):
        BnnRounding(layers="dense_1", input_quantizer=quantizer).rebuild_model(feed(transform))


@pytest.mark.parametrize("transform", MAY_BE_NEGATIVE.values(), ids=MAY_BE_NEGATIVE)
def test_a_sign_of_what_may_be_negative_is_taken(transform):
    rebuilt = BnnRounding(layers="dense_1").rebuild_model(feed(transform))
    assert len(quantizers(rebuilt)) == 1


@pytest.mark.parametrize(
    "quantizer", [{"name": "dorefa", "k_bit": 2}, {"name": "dorefa", "k_bit": 1}, "ste_tern", None]
)
def test_a_quantizer_that_can_use_what_is_never_negative_is_taken(quantizer):
    BnnRounding(layers="dense_1", input_quantizer=quantizer).rebuild_model(feed(NEVER_NEGATIVE["relu"]))


def test_a_relu_that_feeds_only_full_precision_layers_is_no_error():
    inputs = keras.Input((10, 10, 2))
    x = layers.Dense(3, name="logits")(layers.ReLU()(layers.Flatten()(block(block(inputs, "a"), "b"))))
    BnnRounding().rebuild_model(keras.Model(inputs, x))


@pytest.mark.parametrize(
    ("dropped", "quantizer", "lines"),
    [
        (lambda x: layers.Dropout(0.5, name="drop")(x), "ste_sign", 1),
        (lambda x: layers.BatchNormalization()(layers.Dropout(0.5)(x)), "ste_sign", 0),
        (lambda x: layers.Dropout(0.5)(x), "ste_tern", 0),
    ],
)
def test_dropout_in_front_of_a_sign_is_pointed_at(make_bench, run_of, dropped, quantizer, lines):
    bench = make_bench(BnnRounding(layers="dense_1", input_quantizer=quantizer), feed(dropped))
    found = [line for line in bench.hook.advise(run_of(bench.network, 10)) if "dropout" in line]
    assert len(found) == lines
    if lines:
        assert "the dropout layer 'drop' feeds ste_sign before layer 'dense_1'" in found[0]
        assert "model.dropout" not in found[0]  # this model has no such option
        run = dataclasses.replace(run_of(bench.network, 10), config={"model": {"dropout": 0.5}})
        assert bench.hook.advise(run)[0].endswith(" Set model.dropout=0.")


def test_zero_padding_of_a_quantized_map_is_named(make_bench):
    bench = make_bench(BnnRounding(), functional_with_shared_layer())
    assert bench.hook.summary()["zero_padded"] == ["shared"]
    assert make_bench(BnnRounding(), sequential()).hook.summary()["zero_padded"] == []


def test_a_padding_layer_in_front_of_the_quantizer_pads_with_plus_one(make_bench):
    bench = make_bench(BnnRounding(layers="dense_1"), feed(lambda x: layers.ZeroPadding2D(1)(x)))
    (seen,) = seen_inputs(bench, "dense_1_input_quantizer", IMAGES)
    border = seen.reshape(8, 10, 10, 4)[:, 0]
    np.testing.assert_array_equal(border, np.ones_like(border))


@pytest.mark.parametrize(
    "input_quantizer",
    [
        pytest.param(None, id="weights_only", marks=pytest.mark.long),
        pytest.param({"name": "dorefa", "k_bit": 2}, id="dorefa"),
    ],
)
def test_mobilenet_v2_trains_on_exact_signs(make_bench, input_quantizer):
    images = np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype(np.float32)
    bench = make_bench(BnnRounding(input_quantizer=input_quantizer), mobilenet(), keras.optimizers.Adam(1e-3))
    binary = bench.hook.projected()
    assert len(binary) == 51
    assert len(quantizers(bench.network.model)) == (51 if input_quantizer else 0)
    measures = bench.step(images, np.array([0, 1, 2, 0]))
    assert 0 <= measures["bnn/flip_ratio"] < 0.5
    for name in binary:
        assert set(np.unique(bench.weights_of_step[name])) == {-1.0, 1.0}, name
        assert set(np.unique(bench.weights()[name])) == {-1.0, 1.0}, name
        assert np.abs(bench.network.trainable_variables[name].numpy()).max() <= 1.0


def test_mobilenet_v2_is_refused_with_signs_because_of_its_relu6():
    with pytest.raises(UserError, match="never negative, because of 'Conv1_relu'"):
        BnnRounding().rebuild_model(mobilenet())


def test_mixed_precision_keeps_exact_signs(make_bench):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = sequential()
    finally:
        keras.config.set_dtype_policy("float32")
    bench = make_bench(BnnRounding(), model)
    (seen,) = seen_inputs(bench, "conv_2_input_quantizer", IMAGES)
    assert seen.dtype == tf.bfloat16.as_numpy_dtype
    assert set(np.unique(seen.astype(np.float32))) == {-1.0, 1.0}
    assert set(np.unique(bench.weights()["net/conv_2/kernel"])) == {-1.0, 1.0}


def test_the_bits_of_rounded_inputs_are_told_by_layer(make_bench):
    def told(**options):
        return make_bench(BnnRounding(**options), sequential()).hook.input_bits()

    assert told() == dict.fromkeys(("conv_2", "conv_3", "conv_4", "dense_1"), 1)
    assert told(layers="conv_3", input_quantizer={"name": "dorefa", "k_bit": 2}) == {"conv_3": 2}
    assert told(input_quantizer=None) == {}
    assert "conv_1" not in told(all_binary=True)  # a kernel of signs, on floats
    assert told(all_binary=True, quantize_first_input=True)["conv_1"] == 1
    assert BnnRounding().input_bits() == {}
