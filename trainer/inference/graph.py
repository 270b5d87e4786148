"""The graph of a packed network: operations in order, and how it is written as JSON and read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trainer.errors import UserError, did_you_mean
from trainer.inference.fields import ENCODED, FIELDS, REQUIRED, check_shape, check_text

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
    """Say how an array of numbers stands in the file.

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
        name: of the layer that it stands for.
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
    """Return the JSON values that `parse_graph` reads.

    Args:
        graph: of a network.
    """
    return {
        "name": graph.name,
        "input": {"name": graph.input_name, "shape": list(graph.input_shape)},
        "output": graph.output,
        "classes": None if graph.classes is None else list(graph.classes),
        "about": dict(graph.about),
        "ops": [_op_to_json(op) for op in graph.ops],
    }


def parse_graph(model: Any) -> Graph:
    """Return the graph that JSON values describe. Whether its arrays fit, `shapes.infer` checks.

    Args:
        model: as `graph_to_json` returned them.

    Raises:
        UserError: something is missing, too much, of the wrong type or out of range.
    """
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
