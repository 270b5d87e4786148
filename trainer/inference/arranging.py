"""Steps that arrange and join values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.inference.bits import unpack_last
from trainer.inference.context import Context, Step, pack, to_float
from trainer.inference.shapes import BINARY, FLOAT, Value


def reshape(context: Context) -> Step:
    """Return the step of another shape for the same entries, in their order.

    Args:
        context: of the operation.
    """
    value, output = context.inputs[0], context.output
    if value.kind != BINARY:
        return lambda arrays: arrays[0].reshape(-1, *output.shape)
    if _are_alike(value, output):
        lead, last = output.shape[:-1], output.shape[-1] // output.group * -(-output.group // 8)
        return lambda arrays: arrays[0].reshape(-1, *lead, last)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        bits = unpack_last(arrays[0], value.group, value.shape[-1])
        return pack(bits.reshape(-1, *output.shape), output)

    return step


def _are_alike(value: Value, output: Value) -> bool:
    """Return whether the bytes stay as they are."""
    return value.group == output.group or (value.group % 8 == 0 and output.group % 8 == 0)


def zero_pad2d(context: Context) -> Step:
    """Return the step of zeros around images.

    Args:
        context: of the operation.
    """
    pads, convert = context.op.fields["padding"], to_float(context.inputs[0])
    return lambda arrays: np.pad(convert(arrays[0]), ((0, 0), *pads, (0, 0)))


def upsample2d(context: Context) -> Step:
    """Return the step that repeats rows and columns.

    Args:
        context: of the operation.
    """
    rows, columns = context.op.fields["size"]
    return lambda arrays: arrays[0].repeat(rows, axis=1).repeat(columns, axis=2)


def concatenate(context: Context) -> Step:
    """Return the step that joins values along an axis.

    Args:
        context: of the operation.
    """
    axis, output = context.op.fields["axis"], context.output
    if output.kind == FLOAT:
        converts = [to_float(value) for value in context.inputs]
        return lambda arrays: np.concatenate([to(each) for to, each in zip(converts, arrays, strict=True)], axis)
    if output.kind != BINARY:
        return lambda arrays: np.concatenate(arrays, axis)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        pairs = zip(arrays, context.inputs, strict=True)
        bits = [unpack_last(array, value.group, value.shape[-1]) for array, value in pairs]
        return pack(np.concatenate(bits, axis), output)

    return step


def _join(function: Callable[..., Any]) -> Callable[[Context], Step]:
    def build(context: Context) -> Step:
        converts = [to_float(value) for value in context.inputs]
        return lambda arrays: functools.reduce(function, [to(each) for to, each in zip(converts, arrays, strict=True)])

    return build


add, subtract, multiply = _join(np.add), _join(np.subtract), _join(np.multiply)
