"""The graph of a file, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from hookline.trainer.errors import UserError, did_you_mean, unknown_name

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, "Self-Normalizing Neural Networks", arXiv 1706.02515."""
SLOPES = {"leaky_relu": 0.2, "elu": 1.0}
"""Default slopes: Keras's defaults of `negative_slope` and `alpha`."""

Activation = Callable[[np.ndarray], np.ndarray]


def find_activation(function: str, slope: float | None) -> Activation:
    """Return an activation: float32 [...] to float32 [...]."""
    if function in SLOPES:
        factor = SLOPES[function] if slope is None else slope
        return lambda x: _with_slope(function, x, factor)
    return ACTIVATIONS[function]


def _with_slope(function: str, x: np.ndarray, slope: float) -> np.ndarray:
    below = x if function == "leaky_relu" else np.expm1(np.minimum(x, 0.0))
    return np.where(x < 0, slope * below, x)


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
    "leaky_relu": lambda x: _with_slope("leaky_relu", x, SLOPES["leaky_relu"]),
    "elu": lambda x: _with_slope("elu", x, SLOPES["elu"]),
    "selu": lambda x: SELU_SCALE * _with_slope("elu", x, SELU_ALPHA),
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


MAX_TEXT = 400
MAX_RANK = 8
MAX_SIZE = 2**20
"""Of a stride, a window, a padding or a length of a shape's axis beyond the first."""
PADDINGS = ("valid", "same")
REQUIRED: Final = object()
ENCODED: Final = object()
"""Marks the check of an encoded array, which involves more than one value."""
Check = Callable[[str, Any], Any]


