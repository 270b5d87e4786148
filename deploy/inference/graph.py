"""The graph of a file, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from hookline.deploy.inference.container import require
from hookline.trainer.errors import UserError, did_you_mean, unknown_name
from hookline.trainer.input.preparation import check_shape

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


MAX_TEXT = 400
MAX_SIZE = 2**20  # of a stride, a window or a padding
PADDINGS = ("valid", "same")
REQUIRED: Final = object()
Check = Callable[[str, Any], Any]


def _valid(holds: bool, what: str, value: Any, expected: str) -> None:
    require(holds, f"Invalid {what}: {value!r:.60}. Expected {expected}.")


def check_text(what: str, value: Any) -> str:
    """Return a name."""
    is_name = isinstance(value, str) and 0 < len(value) <= MAX_TEXT
    _valid(is_name, what, value, f"a name of 1 to {MAX_TEXT} characters")
    return str(value)


def _pair(least: int, what: str, value: Any) -> tuple[int, int]:
    is_pair = isinstance(value, list) and len(value) == 2
    is_pair = is_pair and all(type(each) is int and least <= each <= MAX_SIZE for each in value)
    _valid(is_pair, what, value, f"two whole numbers of at least {least}")
    return value[0], value[1]


def _pads(what: str, value: Any) -> tuple[tuple[int, int], ...]:
    _valid(isinstance(value, list) and len(value) == 2, what, value, "[[top, bottom], [left, right]]")
    return tuple(_pair(0, what, each) for each in value)


def _one_of(known: tuple[str, ...], what: str, value: Any) -> str:
    if value not in known:
        raise unknown_name(what, str(value)[:40], known)
    return str(value)


def _whole(low: int, high: int, what: str, value: Any) -> int:
    is_in_range = type(value) is int and low <= value <= high
    _valid(is_in_range, what, value, f"a whole number from {low} to {high}")
    return int(value)


def _number(what: str, value: Any) -> float:
    _valid(type(value) in (int, float), what, value, "a number")
    return float(value)


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
    """Describe how an array of numbers is stored in a file.

    "sign": scale * (-1 or +1), a bit each, 1 for +1. "codebook": values[index], `bits` bits each. Bits and indices are
    one stream, lowest bit first, zero bits at its end; the order is that of moveaxis(array, -1, 0).ravel(), all of an
    output channel together. "float32", "float16": the array itself.
    """

    encoding: str
    tensor: str  # name of the array that holds it: a uint8 stream, or float32 or float16 values of `shape`
    shape: tuple[int, ...]  # Keras's: dense [inputs, units], convolution [height, width, inputs, filters], bias [units]
    scale: str | None = None  # of "sign": name of a float32 array [1] or [shape[-1]]; None for 1
    bits: int | None = None  # of "codebook": 1 to 8
    values: str | None = None  # of "codebook": name of a float32 array [2**bits or fewer]


def _encoded(what: str, value: Any) -> Encoded:
    encoding = value.get("encoding") if isinstance(value, dict) else None
    if not isinstance(encoding, str) or encoding not in OF_ENCODING:
        raise UserError(f"Invalid encoding of {what}: {str(encoding)[:40]}. Expected {', '.join(OF_ENCODING)}.")
    known = OF_ENCODING[encoding]
    is_known = known - {"scale"} <= set(value) <= known
    require(is_known, f"The {what} has other fields than {', '.join(sorted(known))}.")
    names = [key for key in ("tensor", "values", "scale") if key in value]
    texts = {key: check_text(f"{key} of {what}", value[key]) for key in names}
    bits = _whole(1, 8, f"bits of {what}", value["bits"]) if encoding == CODEBOOK else None
    return Encoded(encoding, shape=check_shape(f"shape of {what}", value["shape"]), bits=bits, **texts)


Fields = dict[str, tuple[Check, Any]]
"""The check of each field's value, and its default."""

_SIZES: Check = partial(_pair, 1)
_STEPS: Fields = {"strides": (_SIZES, (1, 1)), "padding": (partial(_one_of, PADDINGS), "valid")}
_WINDOW: Fields = {**_STEPS, "dilation": (_SIZES, (1, 1))}
_POOL: Fields = {**_STEPS, "pool_size": (_SIZES, REQUIRED), "strides": (_SIZES, REQUIRED)}
_KERNEL: Fields = {"kernel": (_encoded, REQUIRED), "bias": (_encoded, None)}

