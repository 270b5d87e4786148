"""Integer files for LiteRT, of networks that were trained with fake quantization: no calibration, no float inside."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import keras
import numpy as np
import tensorflow as tf
from tensorflow.lite.python.convert_phase import ConverterError

from hookline.deploy.options import first_line, import_optional
from hookline.deploy.plain_model import is_fake
from hookline.trainer.errors import UserError
from hookline.trainer.graph import fold_shape, folded_norms, graph_calls, is_graph, is_of
from hookline.trainer.ops.averages import STRETCHED
from hookline.trainer.quiet import silent

KERNEL_LAYERS = ("Dense", "Conv1D", "Conv2D", "DepthwiseConv1D", "DepthwiseConv2D", "Conv2DTranspose")
BY_CHANNEL = ("Conv1D", "Conv2D", "DepthwiseConv1D", "DepthwiseConv2D")
AFFINE = ("BatchNormalization", "Rescaling", "Normalization")
RELUS = ("Relu", "Relu6", "HardTanh")
INT8 = 127.0
SAMPLE = 64


def write_integer(model: keras.Model, path: Path) -> str:
    """Write a .tflite file of 8-bit integers with the ranges of a model's fake quantization; return a note.

    Batch norm is folded into the kernels before it. These lie on grids of 2 to 8 bits already, which the file keeps: as
    int8, one step for each output channel of a convolution, one step for each dense layer. A dense layer whose columns
    lie on grids of their own, such as one of -1 and +1 before batch norm, becomes a convolution.

    Args:
        model: functional, of one input and one output, with the weights that are shipped.
        path: to write to.

    Raises:
        UserError: a kernel lies on no grid, or LiteRT cannot compute a layer with integers.
    """
    if fewer := {call.operation.num_bits for call in graph_calls(model) if is_fake(call.operation)} - {8}:
        raise UserError(
            f"hooks.quantization_aware_training.activation_bits={min(fewer)}, but LiteRT holds activations in 8 bits. "
            "Expected a run with 8, or format=keras."
        )
    folded = Folded(model)
    given = model.inputs[0]
    call = tf.function(folded, input_signature=[tf.TensorSpec(given.shape, tf.float32)], autograph=False)
    module = tf.Module()
    module.call = call
    try:
        with silent(), catch_warnings():
            filterwarnings("ignore", "Statistics for quantized inputs were expected")  # fake quantization has them
            converter = tf.lite.TFLiteConverter.from_concrete_functions([call.get_concrete_function()], module)
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.inference_input_type = converter.inference_output_type = tf.int8
            content = converter.convert()
    except (ConverterError, ValueError, RuntimeError) as error:
        raise UserError(
            f"LiteRT cannot hold this network in integers: {first_line(error)}. Expected layers that it has for int8, "
            "or hooks.quantization_aware_training.activation_bits=null."
        ) from error
    path.write_bytes(content)
    return _checked(content, model)


def _checked(content: bytes, model: keras.Model) -> str:
    """Return a note on a file, after checking that it holds integers alone."""
    runtime = import_optional("ai_edge_litert.interpreter", extra="litert", needed_by="format=litert")
    interpreter = runtime.Interpreter(model_content=content)
    if floats := [each["name"] for each in interpreter.get_tensor_details() if each["dtype"] == np.float32]:
        raise UserError(
            f"LiteRT would compute {len(floats)} tensors in float32, the first of them in {_first(model, floats)}. "
            "Expected layers that it has for int8, and activations other than ReLUs as layers of their own."
        )
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    steps = [f"{each['quantization'][0]:.4g}" for each in (given, made)]
    return f"int8: integers alone, trained ranges; a step of the inputs is {steps[0]}, of the outputs {steps[1]}"


def _first(model: keras.Model, names: Sequence[str]) -> str:
    """Return the first layer of a model that tensors of a file are named after, such as conv_1/add;relu_2/Relu."""
    scopes = {re.sub(r"_\d+$", "", part.partition("/")[0]) for name in names for part in name.split(";")}
    found = [each.operation for each in graph_calls(model) if re.sub(r"_\d+$", "", each.operation.name) in scopes]
    return f"'{found[0].name}' ({type(found[0]).__name__})" if found else f"'{names[0]}'"


class Folded:
    """Call a model with batch norm folded and kernels marked as integers, for the converter."""

    def __init__(self, model: keras.Model) -> None:
        """Compute what takes the place of variables."""
        self._model = model
        norms = {id(layer): norm for layer, norm in folded_norms(model)}
        self._offsets: dict[int, np.ndarray] = {}  # what is left of a batch norm, by its identity
        self._values: list[tuple[keras.Variable, Any]] = []
        self._columns: dict[int, tuple[Any, ...]] = {}  # kernels of dense layers with a step for each column
        alone = [each for each in model._flatten_layers() if is_of(each, AFFINE) and each not in norms.values()]
        self._affine = {id(each): _affine(each) for each in alone}
        for layer in (each for each in model._flatten_layers() if is_of(each, KERNEL_LAYERS)):
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
        if steps is None:
            raise UserError(
                f"The kernel of '{layer.name}' is not rounded to 8 bits or fewer, as a file of integers needs. "
                "Expected hooks.quantization_aware_training.layers='*', or activation_bits=null for a float file."
            )
        return flat.astype(np.float32), INT8 * steps, values.shape if flat.ndim == values.ndim else flat.shape

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the model's output."""
        values = [(variable, self._marked(each)) for variable, each in self._values]
        with keras.StatelessScope(values):
            return self._run(self._model, [inputs])[0]

    @staticmethod
    def _marked(value: Any) -> tf.Tensor:
        """Return a value for a variable; that of a kernel under fake quantization that leaves it as it is."""
        if isinstance(value, np.ndarray):
            return tf.constant(value, tf.float32)
        kernel, limits, shape = value
        fake = tf.quantization.fake_quant_with_min_max_vars
        if limits.ndim:
            fake = tf.quantization.fake_quant_with_min_max_vars_per_channel
        return tf.reshape(fake(tf.constant(kernel), -limits, limits, num_bits=8, narrow_range=True), shape)

    def _by_channel(self, inputs: tf.Tensor, factors: np.ndarray, offsets: np.ndarray) -> tf.Tensor:
        """Return inputs * factors + offsets, by what an integer runtime has for it: a depthwise convolution."""
        channels = inputs.shape[-1]
        kernel = np.broadcast_to(factors, [1, 1, 1, channels])
        limits = np.where(kernel == 0.0, 1.0, np.abs(kernel)).astype(np.float32).reshape(-1)
        marked = self._marked((kernel, limits, (1, 1, channels, 1)))
        flat = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, channels])
        made = tf.nn.depthwise_conv2d(flat, marked, [1, 1, 1, 1], "VALID")
        made += _uneven(np.broadcast_to(offsets, [channels]))
        return made if inputs.shape.rank == 4 else tf.reshape(made, [-1, *inputs.shape[1:]])

    def _by_column(self, layer: keras.Layer, inputs: tf.Tensor) -> tf.Tensor:
        """Return what a dense layer gives, by a convolution, which may have a step for each channel: [-1, 1, 1, units].

        What is fused with it follows before the shape is that of the dense layer again.
        """
        kernel = self._marked(self._columns[id(layer)])
        flat = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, inputs.shape[-1]])
        made = tf.nn.conv2d(flat, kernel, [1, 1, 1, 1], "VALID")
        return layer.activation(made + layer.bias if layer.use_bias else made)

    def _run(self, model: keras.Model, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the outputs of a graph, node by node."""
        graph = model._functional if isinstance(model, keras.Sequential) else model
        tensors = {id(each): value for each, value in zip(graph.inputs, inputs, strict=True)}
        for depth in sorted(graph._nodes_by_depth, reverse=True):
            for node in (each for each in graph._nodes_by_depth[depth] if not each.is_input):
                operation = node.operation
                if id(operation) not in self._offsets and not _is_by_entry(operation):
                    tensors |= {id(each): _shaped(tensors[id(each)], each) for each in node.input_tensors}
                given = [tensors[id(each)] for each in node.input_tensors]
                if id(operation) in self._columns:
                    made = [self._by_column(operation, given[0])]
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
                    made = keras.tree.flatten(operation(*args, **kwargs))
                tensors |= {id(each): value for each, value in zip(node.output_tensors, made, strict=True)}
        return [_shaped(tensors[id(each)], each) for each in graph.outputs]


def _is_by_entry(operation: Any) -> bool:
    """Return whether an operation that may be fused with the one before it takes any shape."""
    return is_fake(operation) or is_of(operation, ["ReLU", "Activation"]) or type(operation).__name__ in RELUS


def _shaped(value: tf.Tensor, tensor: Any) -> tf.Tensor:
    """Return a value in the shape of the model's tensor."""
    return value if value.shape.rank == len(tensor.shape) else tf.reshape(value, [-1, *tensor.shape[1:]])


def _uneven(values: np.ndarray) -> np.ndarray:
    """Return a bias [channels] of which one entry is the next float, where all would be equal.

    The converter stores equal values as one, and rounds that with the step of the first channel for all of them.
    """
    if values.size and (values == values.flat[0]).all() and values.flat[0]:
        values = values.copy()
        values.flat[0] = np.nextafter(values.flat[0], np.float32(np.inf))
    return values


def is_by_channel(layer: keras.Layer, inputs: Any) -> bool:
    """Return whether a layer of AFFINE has numbers for each channel, the last axis, or one for all."""
    axis = getattr(layer, "axis", -1)
    return axis in (-1, len(inputs.shape) - 1, (-1,), (len(inputs.shape) - 1,))


def _affine(layer: keras.Layer) -> tuple[np.ndarray, np.ndarray]:
    """Return what a layer multiplies by, and what it adds, float32 [channels] or []; batch norm as it evaluates."""
    if is_of(layer, ["Rescaling"]):
        factors, offsets = np.asarray(layer.scale, np.float64), np.asarray(layer.offset, np.float64)
    elif is_of(layer, ["Normalization"]):
        factors = 1.0 / np.maximum(np.sqrt(np.ravel(layer.variance).astype(np.float64)), keras.backend.epsilon())
        offsets = -np.ravel(layer.mean) * factors
    else:
        factors = 1.0 / np.sqrt(layer.moving_variance.numpy().astype(np.float64) + layer.epsilon)
        if layer.scale:
            factors = factors * layer.gamma.numpy()
        offsets = -layer.moving_mean.numpy() * factors + (layer.beta.numpy() if layer.center else 0.0)
    return factors.astype(np.float32), offsets.astype(np.float32)


def grid_steps(values: np.ndarray, axis: Sequence[int] | None) -> np.ndarray | None:
    """Return the largest steps of which values are up to 127 multiples, but for rounding; None if there are none.

    The largest value need not be the end of its grid: where steps are learned, few values or none reach that.

    Args:
        values: float32, any shape.
        axis: axes over which values share a step, all but the last ones; None for all.

    Returns:
        float32 without these axes; 1 where all values are 0.
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
