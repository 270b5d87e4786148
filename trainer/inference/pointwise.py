"""Steps that look at one entry at a time: quantizers, thresholds, folded batch norms, activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.inference.activations import find_activation
from trainer.inference.bits import unpack_stream
from trainer.inference.context import Context, Step, pack, to_float
from trainer.inference.shapes import BINARY, MAX_TERMS


def sign(context: Context) -> Step:
    """Return the step of a sign, +1 at 0.

    Args:
        context: of the operation.
    """
    value, output = context.inputs[0], context.output
    if value.kind == BINARY and value.group == output.group:
        return lambda arrays: arrays[0]
    convert = to_float(value)
    return lambda arrays: pack(convert(arrays[0]) >= 0, output)


def round_to_bits(context: Context) -> Step:
    """Return the step of DoReFa-Net's activations: the levels i / n in [0, 1], n = 2^bits - 1, half to even.

    Args:
        context: of the operation.
    """
    steps, convert = np.float32(2 ** context.op.fields["bits"] - 1), to_float(context.inputs[0])
    return lambda arrays: np.rint(np.clip(convert(arrays[0]), 0.0, 1.0) * steps) * (np.float32(1) / steps)


def ternary(context: Context) -> Step:
    """Return the step to +1 above the threshold, -1 below its negative, and 0 between.

    Args:
        context: of the operation.
    """
    limit, convert = np.float32(context.op.fields["threshold"]), to_float(context.inputs[0])

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        values = convert(arrays[0])
        return np.subtract(values > limit, values < -limit, dtype=np.float32)

    return step


def threshold(context: Context) -> Step:
    """Return the step from integers to signs: +1 at the threshold and above, or, where it descends, and below.

    Args:
        context: of the operation.
    """
    fields, output = context.op.fields, context.output
    limits = np.clip(context.tensors[fields["thresholds"]].astype(np.int32), -MAX_TERMS - 1, MAX_TERMS + 1)
    if fields["descending"] is None:
        return lambda arrays: pack(arrays[0] >= limits, output)
    descending = unpack_stream(context.tensors[fields["descending"]], len(limits), 1)
    lowest = limits + descending  # x <= t is not x >= t + 1
    turned = pack(descending, output)
    return lambda arrays: pack(arrays[0] >= lowest, output) ^ turned


def scale_shift(context: Context) -> Step:
    """Return the step of a folded batch norm.

    Args:
        context: of the operation.
    """
    scale, shift = (context.tensors[context.op.fields[key]].astype(np.float32) for key in ("scale", "shift"))
    convert = to_float(context.inputs[0])
    return lambda arrays: convert(arrays[0]) * scale + shift


def rescale(context: Context) -> Step:
    """Return the step that scales and shifts all entries alike.

    Args:
        context: of the operation.
    """
    scale, offset = (np.float32(context.op.fields[key]) for key in ("scale", "offset"))
    convert = to_float(context.inputs[0])
    return lambda arrays: convert(arrays[0]) * scale + offset


def activation(context: Context) -> Step:
    """Return the step of an activation.

    Args:
        context: of the operation.
    """
    function = find_activation(context.op.fields["function"], context.op.fields["slope"])
    convert = to_float(context.inputs[0])
    return lambda arrays: function(convert(arrays[0]))
