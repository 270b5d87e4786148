"""Inference: packed binary networks on NumPy, and the same networks in float32 and in 8 bits, one thread each.

Weights are random. All kernels are binary, and so are all inputs of layers but the network's own.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hookline.deploy.formats import FORMATS
from hookline.scripts.benchmarks.training_hookline import BINARY, CLASSES, DIGITS, Case, start
from hookline.scripts.benchmarks.worker import Settings, Work, scratch
from hookline.trainer.deferred import silent

if TYPE_CHECKING:
    import keras

UNITS = [4096, 4096, 4096]
"""Of the hidden layers of the MLP."""
MLP, CNN = Case("mlp"), Case("larq_tutorial_cnn")
OVERRIDES = {MLP: ("recipe=bnn", "hooks.bnn_rounding.all_binary=true", f"model.units={UNITS}"), CNN: BINARY}
"""Of runs that train the same networks."""


def keras_network(case: Case) -> keras.Model:
    """Return the same architecture in Keras, in float32."""
    from hookline.recipes.models.cnn import larq_tutorial_cnn
    from hookline.recipes.models.mlp import mlp

    return mlp(DIGITS, CLASSES, units=UNITS) if case is MLP else larq_tutorial_cnn(DIGITS, CLASSES)


def images(batch_size: int | None) -> np.ndarray:
    """Return inputs: float32 [batch, height, width, channels] in [-1, 1]."""
    return np.random.default_rng(0).uniform(-1, 1, (batch_size or 1, *DIGITS)).astype(np.float32)


def ours(settings: Settings, *, case: Case, kernels: str) -> Work:
    """Return predictions of the packed file of a run that has not been trained."""
    from hookline.deploy.inference.engine import load_model
    from hookline.scripts.export import Options

    path = scratch() / "network.packed.safetensors"
    run = start(Settings(), case, OVERRIDES[case])
    FORMATS["packed"].write(run, "model", path, Options(run=""))
    model = load_model(path, kernels)
    inputs = images(settings.batch_size)
    return _repeat(lambda: model(inputs))


def tensorflow(settings: Settings, *, case: Case) -> Work:
    """Return predictions of a traced Keras model."""
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
    """Return predictions of ONNX Runtime."""
    FORMATS["onnx"].check_packages()
    import tensorflow as tf

    runtime = importlib.import_module("onnxruntime")

    model, inputs = keras_network(case), images(settings.batch_size)
    path = scratch() / "network.onnx"
    given = tf.TensorSpec(inputs.shape, tf.float32, name=model.inputs[0].name)
    with _quiet():
        model.export(path, format="onnx", verbose=False, input_signature=[given])
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = settings.threads or 0
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (name,) = [each.name for each in session.get_inputs()]
    return _repeat(lambda: session.run(None, {name: inputs}))


def litert(settings: Settings, *, case: Case, int8: bool) -> Work:
    """Return predictions of LiteRT (TensorFlow Lite), with XNNPACK as by default."""
    FORMATS["litert"].check_packages()
    import tensorflow as tf

    runtime = importlib.import_module("ai_edge_litert.interpreter")

    converter = tf.lite.TFLiteConverter.from_keras_model(keras_network(case))
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image[None]] for image in images(64))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    with _quiet():
        content = converter.convert()
    inputs = images(settings.batch_size)
    interpreter = runtime.Interpreter(model_content=content, num_threads=settings.threads)
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], inputs.shape)
    interpreter.allocate_tensors()
    if int8:
        scale, zero = given["quantization"]
        inputs = (inputs / scale + zero).round().clip(-128, 127).astype("int8")

    def predict() -> None:
        interpreter.set_tensor(given["index"], inputs)
        interpreter.invoke()
        interpreter.get_tensor(made["index"])

    return _repeat(predict)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converters' output off the screen."""
    with silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
