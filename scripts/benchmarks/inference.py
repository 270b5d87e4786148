"""Inference: packed binary networks on NumPy or Numba, and the same in float32 and in 8 bits; by default one thread.

Weights are random. All kernels are binary, and so are the inputs of all layers except the first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hookline.deploy.formats import FORMATS, ExportOptions
from hookline.deploy.inference.engine import load_model
from hookline.scripts.benchmarks.training_hookline import BINARY, CLASSES, DIGITS, Case, start
from hookline.scripts.benchmarks.worker import Settings, Work, scratch

if TYPE_CHECKING:
    import keras

UNITS = [4096, 4096, 4096]
"""Units of the hidden layers of the MLP."""
MLP, CNN = Case("mlp"), Case("larq_tutorial_cnn")
FLOAT: dict[Case, tuple[str, ...]] = {MLP: (f"model.units={UNITS}",), CNN: ()}
BITS = {MLP: ("recipe=bnn", "hooks.bnn_rounding.all_binary=true", *FLOAT[MLP]), CNN: BINARY}
"""Overrides of runs that train the same networks, in float32 and with binary layers."""


def keras_network(case: Case) -> keras.Model:
    """Return the same architecture in Keras, in float32."""
    from hookline.recipes.models.cnn import larq_tutorial_cnn
    from hookline.recipes.models.mlp import mlp

    return mlp(DIGITS, CLASSES, units=UNITS) if case is MLP else larq_tutorial_cnn(DIGITS, CLASSES)


def images(batch_size: int | None) -> np.ndarray:
    """Return inputs: float32 [batch, height, width, channels] in [-1, 1]."""
    return np.random.default_rng(0).uniform(-1, 1, (batch_size or 1, *DIGITS)).astype(np.float32)


def exported(case: Case, form: str, overrides: Sequence[str], *, int8: bool = False) -> Path:
    """Export an untrained run and return the file, after checking that the packages it needs are installed."""
    FORMATS[form].check_packages()
    path = scratch() / f"network{FORMATS[form].suffix}"
    FORMATS[form].write(start(Settings(), case, overrides), "model", path, ExportOptions(int8=int8))
    return path


def ours(settings: Settings, *, case: Case, kernels: str) -> Work:
    """Return work that predicts with a packed file."""
    model, inputs = load_model(exported(case, "packed", BITS[case]), kernels), images(settings.batch_size)
    return _repeat(lambda: model(inputs))


def tensorflow(settings: Settings, *, case: Case) -> Work:
    """Return work that predicts with a traced Keras model."""
    import tensorflow as tf

    if settings.threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(settings.threads)
    model, inputs = keras_network(case), images(settings.batch_size)
    call = tf.function(
        lambda given: model(given, training=False),
        input_signature=[tf.TensorSpec(inputs.shape, tf.float32)],
        autograph=False,
    ).get_concrete_function()
    return _repeat(lambda: call(tf.constant(inputs)).numpy())


def onnx_runtime(settings: Settings, *, case: Case) -> Work:
    """Return work that predicts with ONNX Runtime."""
    path, inputs = exported(case, "onnx", FLOAT[case]), images(settings.batch_size)
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = settings.threads or 0
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (name,) = [each.name for each in session.get_inputs()]
    return _repeat(lambda: session.run(None, {name: inputs}))


def litert(settings: Settings, *, case: Case, int8: bool) -> Work:
    """Return work that predicts with LiteRT (TensorFlow Lite) and its default, XNNPACK."""
    path, inputs = exported(case, "litert", FLOAT[case], int8=int8), images(settings.batch_size)
    runtime = importlib.import_module("ai_edge_litert.interpreter")
    interpreter = runtime.Interpreter(model_path=str(path), num_threads=settings.threads)
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], inputs.shape)
    interpreter.allocate_tensors()

    def predict() -> None:
        interpreter.set_tensor(given["index"], inputs)
        interpreter.invoke()
        interpreter.get_tensor(made["index"])

    return _repeat(predict)


def _repeat(predict: Callable[[], Any]) -> Work:
    def work(count: int) -> None:
        for _ in range(count):
            predict()

    return work


CONTENDERS = {
    "inference": {
        name: {
            "hookline packed, numpy": partial(ours, case=case, kernels="numpy"),
            "hookline packed, numba": partial(ours, case=case, kernels="numba"),
            "tensorflow float32": partial(tensorflow, case=case),
            "onnx runtime float32": partial(onnx_runtime, case=case),
            "litert float32": partial(litert, case=case, int8=False),
            "litert int8": partial(litert, case=case, int8=True),
        }
        for name, case in (("mlp", MLP), ("cnn", CNN))
    }
}
