"""Operations without a kernel on NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from hookline.deploy.inference.bits import pack_last, unpack_last
from hookline.deploy.inference.container import require
from hookline.deploy.inference.context import BINARY, FLOAT, INTEGER, Context, Made, Value, to_float
from hookline.deploy.inference.graph import Activation, find_activation
from hookline.deploy.inference.kernels import MAX_TERMS, Windows, windows_of


def max_pool2d(context: Context) -> Made:
    """Return the step of a maximum over windows."""
    windows, kind = windows_of(context, context.fields["pool_size"]), context.input.kind
    largest: Any = np.bitwise_or if kind == BINARY else np.maximum
    lowest: Any = {BINARY: 0, INTEGER: np.iinfo(np.int32).min}.get(kind, -np.inf)
    output = Value((*windows.places, context.input.shape[-1]), kind)
    return output, lambda arrays: _pool(largest, windows, windows.view(arrays[0], lowest))


def average_pool2d(context: Context) -> Made:
    """Return the step of a mean over windows; zeros of the padding do not count."""
    windows, convert = windows_of(context, context.fields["pool_size"]), to_float(context.input)
    counts = [windows.inside(axis).sum(axis=1, dtype=np.int64) for axis in (0, 1)]
    sizes = np.multiply.outer(*counts).astype(np.float32)[..., None]

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        made = _pool(np.add, windows, windows.view(convert(arrays[0])))
        made /= sizes
        return made

    return Value((*windows.places, context.input.shape[-1]), FLOAT), step


def _pool(function: np.ufunc, windows: Windows, view: np.ndarray) -> np.ndarray:
    """Return a function of the entries of each window, taken one after the other."""
    made = view[:, :, :, 0, 0].copy()
    for row, column in list(np.ndindex(*windows.window))[1:]:
        function(made, view[:, :, :, row, column], out=made)
    return made


def global_max_pool2d(context: Context) -> Made:
    """Return the step of a maximum over all places."""
    _, _, channels = context.input.shape
    largest: Any = np.bitwise_or if context.input.kind == BINARY else np.maximum
    return Value((channels,), context.input.kind), lambda arrays: largest.reduce(arrays[0], axis=(1, 2))


def global_average_pool2d(context: Context) -> Made:
    """Return the step of a mean over all places."""
    _, _, channels = context.input.shape
    convert = to_float(context.input)
    return Value((channels,), FLOAT), lambda arrays: convert(arrays[0]).mean(axis=(1, 2), dtype=np.float32)


def sign(context: Context) -> Made:
    """Return the step of a sign, +1 at 0."""
    output = Value(context.input.shape, BINARY)
    if context.input.kind == BINARY:
        return output, lambda arrays: arrays[0]
    convert = to_float(context.input)
    return output, lambda arrays: pack_last(convert(arrays[0]) >= 0)


def threshold(context: Context) -> Made:
    """Return the step from integers to signs: +1 at the threshold and above, or, where it descends, and below."""
    fields, value = context.fields, context.input
    is_sum = value.kind == INTEGER
    require(is_sum, f"The input of {context.op.label} is of kind {value.kind}. Expected integer sums; use sign.")
    thresholds = context.array(fields["thresholds"], value.shape[-1:], np.int8, np.int16, np.int32)
    limits, output = np.clip(thresholds.astype(np.int32), -MAX_TERMS - 1, MAX_TERMS + 1), Value(value.shape, BINARY)
    if fields["descending"] is None:
        return output, lambda arrays: pack_last(arrays[0] >= limits)
    descending = context.numbers(fields["descending"], len(limits), 1)
    lowest = limits + descending  # x <= t is not x >= t + 1
    turned = pack_last(descending)
    return output, lambda arrays: pack_last(arrays[0] >= lowest) ^ turned


def pointwise(context: Context) -> Made:
    """Return the step of a function of each entry, or of each channel."""
    function, convert = _function(context), to_float(context.input)
    return Value(context.input.shape, FLOAT), lambda arrays: function(convert(arrays[0]))


def _function(context: Context) -> Activation:
    fields = context.fields
    match context.op.op:
        case "round":  # DoReFa-Net's activations: the levels i / n in [0, 1], n = 2^bits - 1, half to even
            steps = np.float32(2 ** fields["bits"] - 1)
            return lambda x: np.rint(np.clip(x, 0.0, 1.0) * steps) * (np.float32(1) / steps)
        case "ternary":
            limit = np.float32(fields["threshold"])
            return lambda x: np.subtract(x > limit, x < -limit, dtype=np.float32)
        case "scale_shift":
            channels = context.input.shape[-1:]
            scale, shift = (context.array(fields[key], channels, np.float32) for key in ("scale", "shift"))
        case "rescale":
            scale, shift = (np.array(fields[key], np.float32) for key in ("scale", "offset"))
        case _:
            return find_activation(fields["function"], fields["slope"])
    return lambda x: x * scale + shift


def reshape(context: Context) -> Made:
    """Return the step of another shape for the same entries, in their order."""
    before, kind = context.input.shape, context.input.kind
    shape = context.fields.get("shape", (math.prod(before),))
    is_same = math.prod(shape) == math.prod(before)
    require(is_same, f"{context.op.label} gives {shape} from {before}. Expected as many entries.")
    output, last = Value(shape, kind), before[-1]
    if kind != BINARY:
        return output, lambda arrays: arrays[0].reshape(-1, *shape)
    if last == shape[-1] or (last % 8 == 0 and shape[-1] % 8 == 0):  # the bytes stay as they are
        return output, lambda arrays: arrays[0].reshape(-1, *shape[:-1], -(-shape[-1] // 8))
    return output, lambda arrays: pack_last(unpack_last(arrays[0], last).reshape(-1, *shape))


flatten = reshape


def zero_pad2d(context: Context) -> Made:
    """Return the step that adds zeros around images."""
    (rows, columns, channels), pads = context.input.shape, context.fields["padding"]
    output, convert = Value((rows + sum(pads[0]), columns + sum(pads[1]), channels), FLOAT), to_float(context.input)
    return output, lambda arrays: np.pad(convert(arrays[0]), ((0, 0), *pads, (0, 0)))


def upsample2d(context: Context) -> Made:
    """Return the step that repeats rows and columns."""
    (rows, columns, channels), (down, right) = context.input.shape, context.fields["size"]
    output = Value((rows * down, columns * right, channels), context.input.kind)
    return output, lambda arrays: arrays[0].repeat(down, axis=1).repeat(right, axis=2)


def concatenate(context: Context) -> Made:
    """Return the step that joins values along an axis."""
    axis, inputs = context.fields["axis"], context.inputs
    joined = np.concatenate([np.empty((0, *value.shape)) for value in inputs], axis)  # NumPy compares the shapes
    require(axis % joined.ndim != 0, f"{context.op.label} got axis {axis}. Expected another one than the batch's.")
    kinds = {value.kind for value in inputs}
    output = Value(joined.shape[1:], kinds.pop() if len(kinds) == 1 else FLOAT)
    if output.kind == BINARY:
        unpack = [partial(unpack_last, last=value.shape[-1]) for value in inputs]
        return output, lambda arrays: pack_last(np.concatenate(_each(unpack, arrays), axis))
    converts = [to_float(value) if output.kind == FLOAT else np.asarray for value in inputs]
    return output, lambda arrays: np.concatenate(_each(converts, arrays), axis)


def _each(functions: Sequence[Activation], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [function(array) for function, array in zip(functions, arrays, strict=True)]


def _join(join: np.ufunc, context: Context) -> Made:
    shapes, converts = [value.shape for value in context.inputs], [to_float(value) for value in context.inputs]
    ranks = {len(shape) for shape in shapes}
    require(len(ranks) == 1, f"The inputs of {context.op.label} have shapes {shapes}. Expected one shape.")
    return Value(np.broadcast_shapes(*shapes), FLOAT), lambda arrays: reduce(join, _each(converts, arrays))


add, subtract, multiply = (partial(_join, each) for each in (np.add, np.subtract, np.multiply))
