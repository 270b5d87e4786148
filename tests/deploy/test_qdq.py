"""Networks of integers as QDQ files: ONNX Runtime computes what was evaluated."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import onnx
import pytest

from hookline.deploy.qdq import write_qdq
from hookline.deploy.runtime_files import OPSET
from hookline.deploy.runtimes import load_onnx
from hookline.hooks.quantization.activation_places import stretched
from hookline.hooks.quantization.fake import nudged
from hookline.trainer.errors import UserError

layers = keras.layers
INTEGERS = np.array([[[[-127, 64, 30], [127, 5, -127], [1, 127, 80]]]])  # [1, 1, inputs, channels]
STEPS = np.array([0.01, 0.005, 0.02], np.float32)
LOW, HIGH = nudged(np.array([-1.0, 1.0], np.float32), 8).numpy().tolist()
STEP = (HIGH - LOW) / 255.0


def network() -> keras.Model:
    """Return a network of a convolution and of the means of what goes in."""
    fake = keras.src.quantizers.quantizers.FakeQuantWithMinMaxVars
    inputs = keras.Input((8, 8, 3), name="image")
    x = fake(num_bits=8)(inputs, LOW, HIGH)
    mean = stretched(layers.AveragePooling2D(2)(x), np.array([LOW, HIGH]), 8, "mean")
    y = layers.Conv2D(3, 1, activation="relu", name="conv")(fake(num_bits=8)(mean, LOW, HIGH))
    model = keras.Model(inputs, fake(num_bits=8)(y, 0.0, 2.55))
    model.get_layer("conv").kernel.assign(INTEGERS * STEPS)
    return model


def pixels(examples: int) -> np.ndarray:
    """Return images of 256 brightnesses in [-1, 1], float32 [examples, 8, 8, 3]: each lies halfway between levels."""
    drawn = np.random.default_rng(0).integers(0, 256, (examples, 8, 8, 3))
    return (drawn / 127.5 - 1.0).astype(np.float32)


def test_outputs_are_those_of_the_network_halves_too(tmp_path: Path) -> None:
    model, inputs = network(), pixels(20)
    note = write_qdq(model, tmp_path / "a.onnx", OPSET)
    assert "trained ranges" in note
    found = load_onnx(tmp_path / "a.onnx")(inputs)
    apart = np.abs(np.round((found - model(inputs).numpy()) / 0.01))
    assert apart.max() <= 1
    assert (apart == 0).mean() > 0.995


def test_kernels_are_int8_with_a_step_for_each_channel(tmp_path: Path) -> None:
    write_qdq(network(), tmp_path / "a.onnx", OPSET)
    graph = onnx.load(tmp_path / "a.onnx").graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    kernels = [each for each in graph.node if each.op_type == "DequantizeLinear" and each.input[0] in arrays]
    (kernel,) = (each for each in kernels if arrays[each.input[0]].dtype == np.int8)
    np.testing.assert_allclose(arrays[kernel.input[1]], STEPS, rtol=1e-5)
    np.testing.assert_array_equal(arrays[kernel.input[0]], INTEGERS.transpose(3, 2, 0, 1))
    assert [graph.input[0].name, graph.input[0].type.tensor_type.elem_type] == ["image", onnx.TensorProto.FLOAT]
    onnx.checker.check_model(onnx.load(tmp_path / "a.onnx"))


def test_an_activation_that_onnx_lacks_is_one_line(tmp_path: Path) -> None:
    fake = keras.src.quantizers.quantizers.FakeQuantWithMinMaxVars(num_bits=8)
    inputs, dense = keras.Input((3,)), layers.Dense(3, name="bounded")
    made = fake(layers.Activation("hard_tanh")(dense(fake(inputs, LOW, HIGH))), LOW, HIGH)
    model = keras.Model(inputs, made)
    dense.kernel.assign(INTEGERS[0, 0] * 0.01)
    with pytest.raises(UserError, match=r"does not know TFL_FULLY_CONNECTED of 'bounded.*hard_tanh") as caught:
        write_qdq(model, tmp_path / "a.onnx", OPSET)
    assert "\n" not in str(caught.value)
