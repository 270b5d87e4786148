"""A Keras model as a graph of known ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np

from hookline.deploy.arrays import Call, Node
from hookline.deploy.inference.graph import ACTIVATIONS, Op
from hookline.deploy.plain_model import check_single
from hookline.trainer.errors import UserError
from hookline.trainer.graph import AUGMENTING, is_graph, layer_paths, unique_name, walk

FIELDS = {"identity": (), "sign": (), "round": ("bits",), "ternary": ("threshold",)}
"""Arguments of each operation that a layer's `inference_op` may return."""


def described_op(layer: Any) -> dict[str, Any] | None:
    """Return the operation that a layer's `inference_op` returns; None if it has none."""
    describe = getattr(layer, "inference_op", None)
    found = describe() if callable(describe) else None
    if found is None:
        return None
    if found.get("op") not in FIELDS or set(found) != {"op", *FIELDS[found["op"]]}:
        raise ValueError(f"{type(layer).__name__}.inference_op returned {found}. Expected one of {FIELDS}.")
    return dict(found)


def _op(kind: str, fields: Any = None, arrays: Any = None, call: Call | None = None) -> Node:
    """Return an operation of a layer; its name and the names of its values are filled in later."""
    return Node(Op(kind, "", (), "", fields or {}), arrays or {}, call)


class NoOperationError(ValueError):
    """Raised, with the reason, if there is no operation for a layer."""