FIELDS: dict[str, Fields] = {
    "dense": _KERNEL,
    "conv2d": {**_KERNEL, **_WINDOW},
    "depthwise_conv2d": {**_KERNEL, **_WINDOW},
    "round": {"bits": (partial(_whole, 1, 8), REQUIRED)},
    "ternary": {"threshold": (_number, REQUIRED)},
    "threshold": {"thresholds": (check_text, REQUIRED), "descending": (check_text, None)},
    "scale_shift": {"scale": (check_text, REQUIRED), "shift": (check_text, REQUIRED)},
    "activation": {"function": (partial(_one_of, tuple(ACTIVATIONS)), REQUIRED), "slope": (_number, None)},
    "max_pool2d": _POOL,
    "average_pool2d": _POOL,
    "reshape": {"shape": (check_shape, REQUIRED)},
    "zero_pad2d": {"padding": (_pads, REQUIRED)},
    "upsample2d": {"size": (_SIZES, REQUIRED)},
    "concatenate": {"axis": (partial(_whole, -8, 8), REQUIRED)},
    "rescale": {"scale": (_number, REQUIRED), "offset": (_number, REQUIRED)},
    **{op: {} for op in ("sign", "flatten", "global_average_pool2d", "global_max_pool2d")},
    **{op: {} for op in ("add", "subtract", "multiply")},
}
"""Fields of each operation."""


MAX_OPS = 100_000


@dataclass(frozen=True)
class Op:
    """Describe an operation; `FIELDS` lists all of them."""

    op: str  # which operation
    name: str  # of the layer that it implements
    inputs: tuple[str, ...]  # names of values
    output: str  # name of the value that it computes
    fields: Mapping[str, Any] = field(default_factory=dict)  # what is missing has its default


@dataclass(frozen=True)
class Graph:
    """Describe a network with one input and one output."""

    name: str
    input_name: str
    input_shape: tuple[int, ...]  # of one example
    output: str
    ops: tuple[Op, ...]  # each after those whose values it takes
    classes: tuple[str, ...] | None = None  # names of the entries of the output
    about: Mapping[str, Any] = field(default_factory=dict)  # more facts, as JSON values


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


def parse_graph(model: Any) -> Graph:
    """Return the graph that JSON values describe. Whether its arrays fit, `shapes.infer` checks."""
    known = _fields("The model", model, {"name", "input", "output", "classes", "about", "ops"})
    inputs = _fields("The input", known["input"], {"name", "shape"})
    classes, ops = known["classes"], known["ops"]
    are_names = classes is None or (isinstance(classes, list) and all(isinstance(each, str) for each in classes))
    require(are_names, "Invalid classes. Expected a list of names, or null.")
    are_some = isinstance(ops, list) and 0 < len(ops) <= MAX_OPS
    require(are_some, f"Invalid ops. Expected a list of 1 to {MAX_OPS:,} operations.")
    require(isinstance(known["about"], dict), "Invalid about. Expected a mapping.")
    return Graph(
        name=check_text("name of the model", known["name"]),
        input_name=check_text("name of the input", inputs["name"]),
        input_shape=check_shape("shape of the input", inputs["shape"]),
        output=check_text("output", known["output"]),
        ops=tuple(_parse_op(f"operation {number}", op) for number, op in enumerate(ops)),
        classes=None if classes is None else tuple(classes),
        about=known["about"],
    )


def _fields(what: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != known:
        raise UserError(f"{what} has other fields than {', '.join(sorted(known))}.")
    return value


def _parse_op(what: str, value: Any) -> Op:
    """Return an operation with every field, checked, with defaults where they are missing."""
    of_each = {"op", "name", "inputs", "output"}
    has_all = isinstance(value, dict) and set(value) >= of_each
    require(has_all, f"{what.capitalize()} has no op, name, inputs or output.")
    op, name = (check_text(f"{key} of {what}", value[key]) for key in ("op", "name"))
    if op not in FIELDS:
        raise UserError(f"Unknown operation {op[:40]!r}.{did_you_mean(op, FIELDS)} Expected another version's file?")
    owner, inputs = f"{op} {name!r}", value["inputs"]
    require(isinstance(inputs, list) and bool(inputs), f"Invalid inputs of {owner}. Expected a list of names.")
    for key in sorted(value.keys() - of_each - FIELDS[op].keys()):
        raise UserError(f"Unknown field {key[:40]!r} of {owner}.{did_you_mean(key, FIELDS[op])}")
    fields: dict[str, Any] = {}
    for key, (check, default) in FIELDS[op].items():
        given = value.get(key)
        require(given is not None or default is not REQUIRED, f"{key} of {owner} is missing.")
        fields[key] = default if given is None else check(f"{key} of {owner}", given)
    names = tuple(check_text(f"input of {owner}", each) for each in inputs)
    return Op(op, name, names, check_text(f"output of {owner}", value["output"]), fields)
