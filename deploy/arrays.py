"""Arrays of packed exports, and how kernels are coded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hookline.deploy.inference.bits import encode_order, pack_stream
from hookline.deploy.inference.graph import CODEBOOK, SIGN, Encoded, Op

Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Node:
    """Hold an operation, its arrays as they are, and what computes it in Keras.

    Attributes:
        op: it, without the arrays that become part of the file.
        arrays: float32 by field: "kernel", "bias", "scale", "shift".
        call: computes it from its only input, as the evaluation does, where it treats every channel apart; else None.
    """

    op: Op
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    call: Call | None = None

    @property
    def kind(self) -> str:
        """Return which operation it is."""
        return self.op.op


def consumers(nodes: Sequence[Node], output: str) -> dict[str, int]:
    """Return how often each value is used, by name."""
    counts = {output: 1}
    for node in nodes:
        for name in node.op.inputs:
            counts[name] = counts.get(name, 0) + 1
    return counts


MOST_VALUES = 256


@dataclass(frozen=True)
class Code:
    """Hold numbers in the form in which they are written.

    Attributes:
        encoding: "sign", "codebook", "float32" or "float16".
        shape: of the numbers.
        data: uint8 bits for the first two, else floats of the shape.
        extra: float32; scales of a sign, one for all or one per channel, or values of a codebook; None if there are
            none.
        bits: per number, what `extra` takes not counted.
    """

    encoding: str
    shape: tuple[int, ...]
    data: np.ndarray
    extra: np.ndarray | None
    bits: int

    @property
    def bytes(self) -> int:
        """Return the bytes of the data with its scales or codebook."""
        return int(self.data.nbytes + (0 if self.extra is None else self.extra.nbytes))


def encode(values: np.ndarray, *, half: bool = False) -> Code:
    """Return the smallest exact form of numbers; of several as small, the one with the fewest bits."""
    values = np.asarray(values, np.float32)
    found = [each for each in (_signs(values), _codebook(values)) if each is not None]
    return min([*found, encode_floats(values, half=half)], key=lambda code: code.bytes)


def encode_floats(values: np.ndarray, *, half: bool = False) -> Code:
    """Return numbers as float32 or float16."""
    dtype = np.dtype(np.float16 if half else np.float32)
    return Code(dtype.name, values.shape, values.astype(dtype), None, 8 * dtype.itemsize)


def sign_scale(values: np.ndarray) -> np.ndarray | None:
    """Return the magnitude that all numbers of a kernel have, [1], or each channel's, [channels]; None without one."""
    if values.ndim == 0 or values.size == 0:
        return None
    rows = np.abs(values.reshape(-1, values.shape[-1]))
    if (rows != rows[0]).any():
        return None
    return rows[0][:1] if (rows[0] == rows[0][0]).all() else rows[0]


def _signs(values: np.ndarray) -> Code | None:
    scale = sign_scale(values)
    if scale is None:
        return None
    stored = None if scale.size == 1 and scale[0] == 1.0 else scale
    return Code(SIGN, values.shape, pack_stream(encode_order(values >= 0.0), 1), stored, 1)


def _codebook(values: np.ndarray) -> Code | None:
    distinct, indices = np.unique(values, return_inverse=True)
    if not 0 < len(distinct) <= MOST_VALUES or values.ndim == 0:
        return None
    bits = max(1, int(len(distinct) - 1).bit_length())
    ordered = encode_order(indices.reshape(values.shape))
    return Code(CODEBOOK, values.shape, pack_stream(ordered, bits), distinct, bits)


ENCODED = ("kernel", "bias")


@dataclass(frozen=True)
class Stored:
    """Say how an array of a layer is stored.

    Attributes:
        layer: path of the layer.
        what: which of its arrays, such as "kernel".
        numbers: how many there are.
        encoding: such as "sign", "codebook" or "int16".
        bits: per number, without scales and values of a codebook.
        bytes: with them.
        value_bytes: of these, the values of a codebook.
    """

    layer: str
    what: str
    numbers: int
    encoding: str
    bits: int
    bytes: int
    value_bytes: int = 0


