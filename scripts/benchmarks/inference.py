"""Inference: packed binary networks on NumPy, and the same networks in float32 and in 8 bits, one thread each.

Each runtime is used in its best way: arrays in, arrays out.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import TENSORFLOW, Contender, Settings, Work
from hookline.trainer.errors import UserError
from hookline.trainer.quiet import silent

if TYPE_CHECKING:
    pass

CALIBRATION = 64
"""Random images that give the ranges of 8-bit activations."""


def ours(settings: Settings, *, network: str, kernels: str) -> Work:
    """Return predictions of a packed file, which is written and read first."""
    from hookline.deploy.inference.container import PACKED, container_sizes, write_container
    from hookline.deploy.inference.engine import load_model
    from hookline.deploy.inference.graph import graph_to_json
    from hookline.scripts.benchmarks.inference_networks import images, packed_network

    packed = packed_network(network)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / network
        write_container(path, PACKED, graph_to_json(packed.graph(network)), packed.tensors)
        model, size = load_model(path, kernels), sum(container_sizes(path))
    inputs = images(settings.batch_size)
    return _repeat(lambda: model(inputs), size)


def tensorflow(settings: Settings, *, network: str) -> Work:
    """Return predictions of a traced Keras model."""
    import tensorflow as tf

    from hookline.scripts.benchmarks.inference_networks import images, keras_network

    if settings.threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(settings.threads)
    model, inputs = keras_network(network), images(settings.batch_size)
    call = tf.function(
        lambda given: model(given, training=False),
        input_signature=[tf.TensorSpec(inputs.shape, tf.float32)],
        autograph=False,
    ).get_concrete_function()
    return _repeat(lambda: call(tf.constant(inputs)).numpy(), model.count_params() * 4)


def onnx_runtime(settings: Settings, *, network: str) -> Work:
    """Return predictions of ONNX Runtime."""
    runtime = _import("onnxruntime")
    _import("tf2onnx")
    import tensorflow as tf

    from hookline.scripts.benchmarks.inference_networks import images, keras_network

    model, inputs = keras_network(network), images(settings.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        given = tf.TensorSpec(inputs.shape, tf.float32, name=model.inputs[0].name)
        with _quiet():
            model.export(path, format="onnx", verbose=False, input_signature=[given])
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = settings.threads or 0
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        size = path.stat().st_size
    (name,) = [each.name for each in session.get_inputs()]
    return _repeat(lambda: session.run(None, {name: inputs}), size)


def litert(settings: Settings, *, network: str, int8: bool) -> Work:
    """Return predictions of LiteRT (TensorFlow Lite), with XNNPACK as by default."""
    runtime = _import("ai_edge_litert.interpreter")
    from hookline.scripts.benchmarks.inference_networks import images, keras_network

    inputs = images(settings.batch_size)
    content = _flatbuffer(keras_network(network), int8=int8)
    interpreter = runtime.Interpreter(model_content=content, num_threads=settings.threads)
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], inputs.shape)
    interpreter.allocate_tensors()
    if int8:
        scale, zero = given["quantization"]
        inputs = (inputs / scale + zero).round().clip(-128, 127).astype("int8")

    def predict() -> Any:
        interpreter.set_tensor(given["index"], inputs)
        interpreter.invoke()
        return interpreter.get_tensor(made["index"])

    return _repeat(predict, len(content))


def _flatbuffer(model: Any, *, int8: bool) -> bytes:
    import tensorflow as tf

    from hookline.scripts.benchmarks.inference_networks import images

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image[None]] for image in images(CALIBRATION))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    with _quiet():
        content: bytes = converter.convert()
    return content


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converters' output off the screen."""
    with silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{name.partition('.')[0]} is not installed.") from error


def _repeat(predict: Callable[[], Any], size: int) -> Work:
    def work(count: int) -> None:
        for _ in range(count):
            predict()

    work.facts = {"bytes": size}  # type: ignore[attr-defined]
    return work


WAYS: dict[str, Callable[..., Work]] = {
    "hookline packed, numpy": partial(ours, kernels="numpy"),
    "hookline packed, numba": partial(ours, kernels="numba"),
    "tensorflow float32": tensorflow,
    "onnx runtime float32": onnx_runtime,
    "litert float32": partial(litert, int8=False),
    "litert int8": partial(litert, int8=True),
}
CONTENDERS = tuple(
    Contender(
        "inference",
        network,
        name,
        partial(prepare, network=network),
        baseline=prepare is tensorflow,
        batch_size=1,
        imports="" if name.startswith("hookline") else TENSORFLOW,
        threads=1,
    )
    for network in ("mlp", "cnn")
    for name, prepare in WAYS.items()
)
