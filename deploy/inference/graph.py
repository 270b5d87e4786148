"""The checked graph of a file, and the values and arrays from which the steps of its operations are built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hookline.deploy.inference.bits import Backend, from_order, stream_bytes, unpack_last, unpack_stream
from hookline.deploy.inference.container import require
from hookline.trainer.errors import UserError

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, "Self-Normalizing Neural Networks", arXiv 1706.02515."""
Activation = Callable[[np.ndarray], np.ndarray]


def find_activation(function: str, slope: float | None) -> Activation:
    """Return an activation: float32 [...] to float32 [...]."""
    sloped = {"leaky_relu": _leaky_relu, "elu": _elu}
    return ACTIVATIONS[function] if slope is None or function not in sloped else partial(sloped[function], slope=slope)


def _leaky_relu(x: np.ndarray, slope: float = 0.2) -> np.ndarray:
    return np.where(x < 0, slope * x, x)


def _elu(x: np.ndarray, slope: float = 1.0) -> np.ndarray:
    return np.where(x < 0, slope * np.expm1(np.minimum(x, 0.0)), x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-_softplus(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.float32(0))


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


ACTIVATIONS: dict[str, Activation] = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": lambda x: SELU_SCALE * _elu(x, SELU_ALPHA),
    "tanh": np.tanh,
    "hard_tanh": lambda x: np.clip(x, -1.0, 1.0),
    "sigmoid": _sigmoid,
    "hard_sigmoid": _hard_sigmoid,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softplus": _softplus,
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "exponential": np.exp,
    "silu": lambda x: x * _sigmoid(x),
    "hard_silu": lambda x: x * _hard_sigmoid(x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
}


SIGN, CODEBOOK = "sign", "codebook"


@dataclass(frozen=True)
class Encoded:
    """Describe how an array of numbers is stored in a file.

    "sign": scale * (-1 or +1), one bit each, 1 for +1. "codebook": values[index], `bits` bits each. Bits and indices
    form one stream, lowest bit first, zero-padded at the end, in the order of moveaxis(array, -1, 0).ravel(): one
    output channel after the other. "float32", "float16": the array itself.
    """

    encoding: str
    tensor: str  # name of the array that holds it: a uint8 stream, or float32 or float16 values of `shape`
    # As in Keras: dense [inputs, units], convolution [height, width, inputs, filters], bias [units]. Unlike Keras:
    # depthwise convolution [height, width, 1, inputs * multiplier].
    shape: tuple[int, ...]
    scale: str | None = None  # for "sign": name of a float32 array [1] or [shape[-1]]; None for 1
    bits: int | None = None  # for "codebook": 1 to 8
    values: str | None = None  # for "codebook": name of a float32 array [2**bits or fewer]


_WINDOW = {"strides": (1, 1), "padding": "valid"}
_KERNEL = {"kernel": None, "bias": None}
FIELDS: dict[str, dict[str, Any]] = {
    "dense": _KERNEL,
    "conv2d": {**_KERNEL, **_WINDOW, "dilation": (1, 1)},
    "depthwise_conv2d": {**_KERNEL, **_WINDOW, "dilation": (1, 1)},
    "round": {"bits": None},
    "ternary": {"threshold": None},
    "threshold": {"thresholds": None, "descending": None},
    "scale_shift": {"scale": None, "shift": None},
    "activation": {"function": None, "slope": None},
    "prelu": {"slopes": None},
    "max_pool2d": {"pool_size": None, **_WINDOW},
    "average_pool2d": {"pool_size": None, **_WINDOW},
    "reshape": {"shape": None},
    "zero_pad2d": {"padding": None},
    "upsample2d": {"size": None},
    "concatenate": {"axis": None},
    "rescale": {"scale": None, "offset": None},
    **{op: {} for op in ("sign", "flatten", "global_average_pool2d", "global_max_pool2d")},
    **{op: {} for op in ("add", "subtract", "multiply")},
}
"""Fields of each operation, and their defaults if a file omits them."""


@dataclass(frozen=True)
class Op:
    """Describe an operation; `FIELDS` lists all of them."""

    op: str  # a key of `FIELDS`
    name: str  # of the layer that it implements
    inputs: tuple[str, ...]  # names of values
    output: str  # name of the value that it computes
    fields: Mapping[str, Any] = field(default_factory=dict)  # missing ones have their default

    @property
    def label(self) -> str:
        """Return the operation and the layer, for messages."""
        return f"{self.op} {self.name!r:.60}"


@dataclass(frozen=True)
class Graph:
    """Describe a network with one input and one output."""

    name: str
    input_name: str
    input_shape: tuple[int, ...]  # of one example
    output: str
    ops: tuple[Op, ...]  # each after those that compute its inputs
    classes: tuple[str, ...] | None = None  # names of the entries of the output
    about: Mapping[str, Any] = field(default_factory=dict)  # further information, as JSON values


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Return the JSON values that `parse_graph` reads."""
    return {
        "name": graph.name,
        "input": {"name": graph.input_name, "shape": list(graph.input_shape)},
        "output": graph.output,
        "classes": None if graph.classes is None else list(graph.classes),
        "about": dict(graph.about),
        "ops": [
            {"op": op.op, "name": op.name, "inputs": list(op.inputs), "output": op.output, **_to_json(op.fields)}
            for op in graph.ops
        ],
    }


def _to_json(value: Any) -> Any:
    if isinstance(value, Encoded | Mapping):
        fields = vars(value) if isinstance(value, Encoded) else value
        return {key: _to_json(each) for key, each in fields.items() if each is not None}
    return [_to_json(each) for each in value] if isinstance(value, tuple) else value


def parse_graph(model: Mapping[str, Any]) -> Graph:
    """Return the graph described by JSON values. `Model` checks whether its arrays fit."""
    return Graph(
        name=model["name"],
        input_name=model["input"]["name"],
        input_shape=tuple(model["input"]["shape"]),
        output=model["output"],
        ops=tuple(_parse_op(**op) for op in model["ops"]),
        classes=None if model["classes"] is None else tuple(model["classes"]),
        about=model["about"],
    )


def _parse_op(op: str, name: str, inputs: list[str], output: str, **given: Any) -> Op:
    """Return an operation with all fields."""
    if op not in FIELDS or not FIELDS[op].keys() >= given.keys():
        raise UserError(f"It has the operation {op!r:.40} with {', '.join(given)!r:.80}: another version wrote it.")
    fields = {**FIELDS[op], **{key: _from_json(each) for key, each in given.items()}}
    return Op(op, name, tuple(inputs), output, fields)


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return Encoded(**{key: _from_json(each) for key, each in value.items()})
    return tuple(map(_from_json, value)) if isinstance(value, list) else value


FLOAT, INTEGER, BINARY = "float", "integer", "binary"


@dataclass(frozen=True)
class Value:
    """Describe a value of one example."""

    shape: tuple[int, ...]
    kind: str  # "float", "integer" (exact sums of signs) or "binary" (-1 and +1)


Step = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Computes a value from others, each [batch, ...]: float32, int32, or signs packed along the last axis."""
Made = tuple[Value, Step]
"""The output value of an operation, and the step that computes it."""


@dataclass(frozen=True)
class Context:
    """The arguments from which a step is built."""

    op: Op
    inputs: tuple[Value, ...]
    tensors: Mapping[str, np.ndarray]
    backend: Backend

    @property
    def input(self) -> Value:
        (value,) = self.inputs
        return value

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.op.fields

    def array(self, name: str, shape: tuple[int, ...], *dtypes: type[np.generic]) -> np.ndarray:
        """Return an array of the file, after checking its shape and its type."""
        array = self.tensors[name]
        fits = array.shape == shape and array.dtype in dtypes
        wanted = f"{' or '.join(np.dtype(dtype).name for dtype in dtypes)} {shape}"
        require(fits, f"Array {name!r:.60} of {self.op.label} is {array.dtype} {array.shape}. Expected {wanted}.")
        return array

    def numbers(self, name: str, count: int, bits: int) -> np.ndarray:
        """Return the numbers of a stream: uint8 [count]."""
        return unpack_stream(self.array(name, (stream_bytes(count, bits),), np.uint8), count, bits)

    def scale(self, encoded: Encoded) -> np.ndarray | None:
        """Return the scale of signs, float32 [1] or [channels]; None for 1."""
        if encoded.scale is None:
            return None
        per_channel = self.tensors[encoded.scale].shape == encoded.shape[-1:]
        return self.array(encoded.scale, encoded.shape[-1:] if per_channel else (1,), np.float32)

    def decode(self, encoded: Encoded) -> np.ndarray:
        """Return the values of a kernel or a bias, including scales: float32, in its shape."""
        values, scale = self.unscaled(encoded), self.scale(encoded)
        return values if scale is None else values * scale

    def unscaled(self, encoded: Encoded) -> np.ndarray:
        """Return the values without their scale: float32, in its shape; signs are -1 and +1."""
        count = math.prod(encoded.shape)
        if encoded.encoding == SIGN:
            values = 2 * self.numbers(encoded.tensor, count, 1).astype(np.float32) - 1
        elif encoded.encoding == CODEBOOK:
            assert encoded.bits is not None
            assert encoded.values is not None
            book = self.tensors[encoded.values].astype(np.float32, copy=False)
            values = book[self.numbers(encoded.tensor, count, encoded.bits)]
        else:
            return self.array(encoded.tensor, encoded.shape, np.float32, np.float16).astype(np.float32)
        return np.ascontiguousarray(from_order(values, encoded.shape))


def to_float(value: Value) -> Activation:
    """Return the conversion of a value to float32 [batch, *shape]."""
    if value.kind == FLOAT:
        return lambda array: array
    if value.kind == BINARY:
        return lambda array: (2 * unpack_last(array, value.shape[-1]).view(np.int8) - 1).astype(np.float32)
    return lambda array: array.astype(np.float32)