def check_text(what: str, value: Any) -> str:
    """Return a name."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected a name of 1 to {MAX_TEXT} characters.")
    return value


def check_shape(what: str, value: Any) -> tuple[int, ...]:
    """Return lengths of axes, each at least 1."""
    valid = isinstance(value, list) and 0 < len(value) <= MAX_RANK
    if not valid or not all(type(each) is int and 0 < each < 2**40 for each in value):
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected a list of whole numbers of at least 1.")
    return tuple(value)


def _pair(least: int) -> Check:
    def check(what: str, value: Any) -> tuple[int, int]:
        valid = isinstance(value, list) and len(value) == 2
        if not valid or not all(type(each) is int and least <= each <= MAX_SIZE for each in value):
            raise UserError(f"Invalid {what}: {value!r:.60}. Expected two whole numbers of at least {least}.")
        return value[0], value[1]

    return check


def _pads(what: str, value: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected [[top, bottom], [left, right]].")
    pair = _pair(0)
    return pair(what, value[0]), pair(what, value[1])


def _one_of(known: tuple[str, ...]) -> Check:
    def check(what: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise unknown_name(what, str(value)[:40], known)
        return value

    return check


def _whole(low: int, high: int) -> Check:
    def check(what: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise UserError(f"Invalid {what}: {value!r:.60}. Expected a whole number from {low} to {high}.")
        return value

    return check


def _number(what: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected a number.")
    return float(value)


_WINDOW = {
    "strides": (_pair(1), (1, 1)),
    "padding": (_one_of(PADDINGS), "valid"),
    "dilation": (_pair(1), (1, 1)),
}
_POOL = {
    "pool_size": (_pair(1), REQUIRED),
    "strides": (_pair(1), REQUIRED),
    "padding": (_one_of(PADDINGS), "valid"),
}
_KERNEL = {"kernel": (ENCODED, REQUIRED), "bias": (ENCODED, None)}

FIELDS: dict[str, dict[str, tuple[Any, Any]]] = {
    "dense": {**_KERNEL},
    "conv2d": {**_KERNEL, **_WINDOW},
    "depthwise_conv2d": {**_KERNEL, **_WINDOW},
    "sign": {},
    "round": {"bits": (_whole(1, 8), REQUIRED)},
    "ternary": {"threshold": (_number, REQUIRED)},
    "threshold": {"thresholds": (check_text, REQUIRED), "descending": (check_text, None)},
    "scale_shift": {"scale": (check_text, REQUIRED), "shift": (check_text, REQUIRED)},
    "activation": {"function": (_one_of(tuple(ACTIVATIONS)), REQUIRED), "slope": (_number, None)},
    "max_pool2d": _POOL,
    "average_pool2d": _POOL,
    "global_average_pool2d": {},
    "global_max_pool2d": {},
    "flatten": {},
    "reshape": {"shape": (check_shape, REQUIRED)},
    "zero_pad2d": {"padding": (_pads, REQUIRED)},
    "upsample2d": {"size": (_pair(1), REQUIRED)},
    "add": {},
    "subtract": {},
    "multiply": {},
    "concatenate": {"axis": (_whole(-8, 8), REQUIRED)},
    "rescale": {"scale": (_number, REQUIRED), "offset": (_number, REQUIRED)},
}
"""Fields of each operation: the check of a value, and its default."""


MAX_OPS = 100_000
SIGN, CODEBOOK, FLOAT32, FLOAT16 = "sign", "codebook", "float32", "float16"
OF_ENCODING = {
    SIGN: {"encoding", "tensor", "shape", "scale"},
    CODEBOOK: {"encoding", "tensor", "shape", "bits", "values"},
    FLOAT32: {"encoding", "tensor", "shape"},
    FLOAT16: {"encoding", "tensor", "shape"},
}
"""Encodings of a kernel or a bias, and their fields."""


@dataclass(frozen=True)
class Encoded:
    """Say how an array of numbers is stored in the file.

    "sign": scale * (-1 or +1), a bit each, 1 for +1. "codebook": values[index], `bits` bits each. Bits and indices
    are one stream, lowest bit first, zero bits at its end; the order is that of moveaxis(array, -1, 0).ravel(), all of
    an output channel together. "float32", "float16": the array itself.

    Attributes:
        encoding: one of these.
        tensor: name of the array that holds it: uint8 streams, or float32 or float16 values of `shape`.
        shape: as Keras has it: dense [inputs, units], convolution [height, width, inputs, filters], bias [units].
        scale: name of a float32 array [1] or [shape[-1]]; None for 1. Of "sign" only.
        bits: 1 to 8. Of "codebook" only.
        values: name of a float32 array [2**bits or fewer]. Of "codebook" only.
    """

    encoding: str
    tensor: str
    shape: tuple[int, ...]
    scale: str | None = None
    bits: int | None = None
    values: str | None = None


@dataclass(frozen=True)
class Op:
    """Name an operation; `fields.FIELDS` says which there are and what they take.

    Attributes:
        op: which operation.
        name: of the layer that it implements.
        inputs: names of values.
        output: name of the value that it gives.
        fields: what else it takes; what is missing has its default. Kernels and biases are `Encoded`.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    output: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Hold a network with one input and one output.

    Attributes:
        name: of the network.
        input_name: name of the input value.
        input_shape: of one example.
        output: name of the output value.
        ops: each after those whose values it takes.
        classes: names of the entries of the output, or None.
        about: more facts, as JSON values; nothing here depends on them.
    """

    name: str
    input_name: str
    input_shape: tuple[int, ...]
    output: str
    ops: tuple[Op, ...]
    classes: tuple[str, ...] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Return the JSON values that `parse_graph` reads."""
    return {
        "name": graph.name,
        "input": {"name": graph.input_name, "shape": list(graph.input_shape)},
        "output": graph.output,
        "classes": None if graph.classes is None else list(graph.classes),
        "about": dict(graph.about),
        "ops": [_op_to_json(op) for op in graph.ops],
    }


def parse_graph(model: Any) -> Graph:
    """Return the graph that JSON values describe. Whether its arrays fit, `shapes.infer` checks."""
    known = _fields("the model", model, {"name", "input", "output", "classes", "about", "ops"})
    inputs = _fields("the input", known["input"], {"name", "shape"})
    classes, ops = known["classes"], known["ops"]
    if classes is not None and not (isinstance(classes, list) and all(isinstance(each, str) for each in classes)):
        raise UserError("Invalid classes. Expected a list of names, or null.")
    if not isinstance(ops, list) or not 0 < len(ops) <= MAX_OPS:
        raise UserError(f"Invalid ops. Expected a list of 1 to {MAX_OPS:,} operations.")
    if not isinstance(known["about"], dict):
        raise UserError("Invalid about. Expected a mapping.")
    return Graph(
        name=check_text("name of the model", known["name"]),
        input_name=check_text("name of the input", inputs["name"]),
        input_shape=check_shape("shape of the input", inputs["shape"]),
        output=check_text("output", known["output"]),
        ops=tuple(_parse_op(number, op) for number, op in enumerate(ops)),
        classes=None if classes is None else tuple(classes),
        about=known["about"],
    )


