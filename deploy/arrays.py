"""Encodings of the arrays in packed exports."""

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
    """Hold an operation, its arrays before encoding, and the Keras callable that computes it."""

    op: Op  # without the arrays that become part of the file
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)  # float32: "kernel", "bias", "scale", "shift"
    call: Call | None = None  # computes it from its only input as in evaluation, if it treats channels separately

    @property
    def kind(self) -> str:
        return self.op.op


MOST_VALUES = 256
Code = tuple[Encoded, dict[str, np.ndarray]]  # how numbers are stored, and the arrays that hold them, by name


def encode(name: str, values: np.ndarray, *, half: bool = False) -> Code:
    """Return the smallest encoding of an array: signs, a codebook or floats; exact, except for float16 with `half`."""
    values = np.asarray(values, np.float32)
    codes: list[Code] = []
    if (scale := sign_scale(values)) is not None:
        tensors = {name: pack_stream(encode_order(values >= 0.0), 1)}
        scales = {} if scale.size == 1 and scale[0] == 1.0 else {f"{name}/scale": scale}
        codes.append((Encoded(SIGN, name, values.shape, scale=next(iter(scales), None)), {**tensors, **scales}))
    book, indices = np.unique(values, return_inverse=True)
    if 0 < len(book) <= MOST_VALUES and values.ndim:
        bits = max(1, int(len(book) - 1).bit_length())
        stream = pack_stream(encode_order(indices.reshape(values.shape)), bits)
        encoded = Encoded(CODEBOOK, name, values.shape, bits=bits, values=f"{name}/values")
        codes.append((encoded, {name: stream, f"{name}/values": book}))
    return min([*codes, encode_floats(name, values, half=half)], key=lambda code: _bytes(code[1]))


def encode_floats(name: str, values: np.ndarray, *, half: bool = False) -> Code:
    """Return an array stored as float32, or as float16 with `half`."""
    dtype = np.dtype(np.float16 if half else np.float32)
    return Encoded(dtype.name, name, values.shape), {name: values.astype(dtype)}


def sign_scale(values: np.ndarray) -> np.ndarray | None:
    """Return the magnitude shared by all entries of a kernel, [1], or by each channel, [channels]; None without one."""
    if values.ndim == 0 or values.size == 0:
        return None
    rows = np.abs(values.reshape(-1, values.shape[-1]))
    if (rows != rows[0]).any():
        return None
    return rows[0][:1] if (rows[0] == rows[0][0]).all() else rows[0]


def _bytes(tensors: Mapping[str, np.ndarray]) -> int:
    return sum(each.nbytes for each in tensors.values())


Stored = tuple[str, str, int, str, int, int]
"""Layer path, array name, number of entries, encoding, bits per entry, bytes including scales and codebook."""


def encode_nodes(nodes: Sequence[Node], *, half: bool) -> tuple[tuple[Op, ...], dict[str, np.ndarray], list[Stored]]:
    """Return the operations with the names of their arrays, the arrays by name, and how each is stored."""
    ops: list[Op] = []
    tensors: dict[str, np.ndarray] = {}
    stored: list[Stored] = []
    for number, node in enumerate(nodes):
        fields: dict[str, Any] = dict(node.op.fields)
        for key, array in node.arrays.items():
            name = f"{number}/{key}"
            if (node.kind, key) == ("depthwise_conv2d", "kernel"):  # outputs are input channels x multipliers
                array = array.reshape(*array.shape[:2], 1, -1)
            if key in ("kernel", "bias"):
                encoded, own = (encode if key == "kernel" else encode_floats)(name, array, half=half)
                bits = 1 if encoded.encoding == SIGN else encoded.bits or 8 * own[name].itemsize
                fields[key], form = encoded, (array.size, encoded.encoding, bits)
            else:
                fields[key], own, form = name, {name: array}, (array.size, array.dtype.name, 8 * array.itemsize)
            if key == "descending":
                form = (node.arrays["thresholds"].size, "bits", 1)
            tensors |= own
            stored.append((node.op.name, key, *form, _bytes(own)))
        ops.append(replace(node.op, fields=fields))
    return tuple(ops), tensors, stored
