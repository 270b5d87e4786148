"""Integer files for LiteRT and ONNX from networks trained with fake quantization, without calibration."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings, simplefilter

import keras
import numpy as np
import tensorflow as tf
from tensorflow.lite.python.convert_phase import ConverterError

from hookline.deploy.formats import first_line
from hookline.deploy.plain_model import is_fake
from hookline.trainer.deferred import silent
from hookline.trainer.errors import UserError, import_optional
from hookline.trainer.graph import fold_shape, folded_norms, graph_calls, is_graph, is_of, nodes_in_order
from hookline.trainer.ops.averages import STRETCH, STRETCHED

KERNEL_LAYERS = ("Dense", "Conv1D", "Conv2D", "DepthwiseConv1D", "DepthwiseConv2D", "Conv2DTranspose")
BY_CHANNEL = ("Conv1D", "Conv2D", "DepthwiseConv1D", "DepthwiseConv2D")
ROWS = ("Conv1D", "DepthwiseConv1D")
DILATED = ("Conv2D", "DepthwiseConv2D")
AFFINE = ("BatchNormalization", "Rescaling", "Normalization")
RELUS = ("Relu", "Relu6", "HardTanh")
INT8 = 127.0
SAMPLE = 64


def write_integer(model: keras.Model, path: Path) -> str:
    """Write an 8-bit integer .tflite file with the ranges of a model's fake quantization; return a note.

    Batch norm is folded into the preceding kernels. Their values already lie on grids of 2 to 8 bits, which the file
    keeps as int8, with one quantization step per output channel of a convolution and one per dense layer. A dense layer
    with a different grid per column, such as one of -1 and +1 before batch norm, becomes a convolution.
    """
    if fewer := {call.operation.num_bits for call in graph_calls(model) if is_fake(call.operation)} - {8}:
        raise UserError(
            f"hooks.quantization_aware_training.activation_bits={min(fewer)}, but LiteRT holds activations in 8 bits. "
            "Expected a run with 8, or format=keras."
        )
    folded = Folded(model)
    given = tf.as_dtype(model.inputs[0].dtype)  # integers, such as tokens, stay integers, except bytes of images
    signature = [tf.TensorSpec(model.inputs[0].shape, tf.float32 if given.is_floating or given == tf.uint8 else given)]
    call = tf.function(folded, input_signature=signature, autograph=False)
    module = tf.Module()
    module.call = call
    try:
        with silent(), catch_warnings():
            filterwarnings("ignore", "Statistics for quantized inputs were expected")  # fake quantization provides them
            converter = tf.lite.TFLiteConverter.from_concrete_functions([call.get_concrete_function()], module)
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.inference_input_type = converter.inference_output_type = tf.int8
            content = converter.convert()
    except (ConverterError, TypeError, ValueError, RuntimeError) as error:
        named = ", ".join(unknown_operations(error))
        reason = f"its converter fails at {named}" if named else first_line(error)[:120]
        shape = tuple(model.inputs[0].shape[1:])
        wanted = f"inputs of a known shape, not {shape}" if None in shape else "layers that it supports in int8"
        raise UserError(
            f"LiteRT cannot hold this network in integers: {reason}. Expected {wanted}, or "
            "hooks.quantization_aware_training.activation_bits=null."
        ) from error
    path.write_bytes(content)
    interpreter = _interpreter(content, "format=litert")
    if floats := [each["name"] for each in interpreter.get_tensor_details() if each["dtype"] == np.float32]:
        raise UserError(
            f"LiteRT would compute {len(floats)} tensors in float32, the first of them in {_first(model, floats)}. "
            "Expected layers that it supports in int8, and activations such as ReLU, leaky ReLU, hard swish or GELU."
        )
    (step, _), (made, _) = _ends(interpreter)
    return f"int8: integers only, trained ranges; a step of the inputs is {step:.4g}, of the outputs {made:.4g}"


def unknown_operations(error: Exception) -> list[str]:
    """Return the operations at which LiteRT's converter fails, such as TensorListReserve; its message is very long."""
    return sorted(set(re.findall(r"'tfl?\.(\w+)' op", str(error))))