def _op_to_json(op: Op) -> dict[str, Any]:
    values = {key: _to_json(value) for key, value in op.fields.items() if value is not None}
    return {"op": op.op, "name": op.name, "inputs": list(op.inputs), "output": op.output, **values}


def _to_json(value: Any) -> Any:
    if isinstance(value, Encoded):
        found = {each.name: _to_json(getattr(value, each.name)) for each in fields(value)}
        return {key: each for key, each in found.items() if each is not None}
    return [_to_json(each) for each in value] if isinstance(value, tuple) else value


def _fields(what: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != known:
        raise UserError(f"{what.capitalize()} has other fields than {', '.join(sorted(known))}.")
    return value


def _parse_op(number: int, value: Any) -> Op:
    what = f"operation {number}"
    if not isinstance(value, dict) or not {"op", "name", "inputs", "output"} <= set(value):
        raise UserError(f"{what.capitalize()} has no op, name, inputs or output.")
    op = check_text(f"op of {what}", value["op"])
    if op not in FIELDS:
        raise UserError(f"Unknown operation {op[:40]!r}.{did_you_mean(op, FIELDS)} Expected another version's file?")
    name = check_text(f"name of {what}", value["name"])
    inputs = value["inputs"]
    if not isinstance(inputs, list) or not inputs:
        raise UserError(f"Invalid inputs of {op} {name!r}. Expected a list of names.")
    return Op(
        op=op,
        name=name,
        inputs=tuple(check_text(f"input of {op} {name!r}", each) for each in inputs),
        output=check_text(f"output of {op} {name!r}", value["output"]),
        fields=_parse_fields(f"{op} {name!r}", op, {key: value[key] for key in value.keys() - _OF_EACH}),
    )


_OF_EACH = {"op", "name", "inputs", "output"}


def _parse_fields(owner: str, op: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return every field of an operation, checked, with defaults where they are missing."""
    wanted = FIELDS[op]
    for key in sorted(values.keys() - wanted.keys()):
        raise UserError(f"Unknown field {key[:40]!r} of {owner}.{did_you_mean(key, wanted)}")
    found: dict[str, Any] = {}
    for key, (check, default) in wanted.items():
        value = values.get(key)
        if value is None and default is REQUIRED:
            raise UserError(f"{key} of {owner} is missing.")
        if value is None:
            found[key] = default
        else:
            what = f"{key} of {owner}"
            found[key] = _parse_encoded(what, value) if check == ENCODED else check(what, value)
    return found


def _parse_encoded(what: str, value: Any) -> Encoded:
    encoding = value.get("encoding") if isinstance(value, dict) else None
    if not isinstance(encoding, str) or encoding not in OF_ENCODING:
        raise UserError(f"Invalid encoding of {what}: {str(encoding)[:40]}. Expected {', '.join(OF_ENCODING)}.")
    known = OF_ENCODING[encoding]
    optional = {"scale"}
    if not known - optional <= set(value) <= known:
        raise UserError(f"The {what} has other fields than {', '.join(sorted(known))}.")
    bits = value.get("bits")
    if encoding == CODEBOOK and not (type(bits) is int and 1 <= bits <= 8):
        raise UserError(f"Invalid bits of {what}: {bits!r:.40}. Expected a whole number from 1 to 8.")
    names = {key: value.get(key) for key in ("tensor", "scale", "values")}
    checked = {key: None if each is None else check_text(f"{key} of {what}", each) for key, each in names.items()}
    if checked["tensor"] is None or (encoding == CODEBOOK and checked["values"] is None):
        raise UserError(f"The {what} names no array.")
    return Encoded(
        encoding=encoding,
        tensor=checked["tensor"],
        shape=check_shape(f"shape of {what}", value["shape"]),
        scale=checked["scale"],
        bits=bits,
        values=checked["values"],
    )
