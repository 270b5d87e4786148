"""Inference: packed binary networks on NumPy, and the same networks in float32 and in 8 bits, one thread each.

Weights are random. All kernels are binary, and so are all inputs of layers but the network's own: what the hook
bnn_rounding trains with all_binary=true. Each runtime is used in its best way: arrays in, arrays out.
"""

from __future__ import annotations

import importlib
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hookline.deploy.inference.bits import stream_bytes
from hookline.deploy.inference.graph import SIGN, Encoded, Graph, Op, graph_to_json
from hookline.scripts.benchmarks.contender import Contender, Settings, Work
from hookline.trainer.errors import UserError
from hookline.trainer.quiet import silent

if TYPE_CHECKING:
    import keras

MLP, CNN = "mlp", "cnn"
IMAGES, CLASSES, WIDTH, HIDDEN = (28, 28, 1), 10, 4096, 3
CALIBRATION = 64
"""Random images that give the ranges of 8-bit activations."""


class PackedNetwork:
    """What a packed file holds, built operation by operation, each on the value of the one before it."""

    def __init__(self) -> None:
        """Start with the input."""
        self.tensors: dict[str, np.ndarray] = {}
        self._ops: list[Op] = []
        self._random = np.random.default_rng(0)

    def graph(self, name: str) -> Graph:
        """Return the graph so far."""
        return Graph(name, "image", IMAGES, self._ops[-1].output, tuple(self._ops))

    def add(self, op: str, **fields: Any) -> None:
        """Add an operation."""
        number, before = len(self._ops), self._ops[-1].output if self._ops else "image"
        self._ops.append(Op(op, f"{op}_{number}", (before,), f"value_{number}", fields))

    def kernel(self, *shape: int) -> None:
        """Add a layer with a binary kernel."""
        self.add("conv2d" if len(shape) == 4 else "dense", kernel=Encoded(SIGN, self._bits(math.prod(shape)), shape))

    def threshold(self, channels: int) -> None:
        """Add a batch norm before a sign."""
        limits = self._random.integers(-9, 10, channels).astype(np.int16)
        self.add("threshold", thresholds=self._tensor(limits), descending=self._bits(channels))

    def scale_shift(self, channels: int) -> None:
        """Add another batch norm."""
        scale, shift = self._random.normal(size=(2, channels)).astype(np.float32)
        self.add("scale_shift", scale=self._tensor(scale), shift=self._tensor(shift))

    def _bits(self, count: int) -> str:
        return self._tensor(self._random.integers(0, 256, stream_bytes(count, 1), np.uint8))

    def _tensor(self, array: np.ndarray) -> str:
        name = f"array_{len(self.tensors)}"
        self.tensors[name] = array
        return name


def packed_network(name: str) -> PackedNetwork:
    """Return hidden layers of `WIDTH` units, or Larq's tutorial CNN.

    Batch norms before a sign are thresholds; the first one, after float sums, and the last one are a scale and a shift.
    """
    network = PackedNetwork()
    if name == MLP:
        network.add("flatten")
        network.kernel(math.prod(IMAGES), WIDTH)
        network.scale_shift(WIDTH)
        network.add("sign")
        for _ in range(HIDDEN - 1):
            network.kernel(WIDTH, WIDTH)
            network.threshold(WIDTH)
        network.kernel(WIDTH, CLASSES)
    else:
        network.kernel(3, 3, 1, 32)
        network.add("max_pool2d", pool_size=(2, 2), strides=(2, 2))
        network.scale_shift(32)
        network.add("sign")
        network.kernel(3, 3, 32, 64)
        network.add("max_pool2d", pool_size=(2, 2), strides=(2, 2))
        network.threshold(64)
        network.kernel(3, 3, 64, 64)
        network.threshold(64)
        network.add("flatten")
        network.kernel(3 * 3 * 64, 64)
        network.threshold(64)
        network.kernel(64, CLASSES)
    network.scale_shift(CLASSES)
    return network


def keras_network(name: str) -> keras.Model:
    """Return the same architecture in Keras, in float32."""
    from hookline.recipes.models.cnn import larq_tutorial_cnn
    from hookline.recipes.models.mlp import mlp

    return mlp(IMAGES, CLASSES, units=(WIDTH,) * HIDDEN) if name == MLP else larq_tutorial_cnn(IMAGES, CLASSES)


def images(batch_size: int) -> np.ndarray:
    """Return inputs: float32 [batch, height, width, channels] in [-1, 1]."""
    return np.random.default_rng(0).uniform(-1, 1, (batch_size, *IMAGES)).astype(np.float32)


def ours(settings: Settings, *, network: str, kernels: str) -> Work:
    """Return predictions of a packed file, which is written and read first."""
    from hookline.deploy.inference.container import PACKED, write_container
    from hookline.deploy.inference.engine import load_model

    packed = packed_network(network)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / network
        write_container(path, PACKED, graph_to_json(packed.graph(network)), packed.tensors)
        model = load_model(path, kernels)
    inputs = images(settings.batch_size)
    return _repeat(lambda: model(inputs))


def tensorflow(settings: Settings, *, network: str) -> Work:
    """Return predictions of a traced Keras model."""
    import tensorflow as tf

    if settings.threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(settings.threads)
    model, inputs = keras_network(network), images(settings.batch_size)
    call = tf.function(
        lambda given: model(given, training=False),
        input_signature=[tf.TensorSpec(inputs.shape, tf.float32)],
        autograph=False,
    ).get_concrete_function()
    return _repeat(lambda: call(tf.constant(inputs)).numpy())


def onnx_runtime(settings: Settings, *, network: str) -> Work:
    """Return predictions of ONNX Runtime."""
    runtime = _import("onnxruntime")
    _import("tf2onnx")
    import tensorflow as tf

    model, inputs = keras_network(network), images(settings.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        given = tf.TensorSpec(inputs.shape, tf.float32, name=model.inputs[0].name)
        with _quiet():
            model.export(path, format="onnx", verbose=False, input_signature=[given])
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = settings.threads or 0
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (name,) = [each.name for each in session.get_inputs()]
    return _repeat(lambda: session.run(None, {name: inputs}))


def litert(settings: Settings, *, network: str, int8: bool) -> Work:
    """Return predictions of LiteRT (TensorFlow Lite), with XNNPACK as by default."""
    runtime = _import("ai_edge_litert.interpreter")
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(keras_network(network))
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image[None]] for image in images(CALIBRATION))
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


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{name.partition('.')[0]} is not installed.") from error


def _repeat(predict: Callable[[], Any]) -> Work:
    def work(count: int) -> None:
        for _ in range(count):
            predict()

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
        imports="" if name.startswith("hookline") else "tensorflow",
        threads=1,
    )
    for network in (MLP, CNN)
    for name, prepare in WAYS.items()
)