def encode_nodes(
    nodes: Sequence[Node], *, half: bool
) -> tuple[tuple[Op, ...], dict[str, np.ndarray], tuple[Stored, ...]]:
    """Return operations with the names of their arrays, the arrays by name, and how each is stored."""
    ops: list[Op] = []
    tensors: dict[str, np.ndarray] = {}
    stored: list[Stored] = []
    for number, node in enumerate(nodes):
        fields: dict[str, Any] = dict(node.op.fields)
        for key, array in node.arrays.items():
            name = f"{number}/{key}"
            if key in ENCODED:
                code = encode(array, half=half) if key == "kernel" else encode_floats(array, half=half)
                fields[key], more = _named(code, name)
                tensors |= more
                values = code.extra.nbytes if code.extra is not None and code.encoding == CODEBOOK else 0
                stored.append(Stored(node.op.name, key, array.size, code.encoding, code.bits, code.bytes, values))
            else:
                fields[key], tensors[name] = name, array
                stored.append(_plain(node, key, array))
        ops.append(replace(node.op, fields=fields))
    return tuple(ops), tensors, tuple(stored)


def _named(code: Code, name: str) -> tuple[Encoded, dict[str, np.ndarray]]:
    tensors = {name: code.data}
    extra = None if code.extra is None else f"{name}/{'values' if code.encoding == CODEBOOK else 'scale'}"
    if extra is not None and code.extra is not None:
        tensors[extra] = code.extra
    encoded = Encoded(code.encoding, name, tuple(int(each) for each in code.shape))
    if code.encoding == CODEBOOK:
        return replace(encoded, bits=code.bits, values=extra), tensors
    return replace(encoded, scale=extra), tensors


def _plain(node: Node, key: str, array: np.ndarray) -> Stored:
    if key == "descending":
        return Stored(node.op.name, key, node.arrays["thresholds"].size, "bits", 1, array.nbytes)
    return Stored(node.op.name, key, array.size, array.dtype.name, 8 * array.itemsize, array.nbytes)


SUMS = {"dense", "conv2d"}
POOLS = {"max_pool2d", "global_max_pool2d"}
SHAPERS = {"flatten", "reshape", "upsample2d"}
BINARY_KEEPERS = POOLS | SHAPERS | {"concatenate"}
SIGN_KEEPING = {"hard_tanh", "tanh"}


def merge_equal_signs(nodes: Sequence[Node]) -> list[Node]:
    """Return operations in which every value has at most one sign op; several layers may each have added one."""
    kept: list[Node] = []
    first: dict[str, str] = {}
    stands_for: dict[str, str] = {}
    for node in nodes:
        inputs = tuple(stands_for.get(name, name) for name in node.op.inputs)
        node = replace(node, op=replace(node.op, inputs=inputs))
        if node.kind == "sign":
            if inputs[0] in first:
                stands_for[node.op.output] = first[inputs[0]]
                continue
            first[inputs[0]] = node.op.output
        kept.append(node)
    return kept


def binary_values(nodes: Sequence[Node]) -> set[str]:
    """Return the names of the values that hold -1 and +1 alone."""
    found: set[str] = set()
    for node in nodes:
        keeps = node.kind in BINARY_KEEPERS and all(name in found for name in node.op.inputs)
        if node.kind in ("sign", "threshold") or keeps:
            found.add(node.op.output)
    return found


def drop_needless_activations(nodes: Sequence[Node], output: str) -> list[Node]:
    """Return operations without sign-preserving activations that only a sign follows."""
    nodes = list(nodes)
    for node in [each for each in nodes if each.op.fields.get("function") in SIGN_KEEPING]:
        value, counts = node.op.output, consumers(nodes, output)
        follows = [each for each in nodes if value in each.op.inputs]
        while counts[value] == 1 and follows and follows[0].kind in POOLS | SHAPERS:
            value = follows[0].op.output
            follows = [each for each in nodes if value in each.op.inputs]
        if follows and all(each.kind == "sign" for each in follows) and value != output:
            (given,) = node.op.inputs
            nodes = [_rewired(each, node.op.output, given) for each in nodes if each is not node]
    return nodes


def _rewired(node: Node, value: str, other: str) -> Node:
    inputs = tuple(other if name == value else name for name in node.op.inputs)
    return node if inputs == node.op.inputs else replace(node, op=replace(node.op, inputs=inputs))


def is_integer_sum(node: Node, binary: set[str]) -> bool:
    """Return whether a layer sums signs: an integer, times the scale of its channel if there is one."""
    return node.kind in SUMS and node.op.inputs[0] in binary and sign_scale(node.arrays["kernel"]) is not None
