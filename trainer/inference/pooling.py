"""Steps that pool: on floats, on exact integers, and on packed signs, where the largest is an OR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.inference.context import Context, Step, to_float
from trainer.inference.patches import Windows
from trainer.inference.shapes import BINARY, INTEGER


def max_pool2d(context: Context) -> Step:
    """Return the step of a maximum over windows.

    Args:
        context: of the operation.
    """
    entries = _entries(_windows(context))
    kind = context.inputs[0].kind
    largest: Any = np.bitwise_or if kind == BINARY else np.maximum
    lowest: Any = {BINARY: 0, INTEGER: np.iinfo(np.int32).min}.get(kind, -np.inf)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        images = arrays[0]
        made = np.full((len(images), *context.output.shape[:2], images.shape[3]), lowest, images.dtype)
        for place, seen in entries:
            part = made[place]
            largest(part, images[seen], out=part)
        return made

    return step


def average_pool2d(context: Context) -> Step:
    """Return the step of a mean over windows; zeros of the padding do not count.

    Args:
        context: of the operation.
    """
    windows, convert = _windows(context), to_float(context.inputs[0])
    entries = _entries(windows)
    counts = [windows.inside(axis).sum(axis=1, dtype=np.int64) for axis in (0, 1)]
    sizes = np.multiply.outer(*counts).astype(np.float32)[..., None]

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        images = convert(arrays[0])
        made = np.zeros((len(images), *context.output.shape), np.float32)
        for place, seen in entries:
            made[place] += images[seen]
        made /= sizes
        return made

    return step


def global_max_pool2d(context: Context) -> Step:
    """Return the step of a maximum over all places.

    Args:
        context: of the operation.
    """
    largest: Any = np.bitwise_or if context.inputs[0].kind == BINARY else np.maximum
    return lambda arrays: largest.reduce(arrays[0], axis=(1, 2))


def global_average_pool2d(context: Context) -> Step:
    """Return the step of a mean over all places.

    Args:
        context: of the operation.
    """
    convert = to_float(context.inputs[0])
    return lambda arrays: convert(arrays[0]).mean(axis=(1, 2), dtype=np.float32)


def _windows(context: Context) -> Windows:
    fields, shape = context.op.fields, context.inputs[0].shape
    return Windows((shape[0], shape[1]), fields["pool_size"], fields["strides"], (1, 1), fields["padding"])


def _entries(windows: Windows) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Return, for each entry of the window, which windows have it in the image, and where it is there."""
    axes = []
    for axis in (0, 1):
        _, before, _ = windows.axis(axis)
        stride, inside = windows.strides[axis], windows.inside(axis)
        found = []
        for entry in range(windows.window[axis]):
            (those,) = np.nonzero(inside[:, entry])
            if len(those):
                first, last = (int(each) * stride - before + entry for each in those[[0, -1]])
                found.append((slice(int(those[0]), int(those[-1]) + 1), slice(first, last + 1, stride)))
        axes.append(found)
    every = slice(None)
    return [((every, y[0], x[0]), (every, y[1], x[1])) for y in axes[0] for x in axes[1]]
