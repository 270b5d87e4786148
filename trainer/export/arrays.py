"""The arrays of a packed network: how each is encoded, under which name, and how many bytes it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainer.export.kernel_codes import Code, encode, encode_floats
from trainer.export.node import Node
from trainer.inference.graph import CODEBOOK, Encoded, Op

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
    """Return operations with the names of their arrays, the arrays by name, and how each is stored.

    Args:
        nodes: of a network.
        half: whether kernels and biases that have no smaller exact form are rounded to float16.
    """
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
