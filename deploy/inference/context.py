"""What the steps of a network work on: values, and the arrays of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hookline.deploy.inference.bits import Backend, from_order, stream_bytes, unpack_last, unpack_stream
from hookline.deploy.inference.container import require
from hookline.deploy.inference.graph import CODEBOOK, SIGN, Activation, Encoded, Op

FLOAT, INTEGER, BINARY = "float", "integer", "binary"


@dataclass(frozen=True)
class Value:
    """Describe a value of one example."""

    shape: tuple[int, ...]
    kind: str  # "float", "integer" (exact sums of signs) or "binary" (-1 and +1)


Step = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Computes a value from others, each [batch, ...]: float32, int32, or signs packed along the last axis."""
Made = tuple[Value, Step]
"""What an operation gives, and the step that computes it."""


@dataclass(frozen=True)
class Context:
    """Hold what a step is built from."""

    op: Op
    inputs: tuple[Value, ...]
    tensors: Mapping[str, np.ndarray]
    backend: Backend

    @property
    def input(self) -> Value:
        """Return the only input."""
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
        """Return the values of a kernel or a bias, scales included: float32, in Keras's shape."""
        values, scale = self.unscaled(encoded), self.scale(encoded)
        return values if scale is None else values * scale

    def unscaled(self, encoded: Encoded) -> np.ndarray:
        """Return the values without their scale: float32, in Keras's shape; signs are -1 and +1."""
        count = math.prod(encoded.shape)
        if encoded.encoding == SIGN:
            values = self.numbers(encoded.tensor, count, 1).astype(np.float32)
            values += values
            values -= 1.0
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
        return lambda array: to_signs(array, value).astype(np.float32)
    return lambda array: array.astype(np.float32)


def to_signs(array: np.ndarray, value: Value) -> np.ndarray:
    """Return packed signs as -1 and +1: int8 [batch, *shape]."""
    signs = unpack_last(array, value.shape[-1]).view(np.int8)
    signs += signs
    signs -= 1
    return signs