VANISH = (
    *("Identity", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianDropout"),
    *("GaussianNoise", "AlphaDropout", "ActivityRegularization"),
    *AUGMENTING,
)
"""Layers that do nothing at inference."""
CANONICAL = {"swish": "silu", "hard_swish": "hard_silu"}
FUNCTIONS = {"Relu": "relu", "Relu6": "relu6", "Tanh": "tanh", "HardTanh": "hard_tanh", "Sigmoid": "sigmoid"}
OPERATIONS = {*FUNCTIONS, "Softmax", "Add", "Subtract", "Multiply", "Concatenate"}
"""Operations of `keras.ops` that occur in a functional graph as nodes, by the name of their class."""


def layer_steps(layer: Any) -> list[Node]:
    """Return the operations of a layer at inference, in order; none if it does nothing."""
    described = described_op(layer)
    if described is not None:
        kind = described.pop("op")
        return [] if kind == "identity" else [_op(kind, described, call=layer)]
    name = type(layer).__name__
    is_operation = type(layer).__module__.startswith("keras.src.ops.") and name in OPERATIONS
    is_known = is_operation or type(layer) is getattr(keras.layers, name, None)
    if is_known and name in VANISH:
        return []
    if not is_known or name not in CONVERTERS:
        raise NoOperationError("")
    return CONVERTERS[name](_with(layer, data_format="channels_last"))


def _with(layer: Any, **options: Any) -> Any:
    """Return a layer after checking that its options have the only supported values."""
    for name, value in options.items():
        if (found := getattr(layer, name, value)) != value:
            raise NoOperationError(f"{name}={found}")
    return layer


def activation_step(function: Any) -> list[Node]:
    """Return the operation of an activation function or layer; none for the linear one."""
    if isinstance(function, keras.Layer):
        return layer_steps(function)
    name = getattr(function, "__name__", type(function).__name__)
    name = CANONICAL.get(name, name)
    if name not in ACTIVATIONS or keras.activations.get(name) is not function:
        raise NoOperationError(f"activation {name}")
    return [] if name == "linear" else _activation(name, function)


def _activation(name: str, call: Call, slope: float | None = None) -> list[Node]:
    # A softmax mixes all channels, so nothing can be folded across it.
    apart = None if name in ("softmax", "log_softmax") else call
    return [_op("activation", {"function": name, **({} if slope is None else {"slope": float(slope)})}, call=apart)]


def _relu(layer: Any) -> list[Node]:
    slope, highest = float(layer.negative_slope), layer.max_value
    if layer.threshold or highest not in (None, 6) or (slope and highest):
        options = {"threshold": layer.threshold or None, "max_value": highest, "negative_slope": slope or None}
        raise NoOperationError(", ".join(f"{key}={value:g}" for key, value in options.items() if value is not None))
    if slope:
        return _activation("leaky_relu", layer, slope)
    return _activation("relu" if highest is None else "relu6", layer)


def _prelu(layer: Any) -> list[Node]:
    slopes = _values(layer.alpha)
    if slopes.size != slopes.shape[-1]:
        raise NoOperationError("a slope for each position")
    return [_op("prelu", {}, {"slopes": slopes.reshape(-1)})]


def _weights(layer: Any, kernel: str = "kernel") -> dict[str, np.ndarray]:
    found = {"kernel": _values(getattr(layer, kernel))}
    if layer.use_bias and (bias := _values(layer.bias)).any():
        found["bias"] = bias
    return found


def _values(variable: Any) -> np.ndarray:
    values = np.asarray(keras.ops.convert_to_numpy(variable), np.float32)
    if not np.isfinite(values).all():
        raise NoOperationError(f"{variable.path} holds values that are not finite")
    return values


def _convolution(op: str, layer: Any) -> list[Node]:
    step = _op(op, _window(_with(layer, groups=1)), _weights(layer))
    return [step, *activation_step(layer.activation)]


def _separable(layer: Any) -> list[Node]:
    depthwise = _op("depthwise_conv2d", _window(layer), {"kernel": _values(layer.depthwise_kernel)})
    pointwise = _op("conv2d", {}, _weights(layer, "pointwise_kernel"))
    return [depthwise, pointwise, *activation_step(layer.activation)]


def _window(layer: Any) -> dict[str, Any]:
    return {"strides": _pair(layer.strides), "padding": layer.padding, "dilation": _pair(layer.dilation_rate)}


def _pair(value: Any) -> tuple[int, int]:
    height, width = (value, value) if isinstance(value, int) else value
    return int(height), int(width)


def _batch_norm(layer: Any) -> list[Node]:
    if layer.axis != layer.input_spec.ndim - 1:
        _with(layer, axis=-1)
    for variable in layer.weights:
        _values(variable)
    ops = keras.ops  # in the order in which Keras computes
    scale = ops.rsqrt(ops.convert_to_tensor(layer.moving_variance) + layer.epsilon)
    scale = scale * ops.convert_to_tensor(layer.gamma) if layer.scale else scale
    shift = -ops.convert_to_tensor(layer.moving_mean) * scale
    shift = ops.convert_to_tensor(layer.beta) + shift if layer.center else shift
    arrays = {"scale": np.asarray(scale, np.float32), "shift": np.asarray(shift, np.float32)}
    return [_op("scale_shift", {}, arrays, partial(layer, training=False))]


def _pool(op: str, layer: Any) -> list[Node]:
    return [_op(op, {key: _pair(getattr(layer, key)) for key in ("pool_size", "strides")} | {"padding": layer.padding})]


def _global_pool(op: str, layer: Any) -> list[Node]:
    return [_op(op), *(_reshape(layer) if layer.keepdims else [])]


def _reshape(layer: Any) -> list[Node]:
    return [_op("reshape", {"shape": tuple(int(each) for each in layer.output.shape[1:])})]


def _rescale(layer: Any) -> list[Node]:
    try:
        return [_op("rescale", {"scale": float(layer.scale), "offset": float(layer.offset)}, call=layer)]
    except TypeError as error:
        raise NoOperationError("a scale or an offset for each channel") from error


CONVERTERS: dict[str, Callable[[Any], list[Node]]] = {
    "Dense": lambda layer: [_op("dense", {}, _weights(layer)), *activation_step(layer.activation)],
    "Conv2D": partial(_convolution, "conv2d"),
    "DepthwiseConv2D": partial(_convolution, "depthwise_conv2d"),
    "SeparableConv2D": _separable,
    "BatchNormalization": _batch_norm,
    "Activation": lambda layer: activation_step(layer.activation),
    "ReLU": _relu,
    "LeakyReLU": lambda layer: _activation("leaky_relu", layer, layer.negative_slope),
    "PReLU": _prelu,
    "ELU": lambda layer: _activation("elu", layer, layer.alpha),
    "Softmax": lambda layer: _activation("softmax", _with(layer, axis=-1)),
    **{name: partial(_activation, function) for name, function in FUNCTIONS.items()},
    "MaxPooling2D": partial(_pool, "max_pool2d"),
    "AveragePooling2D": partial(_pool, "average_pool2d"),
    "GlobalMaxPooling2D": partial(_global_pool, "global_max_pool2d"),
    "GlobalAveragePooling2D": partial(_global_pool, "global_average_pool2d"),
    "Reshape": _reshape,
    "ZeroPadding2D": lambda layer: [_op("zero_pad2d", {"padding": tuple(map(_pair, layer.padding))})],
    "UpSampling2D": lambda layer: [_op("upsample2d", {"size": _pair(_with(layer, interpolation="nearest").size)})],
    "Rescaling": _rescale,
    "Concatenate": lambda layer: [_op("concatenate", {"axis": int(layer.axis)})],
    **{name: lambda layer: [_op(type(layer).__name__.lower())] for name in ("Add", "Subtract", "Multiply", "Flatten")},
}


class _Value(str):
    """The name of a tensor in a walk through a graph."""


class _Walk:
    """Collect the operations of a model and of the models nested in it."""

    def __init__(self, model: keras.Model) -> None:
        self.nodes: list[Node] = []
        self.problems: list[str] = []
        self.names: set[str] = set()
        self.paths = {id(layer): path for path, layer in layer_paths(model).items()}
        self.input = self._new_name(str(model.inputs[0].name))
        (output,) = keras.tree.flatten(walk(model, _Value(self.input), self._add))
        self.output = str(output)

    def _add(self, operation: Any, values: list[_Value], constants: list[Any]) -> _Value:
        """Add the operations of a layer, and return the value of its output."""
        path, value = self.paths.get(id(operation), operation.name), values[0]
        try:
            if any(not isinstance(each, bool | None) for each in constants):
                raise NoOperationError("an argument that is not a tensor of the network")
            steps = layer_steps(operation)
        except NoOperationError as problem:
            why = f": {problem}" if str(problem) else ""
            self.problems.append(f"{path} ({type(operation).__name__}{why})")
            return value
        for step in steps:
            value = _Value(self._new_name(path if step is steps[-1] else f"{path}/{step.kind}"))
            op = replace(step.op, name=path, inputs=tuple(map(str, values)), output=str(value))
            self.nodes.append(replace(step, op=op))
            values = [value]
        return value

    def _new_name(self, wanted: str) -> str:
        self.names.add(name := unique_name(wanted, self.names))
        return name


def keras_graph(model: keras.Model) -> tuple[str, list[Node], str]:
    """Return the name of a model's input, its operations at inference, and the name of its output."""
    if not is_graph(model):
        raise UserError(
            f"format=packed needs a network whose graph is known. '{model.name}' is a {type(model).__name__}. "
            "Expected a functional or Sequential model, or format=saved_model."
        )
    check_single(model, "packed")
    if None in model.inputs[0].shape[1:]:
        raise UserError(
            f"'{model.name}' takes inputs of the shape {model.inputs[0].shape[1:]}. Expected a fully known shape for "
            "format=packed, or format=keras."
        )
    found = _Walk(model)
    if found.problems:
        raise UserError(
            f"format=packed has no operation for {', '.join(found.problems)} of '{model.name}'. Expected a network "
            "without them, or format=saved_model."
        )
    return found.input, found.nodes, found.output
