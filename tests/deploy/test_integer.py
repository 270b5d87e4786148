"""Integer files: the runtimes compute what quantization-aware training evaluates."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from hookline.deploy.formats import load_litert, load_onnx
from hookline.deploy.integer import grid_steps, write_integer, write_qdq
from hookline.deploy.plain_model import is_fake_quantized, rebuilt
from hookline.deploy.runtime_files import OPSET
from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.quantization.activation_places import stretched
from hookline.hooks.quantization.fake import nudged
from hookline.hooks.quantization_aware_training import QuantizationAwareTraining
from hookline.scripts.export import main
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.state import shipped_weights
from tests.support.command import run_small
from tests.support.hooked import hooked
from tests.support.refusals import assert_refused

layers = keras.layers
EXAMPLES, SIDE = 64, 12


def images() -> tuple[np.ndarray, np.ndarray]:
    """Return images [64, 12, 12, 3] of five brightness levels, and the level of each."""
    generator = np.random.default_rng(0)
    targets = np.arange(EXAMPLES) % 5
    noise = generator.uniform(-0.5, 0.5, (EXAMPLES, SIDE, SIDE, 3))
    return (noise + (targets / 4 - 0.5)[:, None, None, None]).astype(np.float32), targets


def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
    inputs, targets = images()
    rows = (step * 16 + tf.range(16, dtype=tf.int64)) % EXAMPLES
    return {"inputs": tf.gather(tf.constant(inputs), rows), "targets": tf.gather(tf.constant(targets), rows)}


def trained(model: keras.Model, steps: int = 40, first: BnnRounding | None = None, **options: Any) -> keras.Model:
    """Return the plain model that ships after some steps of quantization-aware training, perhaps after another hook."""
    hook = QuantizationAwareTraining(**options)
    hooks: list[GraphHook] = [hook] if first is None else [first, hook]
    network = Network("model", model, keras.optimizers.Adam(0.003))
    loop = hooked(network, *hooks, batch=batch)
    loop.run(0, steps)
    used = shipped_weights(loop.trainer, steps)["model"]
    stripped = network.model
    for each in reversed(hooks):
        stripped = each.strip_model(stripped)
    names = {id(variable): name for name, variable in network.variables.items()}
    made = rebuilt(stripped)
    for variable, own in zip(made.weights, stripped.weights, strict=True):
        variable.assign(used[names[id(own)]])
    return made


def steps_apart(path: Path, model: keras.Model, inputs: np.ndarray) -> tuple[np.ndarray, float]:
    """Return by how many quantization steps a file's outputs differ from a model's, and the share of equal classes."""
    (output,) = Interpreter(model_path=str(path)).get_output_details()
    found, expected = load_litert(path)(inputs), model(inputs).numpy()
    same = (found.argmax(-1) == expected.argmax(-1)).mean()
    return np.abs(np.round((found - expected) / output["quantization"][0])), float(same)


def mobile() -> keras.Model:
    """Return a network with depthwise and transposed convolutions, shared and fixed ranges, and a gate."""
    inputs = x = keras.Input((SIDE, SIDE, 3))
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", dilation_rate=2)(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization(momentum=0.5)(x))
    y = layers.Conv2D(6, 3, 2, padding="same", use_bias=False)(x)
    y = layers.Activation("swish")(layers.BatchNormalization(momentum=0.5)(y))
    gate = layers.Reshape((1, 1, 6))(layers.GlobalAveragePooling2D()(y))
    gate = layers.Conv2D(6, 1, activation="sigmoid")(layers.Conv2D(4, 1, activation="silu")(gate))
    y = layers.Conv2DTranspose(6, 3, 2, padding="same")(layers.Multiply()([y, gate]))
    x = layers.Concatenate()([x, y])
    x = layers.MaxPooling2D(2)(layers.Conv2D(8, 1, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(5)(layers.Activation("tanh")(layers.Dense(12)(layers.Flatten()(x)))))


def dense_net() -> keras.Model:
    """Return a nested network with batch norms before layers, a sum, average pooling, and rescaled inputs."""
    inputs = keras.Input((SIDE, SIDE, 3))
    body = [layers.Conv2D(6, 3, padding="same"), layers.BatchNormalization(momentum=0.5), layers.ReLU()]
    x = keras.Sequential([keras.Input((SIDE, SIDE, 3)), *body])(layers.Rescaling(0.5, 0.1)(inputs))
    y = layers.ReLU()(layers.BatchNormalization(momentum=0.5)(x))
    x = layers.Concatenate()([layers.Add()([x, y]), layers.Conv2D(6, 3, padding="same", dilation_rate=2)(y)])
    x = layers.AveragePooling2D(2)(x)
    x = layers.Rescaling(2.0)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(5)(x))


def sequences() -> keras.Model:
    """Return a network with 1D convolutions, and a dense layer on each row of a sequence."""
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv1D(8, 3, padding="causal", dilation_rate=2)(layers.Reshape((SIDE, 3 * SIDE))(inputs))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.5)(x))
    x = layers.DepthwiseConv1D(3, strides=2, depth_multiplier=2, padding="same")(x)
    x = layers.Dense(6, activation="relu")(layers.Conv1D(8, 3, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)))


def half_binary() -> keras.Model:
    """Return a network with a convolution and dense layers, one of them before batch norm and ReLU."""
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Flatten()(layers.MaxPooling2D(3)(layers.Conv2D(8, 3, activation="hard_tanh")(inputs)))
    x = layers.BatchNormalization(momentum=0.5)(layers.Dense(16, name="hidden_1")(x))
    x = layers.Dense(8, name="hidden_2", use_bias=False)(layers.Activation("hard_tanh")(x))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.5)(x))
    return keras.Model(inputs, layers.Dense(5)(x))


@pytest.mark.full
@pytest.mark.parametrize(
    ("build", "bits", "ranges"),
    [
        (mobile, 8, "average"),
        (dense_net, 4, "learned"),
        (sequences, 8, "average"),
    ],
)
def test_integer_file_matches_evaluated_model(build, bits: int, ranges: str, tmp_path: Path) -> None:
    model, path = trained(build(), weight_bits=bits, ranges=ranges), tmp_path / "a.tflite"
    assert is_fake_quantized(model)
    assert "integers only" in write_integer(model, path)
    inputs, _ = images()
    apart, same = steps_apart(path, model, inputs)
    assert (apart <= 1).mean() >= 0.99
    assert same >= 0.98 or ranges == "learned"  # after 40 steps, learned steps of logits are so coarse that classes tie


@pytest.mark.full
def test_integer_file_stores_binary_kernels_beside_others(tmp_path: Path) -> None:
    """A scale for each column, of the quantizer or of batch norm, needs a convolution instead of a dense layer."""
    binary = BnnRounding(layers="hidden_*", kernel_quantizer="magnitude_aware_sign", input_quantizer=None)
    model, path = trained(half_binary(), first=binary), tmp_path / "a.tflite"
    write_integer(model, path)
    apart, same = steps_apart(path, model, images()[0])
    assert (apart <= 1).mean() >= 0.99
    assert same >= 0.98
    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    details = interpreter.get_tensor_details()
    assert not [each["name"] for each in details if each["dtype"] == np.float32]
    kernels = [interpreter.get_tensor(each["index"]) for each in details if each["shape"].tolist() == [8, 1, 1, 16]]
    assert [np.unique(each).tolist() for each in kernels] == [[-1, 1]]


@pytest.mark.full
def test_run_is_exported_to_integers_with_per_channel_steps(tmp_path: Path) -> None:
    """The command compares the file with the evaluation of the run."""
    directory = tmp_path / "run"
    run_small("int8", "hooks.quantization_aware_training.begin_epoch=1", run_dir=directory)
    assert main([f"run={directory}", "format=litert"]) == 0
    details = Interpreter(model_path=str(directory / "export" / "model.tflite")).get_tensor_details()
    assert not [each["name"] for each in details if each["dtype"] == np.float32]
    scales = [each["quantization_parameters"]["scales"] for each in details if each["dtype"] == np.int8]
    assert sum(len(each) > 1 for each in scales) == 2  # the convolutions


def small(*given: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((SIDE, SIDE, 3)), *given, layers.Flatten(), layers.Dense(5)])


@pytest.mark.full
@pytest.mark.parametrize(
    ("message", "options", "layer"),
    [
        ("activation_bits=6, but LiteRT", {"activation_bits": 6}, layers.Conv2D),
        ("kernel of '.*' is not rounded", {"layers": "conv*"}, layers.Conv2D),
        ("LiteRT .*float32", {"first": BnnRounding(layers="hidden_*")}, None),  # signs of the inputs
        ("would compute .* in 'conv_7'", {}, layers.SeparableConv2D),
    ],
)
def test_network_that_integer_file_cannot_represent_is_refused(message, options, layer, tmp_path: Path) -> None:
    made = half_binary() if layer is None else small(layer(4, 3, name="conv_7"))
    assert_refused(message, write_integer, trained(made, steps=2, **options), tmp_path / "a.tflite")


@pytest.mark.parametrize("norm", [False, True])
def test_bias_equal_in_all_channels_is_kept(norm: bool, tmp_path: Path) -> None:
    """On its own, LiteRT's converter rounds such a bias with the first channel's step in all channels."""
    fake = keras.src.quantizers.quantizers.FakeQuantWithMinMaxVars(num_bits=8)
    given = keras.Input((6, 6, 2))
    convolution = layers.Conv2D(4, 3, use_bias=not norm)
    made = convolution(fake(given, -1.0, 1.0))
    made = layers.BatchNormalization(epsilon=0.0, beta_initializer="ones")(made) if norm else made
    model = keras.Model(given, fake(made, -4.0, 4.0))
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(3, 3, 2, 4)) * [0.05, 0.1, 0.2, 0.3]
    steps = np.abs(kernel).max((0, 1, 2)) / 127
    convolution.kernel.assign(np.round(kernel / steps) * steps)
    if not norm:
        convolution.bias.assign(np.ones(4))
    write_integer(model, tmp_path / "a.tflite")
    inputs = generator.uniform(-1, 1, (20, 6, 6, 2)).astype(np.float32)
    np.testing.assert_allclose(load_litert(tmp_path / "a.tflite")(inputs), model(inputs), atol=1.01 * 8 / 255)


@pytest.mark.parametrize(
    ("dtype", "layer"),
    [
        ("float32", layers.Normalization(mean=[0.3, -0.2], variance=[0.25, 4.0])),
        ("float32", layers.Normalization(mean=[0.3, -0.2], variance=[0.25, 4.0], invert=True)),
        ("uint8", layers.Rescaling(2 / 255, -1.0)),
    ],
)
def test_normalization_and_rescaling_match_keras_layers(dtype: str, layer: Any, tmp_path: Path) -> None:
    fake = keras.src.quantizers.quantizers.FakeQuantWithMinMaxVars(num_bits=8)
    given = keras.Input((2,), dtype=dtype)
    made = layer(given if dtype == "uint8" else fake(given, -1.0, 1.0))
    model = keras.Model(given, fake(made, -4.0, 4.0))
    write_integer(model, tmp_path / "a.tflite")
    drawn = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    inputs = np.round(127.5 * (drawn + 1)).astype(np.uint8) if dtype == "uint8" else drawn
    np.testing.assert_allclose(load_litert(tmp_path / "a.tflite")(inputs), model(inputs), atol=1.01 * 8 / 255)


def test_grid_steps_are_of_coarsest_grid() -> None:
    kernel = np.array([[7.0, 3.0 / 7.0], [-3.0, -1.0], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(grid_steps(kernel, [0]), [1.0, 1.0 / 7.0])
    assert grid_steps(np.random.default_rng(0).normal(size=[40, 3]).astype(np.float32), [0]) is None
    learned = np.random.default_rng(0).integers(-90, 91, [5, 40, 3]) * np.float32([0.1, 0.2, 0.7])  # no 127 among them
    np.testing.assert_allclose(grid_steps(learned, [0, 1]), [0.1, 0.2, 0.7], rtol=1e-5)
    np.testing.assert_allclose(grid_steps(learned[..., :1], None), 0.1, rtol=1e-5)
    np.testing.assert_allclose(grid_steps(np.zeros([3, 2], np.float32), [0]), [1.0, 1.0])


INTEGERS = np.array([[[[-127, 64, 30], [127, 5, -127], [1, 127, 80]]]])  # [1, 1, inputs, channels]
STEPS = np.array([0.01, 0.005, 0.02], np.float32)
LOW, HIGH = nudged(np.array([-1.0, 1.0], np.float32), 8).numpy().tolist()


def network() -> keras.Model:
    """Return a network with average pooling and a convolution."""
    fake = keras.src.quantizers.quantizers.FakeQuantWithMinMaxVars
    inputs = keras.Input((8, 8, 3), name="image")
    x = fake(num_bits=8)(inputs, LOW, HIGH)
    mean = stretched(layers.AveragePooling2D(2)(x), np.array([LOW, HIGH]), 8, "mean")
    y = layers.Conv2D(3, 1, activation="relu", name="conv")(fake(num_bits=8)(mean, LOW, HIGH))
    model = keras.Model(inputs, fake(num_bits=8)(y, 0.0, 2.55))
    model.get_layer("conv").kernel.assign(INTEGERS * STEPS)
    return model


def pixels(examples: int) -> np.ndarray:
    """Return images of 256 brightness levels in [-1, 1], float32 [examples, 8, 8, 3], each halfway between levels."""
    drawn = np.random.default_rng(0).integers(0, 256, (examples, 8, 8, 3))
    return (drawn / 127.5 - 1.0).astype(np.float32)


def test_onnx_outputs_match_network_even_halfway_between_levels(tmp_path: Path) -> None:
    model, inputs = network(), pixels(20)
    note = write_qdq(model, tmp_path / "a.onnx", OPSET)
    assert "trained ranges" in note
    found = load_onnx(tmp_path / "a.onnx")(inputs)
    apart = np.abs(np.round((found - model(inputs).numpy()) / 0.01))
    assert apart.max() <= 1
    assert (apart == 0).mean() > 0.995
    proto = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(proto)
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    kernels = [each for each in proto.graph.node if each.op_type == "DequantizeLinear" and each.input[0] in arrays]
    (kernel,) = (each for each in kernels if arrays[each.input[0]].dtype == np.int8)
    np.testing.assert_allclose(arrays[kernel.input[1]], STEPS, rtol=1e-5)  # int8, with a step for each channel
    np.testing.assert_array_equal(arrays[kernel.input[0]], INTEGERS.transpose(3, 2, 0, 1))
    (given,) = proto.graph.input
    assert [given.name, given.type.tensor_type.elem_type] == ["image", onnx.TensorProto.FLOAT]


def test_activation_that_onnx_lacks_is_refused(tmp_path: Path) -> None:
    fake = keras.src.quantizers.quantizers.FakeQuantWithMinMaxVars(num_bits=8)
    inputs, dense = keras.Input((3,)), layers.Dense(3, name="bounded")
    made = fake(layers.Activation("hard_tanh")(dense(fake(inputs, LOW, HIGH))), LOW, HIGH)
    model = keras.Model(inputs, made)
    dense.kernel.assign(INTEGERS[0, 0] * 0.01)
    message = "does not know TFL_FULLY_CONNECTED of 'bounded.*hard_tanh"
    assert_refused(message, write_qdq, model, tmp_path / "a.onnx", OPSET)