def _interpreter(content: bytes, needed_by: str) -> Any:
    runtime = import_optional("ai_edge_litert.interpreter", extra="litert", needed_by=needed_by)
    return runtime.Interpreter(model_content=content)


def _ends(interpreter: Any) -> tuple[tuple[float, int], tuple[float, int]]:
    """Return the quantization step and zero point of the input of an integer file, and those of its output."""
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    return given["quantization"], made["quantization"]


def _first(model: keras.Model, names: Sequence[str]) -> str:
    """Return the first layer of a model that occurs in tensor names of a file, such as conv_1/add;relu_2/Relu."""
    parts = {part.partition("/")[0] for name in names for part in name.split(";")}
    scopes = parts | {_unnumbered(part) for part in parts}  # TensorFlow may have added a number
    operations = [each.operation for each in graph_calls(model)]
    found = [each for each in operations if each.name in scopes] or [
        each for each in operations if _unnumbered(each.name) in scopes
    ]
    return f"'{found[0].name}' ({type(found[0]).__name__})" if found else f"'{names[0]}'"


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


class Folded:
    """Call a model with batch norm folded and kernels marked as integers, for the converter."""

    def __init__(self, model: keras.Model) -> None:
        self._model, layers = model, model._flatten_layers()
        norms = {id(layer): norm for layer, norm in folded_norms(model)}
        self._offsets: dict[int, np.ndarray] = {}  # offsets of folded batch norms, by the layer's id
        self._values: list[tuple[keras.Variable, Any]] = []
        self._columns: dict[int, tuple[Any, ...]] = {}  # kernels of layers computed as 2D convolutions
        self._affine = {
            id(each): _affine(each) for each in layers if is_of(each, AFFINE) and each not in norms.values()
        }
        for layer in (each for each in layers if is_of(each, KERNEL_LAYERS)):
            factors = None
            if norm := norms.get(id(layer)):
                factors, offset = _affine(norm)
                self._offsets[id(norm)] = _uneven(offset)
            if layer.use_bias:
                bias = layer.bias.numpy()
                self._values.append((layer.bias, _uneven(bias if factors is None else bias * factors)))
            kernel = self._kernel(layer, factors)
            if kernel[2] == tuple(layer.kernel.shape):
                self._values.append((layer.kernel, kernel))
            else:
                self._columns[id(layer)] = kernel

    @staticmethod
    def _kernel(layer: keras.Layer, factors: np.ndarray | None) -> tuple[Any, ...]:
        values = layer.kernel.numpy()
        if factors is not None:
            values = values * factors.reshape(fold_shape(layer, values))
        by_channel = is_of(layer, BY_CHANNEL)
        flat = values.reshape([*values.shape[:-2], 1, -1]) if "Depthwise" in type(layer).__name__ else values
        steps = grid_steps(flat, list(range(flat.ndim - 1)) if by_channel else None)
        if steps is None and is_of(layer, ["Dense"]):
            flat, steps = flat[None, None], grid_steps(flat, [0])
        if is_of(layer, ROWS):
            flat, values = flat[None], values[None]
        if steps is None:
            raise UserError(
                f"The kernel of '{layer.name}' is not rounded to 8 bits or fewer, as a file of integers needs. "
                "Expected hooks.quantization_aware_training.layers='*', or activation_bits=null for a float file."
            )
        return flat.astype(np.float32), INT8 * steps, values.shape if flat.ndim == values.ndim else flat.shape

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        values = [(variable, self._marked(each)) for variable, each in self._values]
        if self._model.inputs[0].dtype == "uint8":
            inputs = tf.quantization.fake_quant_with_min_max_args(inputs, 0.0, 255.0)  # each byte is a step
        with keras.StatelessScope(values):
            return self._run(self._model, [inputs])[0]

    @staticmethod
    def _marked(value: Any) -> tf.Tensor:
        """Return the value of a variable; a kernel's passes through fake quantization that does not change it."""
        if isinstance(value, np.ndarray):
            return tf.constant(value, tf.float32)
        kernel, limits, shape = value
        fake = tf.quantization.fake_quant_with_min_max_vars
        if limits.ndim:
            fake = tf.quantization.fake_quant_with_min_max_vars_per_channel
        return tf.reshape(fake(tf.constant(kernel), -limits, limits, num_bits=8, narrow_range=True), shape)

    def _by_channel(self, inputs: tf.Tensor, factors: np.ndarray, offsets: np.ndarray) -> tf.Tensor:
        """Compute inputs * factors + offsets as a depthwise convolution, which integer runtimes support."""
        channels = inputs.shape[-1]
        kernel = np.broadcast_to(factors, [1, 1, 1, channels])
        limits = np.where(kernel == 0.0, 1.0, np.abs(kernel)).astype(np.float32).reshape(-1)
        marked = self._marked((kernel, limits, (1, 1, channels, 1)))
        flat = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, channels])
        made = tf.nn.depthwise_conv2d(flat, marked, [1, 1, 1, 1], "VALID")
        made += _uneven(np.broadcast_to(offsets, [channels]))
        return made if inputs.shape.rank == 4 else tf.reshape(made, [-1, *inputs.shape[1:]])

    def _by_column(self, layer: keras.Layer, inputs: tf.Tensor) -> tf.Tensor:
        """Compute a dense layer as a 1 x 1 convolution, which may have a step per channel; the result has rank 4."""
        kernel = self._marked(self._columns[id(layer)])
        flat = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, inputs.shape[-1]])
        made = tf.nn.conv2d(flat, kernel, [1, 1, 1, 1], "VALID")
        return layer.activation(made + layer.bias if layer.use_bias else made)

    def _by_row(self, layer: keras.Layer, inputs: tf.Tensor) -> tf.Tensor:
        """Compute a 1D convolution as a 2D one over a single row; return [batch, 1, time, channels]."""
        kernel = self._marked(self._columns[id(layer)])
        (size,), (stride,), (dilation,) = layer.kernel_size, layer.strides, layer.dilation_rate
        rows, padding = inputs[:, None], layer.padding.upper()
        if padding == "CAUSAL":
            rows, padding = tf.pad(rows, [[0, 0], [0, 0], [dilation * (size - 1), 0], [0, 0]]), "VALID"
        return _convolved(layer, rows, kernel, (stride, stride), padding, (1, dilation))

    def _run(self, model: keras.Model, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        tensors = {id(each): value for each, value in zip(model.inputs, inputs, strict=True)}
        for node in nodes_in_order(model):
            operation = node.operation
            fused = is_fake(operation) or is_of(operation, ["ReLU", "Activation"]) or type(operation).__name__ in RELUS
            if id(operation) not in self._offsets and not fused:  # operations that may be fused take any shape
                tensors |= {id(each): _shaped(tensors[id(each)], each) for each in node.input_tensors}
            given = [tensors[id(each)] for each in node.input_tensors]
            if id(operation) in self._columns:
                compute = self._by_row if is_of(operation, ROWS) else self._by_column
                made = [compute(operation, given[0])]
            elif is_of(operation, ["Dense"]) and given[0].shape.rank > 2:
                made = [operation(tf.reshape(given[0], [-1, given[0].shape[-1]]))]
            elif is_of(operation, DILATED) and max(operation.dilation_rate) > 1:
                kernel, window = tf.convert_to_tensor(operation.kernel), operation.padding.upper()
                made = [_convolved(operation, given[0], kernel, operation.strides, window, operation.dilation_rate)]
            elif id(operation) in self._offsets:
                made = [given[0] + self._offsets[id(operation)]]
            elif operation.name.endswith(STRETCHED):
                made = given
            elif id(operation) in self._affine and is_by_channel(operation, given[0]):
                made = [self._by_channel(given[0], *self._affine[id(operation)])]
            elif is_graph(operation):
                made = self._run(operation, given)
            else:
                args, kwargs = node.arguments.fill_in(tensors)
                kwargs |= {"training": False} if "training" in kwargs else {}  # may be True for augmentation
                made = keras.tree.flatten(operation(*args, **kwargs))
            tensors |= {id(each): value for each, value in zip(node.output_tensors, made, strict=True)}
        return [_shaped(tensors[id(each)], each) for each in model.outputs]


def _convolved(
    layer: keras.Layer,
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    strides: tuple[int, int],
    padding: str,
    dilations: tuple[int, int],
) -> tf.Tensor:
    """Compute a convolution, dilated in one operation: Keras uses several, which the converter leaves in float."""
    if "Depthwise" in type(layer).__name__:
        window = {"strides": [1, *strides, 1], "padding": padding, "dilations": [1, *dilations, 1]}
        made = tf.raw_ops.DepthwiseConv2dNative(input=inputs, filter=kernel, **window)
    else:
        made = tf.nn.conv2d(inputs, kernel, strides, padding, dilations=dilations)
    return layer.activation(made + layer.bias if layer.use_bias else made)


def _shaped(value: tf.Tensor, tensor: Any) -> tf.Tensor:
    """Reshape a value to the shape of the model's tensor."""
    return value if value.shape.rank == len(tensor.shape) else tf.reshape(value, [-1, *tensor.shape[1:]])


def _uneven(values: np.ndarray) -> np.ndarray:
    """Return a bias [channels], with one entry moved to the next float if all are equal.

    The converter would merge equal values into one, rounded with the step of the first channel.
    """
    if values.size and (values == values.flat[0]).all() and values.flat[0]:
        values = values.copy()
        values.flat[0] = np.nextafter(values.flat[0], np.float32(np.inf))
    return values


def is_by_channel(layer: keras.Layer, inputs: Any) -> bool:
    """Return whether a layer of AFFINE has parameters per channel, the last axis, or for all values at once."""
    axis = getattr(layer, "axis", -1)
    return axis in (-1, len(inputs.shape) - 1, (-1,), (len(inputs.shape) - 1,))


def _affine(layer: keras.Layer) -> tuple[np.ndarray, np.ndarray]:
    """Return a layer's factors and offsets, float32 [channels] or []; those of batch norm in inference."""
    if is_of(layer, ["Rescaling"]):
        factors, offsets = np.asarray(layer.scale, np.float64), np.asarray(layer.offset, np.float64)
    elif is_of(layer, ["Normalization"]):
        deviations = np.maximum(np.sqrt(np.ravel(layer.variance).astype(np.float64)), keras.backend.epsilon())
        factors = deviations if layer.invert else 1.0 / deviations
        offsets = np.ravel(layer.mean) if layer.invert else -np.ravel(layer.mean) * factors
    else:
        factors = 1.0 / np.sqrt(layer.moving_variance.numpy().astype(np.float64) + layer.epsilon)
        if layer.scale:
            factors = factors * layer.gamma.numpy()
        offsets = -layer.moving_mean.numpy() * factors + (layer.beta.numpy() if layer.center else 0.0)
    return factors.astype(np.float32), offsets.astype(np.float32)


def grid_steps(values: np.ndarray, axis: Sequence[int] | None) -> np.ndarray | None:
    """Return the largest steps of which values are multiples up to 127, except for rounding; None if there are none.

    Values share a step along `axis`: all axes but the last ones, or None for all. A group of zeros has the step 1. The
    largest value need not be the end of its grid: few values or none reach the end of a learned grid.
    """
    shape = () if axis is None else values.shape[len(axis) :]
    rows = np.abs(values).reshape([-1, math.prod(shape)]).T
    largest = rows.max(axis=1)
    largest = np.where(largest > 0.0, largest, 1.0)
    ratios = rows / largest[:, None]
    found = np.zeros(len(rows))
    for levels in range(1, 128):
        left = np.flatnonzero(found == 0.0)
        for few in (slice(SAMPLE), slice(None)):  # most numbers of levels are ruled out by a few values
            multiples = ratios[left, few] * levels
            left = left[(np.abs(multiples - np.round(multiples)) < 1e-3).all(axis=1)]
        found[left] = levels
    return (largest / found).reshape(shape).astype(np.float32) if found.all() else None


def write_qdq(model: keras.Model, path: Path, opset: int) -> str:
    """Write an .onnx file with QuantizeLinear and DequantizeLinear nodes; return a note.

    It is converted from the integer LiteRT file: kernels are int8, with one quantization step per output channel of a
    convolution, biases int32, and activations int8 with the trained ranges. Inputs and outputs are float32.
    """
    tf2onnx = import_optional("tf2onnx", extra="onnx", needed_by="format=onnx")
    with tempfile.TemporaryDirectory() as folder:
        integers = Path(folder) / "model.tflite"
        write_integer(model, integers)
        given, made = _ends(_interpreter(integers.read_bytes(), "format=onnx"))
        try:
            with silent(), catch_warnings():
                simplefilter("ignore")  # tf2onnx uses an interpreter that TensorFlow deprecates
                proto, _ = tf2onnx.convert.from_tflite(str(integers), opset=opset)
        except (ValueError, RuntimeError, NotImplementedError, KeyError) as error:
            raise UserError(
                f"ONNX cannot hold this network in integers: {first_line(error)}. Expected format=litert, or "
                "hooks.quantization_aware_training.activation_bits=null."
            ) from error
    if left := next((node for node in proto.graph.node if node.op_type.startswith("TFL_")), None):
        raise UserError(
            f"ONNX cannot hold this network in integers: tf2onnx does not know {left.op_type} of "
            f"'{left.name.partition('/')[0]}', perhaps for the activation that is part of it, such as hard_tanh. "
            "Expected ReLUs, or format=litert."
        )
    graph = _Graph(proto.graph)
    graph.round_averages_as_litert()
    if given[0]:
        graph.take_floats(model.inputs[0].name, *given)
    graph.return_floats(*made)
    path.write_bytes(proto.SerializeToString())
    return (
        "int8: QuantizeLinear and DequantizeLinear, trained ranges; ONNX Runtime's own int8 sums saturate on x86 "
        "without VNNI: session.disable_quant_qdq=1 is exact"
    )


class _Graph:
    """Edit an ONNX graph."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._onnx = import_optional("onnx", extra="onnx", needed_by="format=onnx")
        self._place = 0  # index of the next new node

    def take_floats(self, name: str, step: float, zero: int) -> None:
        """Make the graph's input float32, under a given name, and round it as TensorFlow's fake quantization does."""
        (given,), self._place = self._graph.input, 0
        one = np.float32(step)
        lowest, highest = one * np.float32(-128 - zero), one * np.float32(127 - zero)
        steps = self._node("Mul", self._node("Sub", self._node("Clip", name, lowest, highest), lowest), 1.0 / one)
        whole = self._node("Floor", self._node("Add", steps, np.float32(0.5 - (zero + 128))))
        self._node("QuantizeLinear", self._node("Mul", whole, one), one, np.int8(zero), output=given.name)
        given.name = name
        given.type.tensor_type.elem_type = self._onnx.TensorProto.FLOAT

    def return_floats(self, step: float, zero: int) -> None:
        (made,), self._place = self._graph.output, len(self._graph.node)
        made.name = self._node("DequantizeLinear", made.name, np.float32(step), np.int8(zero))
        made.type.tensor_type.elem_type = self._onnx.TensorProto.FLOAT

    def round_averages_as_litert(self) -> None:
        """Stretch averages slightly around the value of integer 0, so that halves round away from it, as in LiteRT."""
        values = {each.name: self._onnx.numpy_helper.to_array(each) for each in self._graph.initializer}
        pooled = {node.output[0] for node in self._graph.node if node.op_type == "AveragePool"}
        for place in reversed(range(len(self._graph.node))):
            taker = self._graph.node[place]
            if taker.op_type == "QuantizeLinear" and taker.input[0] in pooled:
                self._place = place
                step, zero = (values[each] for each in taker.input[1:3])
                stretched = self._node("Mul", taker.input[0], np.float32(1.0 + STRETCH))
                taker.input[0] = self._node("Add", stretched, np.float32(STRETCH * float(step) * float(zero)))

    def _node(self, kind: str, *given: str | np.generic, output: str = "") -> str:
        """Insert a node and return the name of its output; numbers among its inputs become initializers."""
        made = output or f"ends/{len(self._graph.initializer)}_{kind}"
        names = [each if isinstance(each, str) else f"{made}/{place}" for place, each in enumerate(given)]
        for name, value in zip(names, given, strict=True):
            if not isinstance(value, str):
                self._graph.initializer.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        self._graph.node.insert(self._place, self._onnx.helper.make_node(kind, names, [made], name=made))
        self._place += 1
        return made
