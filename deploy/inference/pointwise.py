"""Layers on NumPy: pointwise ops, and those that arrange."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hookline.deploy.inference.bits import unpack_last, unpack_stream
from hookline.deploy.inference.graph import find_activation
from hookline.deploy.inference.shapes import BINARY, FLOAT, MAX_TERMS, Context, Step, Value, pack, to_float


def sign(context: Context) -> Step:
    """Return the step of a sign, +1 at 0."""
    value, output = context.inputs[0], context.output
    if value.kind == BINARY and value.group == output.group:
        return lambda arrays: arrays[0]
    convert = to_float(value)
    return lambda arrays: pack(convert(arrays[0]) >= 0, output)


def round_to_bits(context: Context) -> Step:
    """Return the step of DoReFa-Net's activations: the levels i / n in [0, 1], n = 2^bits - 1, half to even."""
    steps, convert = np.float32(2 ** context.op.fields["bits"] - 1), to_float(context.inputs[0])
    return lambda arrays: np.rint(np.clip(convert(arrays[0]), 0.0, 1.0) * steps) * (np.float32(1) / steps)


def ternary(context: Context) -> Step:
    """Return the step to +1 above the threshold, -1 below its negative, and 0 between."""
    limit, convert = np.float32(context.op.fields["threshold"]), to_float(context.inputs[0])

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        values = convert(arrays[0])
        return np.subtract(values > limit, values < -limit, dtype=np.float32)

    return step


def threshold(context: Context) -> Step:
    """Return the step from integers to signs: +1 at the threshold and above, or, where it descends, and below."""
    fields, output = context.op.fields, context.output
    limits = np.clip(context.tensors[fields["thresholds"]].astype(np.int32), -MAX_TERMS - 1, MAX_TERMS + 1)
    if fields["descending"] is None:
        return lambda arrays: pack(arrays[0] >= limits, output)
    descending = unpack_stream(context.tensors[fields["descending"]], len(limits), 1)
    lowest = limits + descending  # x <= t is not x >= t + 1
    turned = pack(descending, output)
    return lambda arrays: pack(arrays[0] >= lowest, output) ^ turned


def scale_shift(context: Context) -> Step:
    """Return the step of a folded batch norm."""
    scale, shift = (context.tensors[context.op.fields[key]].astype(np.float32) for key in ("scale", "shift"))
    convert = to_float(context.inputs[0])
    return lambda arrays: convert(arrays[0]) * scale + shift


def rescale(context: Context) -> Step:
    """Return the step that scales and shifts all entries alike."""
    scale, offset = (np.float32(context.op.fields[key]) for key in ("scale", "offset"))
    convert = to_float(context.inputs[0])
    return lambda arrays: convert(arrays[0]) * scale + offset


def activation(context: Context) -> Step:
    """Return the step of an activation."""
    function = find_activation(context.op.fields["function"], context.op.fields["slope"])
    convert = to_float(context.inputs[0])
    return lambda arrays: function(convert(arrays[0]))


def reshape(context: Context) -> Step:
    """Return the step of another shape for the same entries, in their order."""
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
    """Return the step of zeros around images."""
    pads, convert = context.op.fields["padding"], to_float(context.inputs[0])
    return lambda arrays: np.pad(convert(arrays[0]), ((0, 0), *pads, (0, 0)))


def upsample2d(context: Context) -> Step:
    """Return the step that repeats rows and columns."""
    rows, columns = context.op.fields["size"]
    return lambda arrays: arrays[0].repeat(rows, axis=1).repeat(columns, axis=2)


def concatenate(context: Context) -> Step:
    """Return the step that joins values along an axis."""
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
