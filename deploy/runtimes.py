"""Loaders of exported files that need no TensorFlow: for LiteRT, ONNX Runtime and NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hookline.deploy.formats import Predictor, import_optional
from hookline.deploy.inference.engine import load_model
from hookline.trainer.deferred import silent


def load_litert(path: Path) -> Predictor:
    """Return what predicts with a .tflite file of one input and one output, float32 or int8."""
    runtime = import_optional("ai_edge_litert.interpreter", extra="litert", needed_by="format=litert")
    interpreter = runtime.Interpreter(model_path=str(path))
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    size: list[int] = []

    def predict(inputs: np.ndarray) -> np.ndarray:
        if size != [len(inputs)]:
            interpreter.resize_tensor_input(given["index"], inputs.shape)
            with silent():  # a notice of what computes
                interpreter.allocate_tensors()
            size[:] = [len(inputs)]
        interpreter.set_tensor(given["index"], _as_given(np.asarray(inputs, np.float32), given))
        interpreter.invoke()
        return _as_floats(np.array(interpreter.get_tensor(made["index"])), made)

    return predict


def _as_given(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """Return float32 values as a tensor of a LiteRT file holds them.

    Halves are rounded as TensorFlow's fake quantization does, with its order of float32 operations: many of the few
    values of images may lie halfway between two levels.
    """
    if tensor["dtype"] != np.int8:
        return values
    scale, zero = np.float32(tensor["quantization"][0]), tensor["quantization"][1]
    lowest, highest = scale * np.float32(-128 - zero), scale * np.float32(127 - zero)
    steps = (np.clip(values, lowest, highest) - lowest) * (np.float32(1.0) / scale)
    return (np.floor(steps - np.float32(zero + 128) + np.float32(0.5)) + zero).astype(np.int8)


def _as_floats(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    if tensor["dtype"] != np.int8:
        return values
    scale, zero = tensor["quantization"]
    return (values.astype(np.float32) - zero) * np.float32(scale)


def load_onnx(path: Path) -> Predictor:
    """Return what predicts with an .onnx file of one input and one output."""
    runtime = import_optional("onnxruntime", extra="onnx", needed_by="format=onnx")
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # int8 kernels saturate on older CPUs
    session = runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def predict(inputs: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {given.name: np.asarray(inputs, np.float32)})[0])

    return predict


def load_packed(path: Path) -> Predictor:
    """Return what predicts with a packed file."""
    return load_model(path)
