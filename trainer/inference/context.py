"""What the steps of an engine are built from, and how a value turns into floats or signs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.inference.bits import pack_last, unpack_last
from trainer.inference.graph import Op
from trainer.inference.shapes import BINARY, FLOAT, Value
from trainer.inference.sign_sums import Backend

Convert = Callable[[np.ndarray], np.ndarray]
Step = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Computes a value from others, each [batch, ...]: float32, int32, or signs packed along the last axis."""


@dataclass(frozen=True)
class Context:
    """Hold what a step is built from.

    Attributes:
        op: the operation.
        inputs: what it takes.
        output: what it gives.
        tensors: by name.
        backend: computes with kernels of signs.
    """

    op: Op
    inputs: tuple[Value, ...]
    output: Value
    tensors: Mapping[str, np.ndarray]
    backend: Backend


def to_float(value: Value) -> Convert:
    """Return what turns a value into float32 [batch, *shape].

    Args:
        value: of any kind.
    """
    if value.kind == FLOAT:
        return lambda array: array
    if value.kind == BINARY:
        return lambda array: to_signs(array, value).astype(np.float32)
    return lambda array: array.astype(np.float32)


def to_signs(array: np.ndarray, value: Value) -> np.ndarray:
    """Return packed signs as -1 and +1: int8 [batch, *shape].

    Args:
        array: packed.
        value: binary.
    """
    signs = unpack_last(array, value.group, value.shape[-1]).view(np.int8)
    signs += signs
    signs -= 1
    return signs


def pack(positive: np.ndarray, value: Value) -> np.ndarray:
    """Return signs packed as a binary value has them.

    Args:
        positive: bool or uint8 [batch, *shape], where they are +1.
        value: binary.
    """
    return pack_last(positive, value.group)
