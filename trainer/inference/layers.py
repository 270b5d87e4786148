"""Steps with kernels: dense layers and convolutions, on signs exactly, on floats by matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from trainer.inference.bits import WORD, as_words
from trainer.inference.context import Context, Step, to_float
from trainer.inference.graph import SIGN, Encoded
from trainer.inference.kernels import decode, scale_of, sign_bytes, unscaled
from trainer.inference.patches import Windows
from trainer.inference.shapes import BINARY, INTEGER
from trainer.inference.sign_sums import NUMPY_BACKEND

Finish = Callable[[np.ndarray], np.ndarray]


def dense(context: Context) -> Step:
    """Return the step of a dense layer.

    Args:
        context: of the operation.
    """
    kernel: Encoded = context.op.fields["kernel"]
    value, shape = context.inputs[0], context.output.shape
    finish = _finish(context, kernel)
    if value.kind == BINARY and kernel.encoding == SIGN:
        words = as_words(sign_bytes(kernel, context.tensors, value.group))
        sums = context.backend.sums(words, kernel.shape[0])
        return lambda arrays: finish(sums(as_words(_as_rows(arrays[0])))).reshape(-1, *shape)
    weights, convert = unscaled(kernel, context.tensors), to_float(value)
    products = (context.backend if kernel.encoding == SIGN else NUMPY_BACKEND).products(weights)
    return lambda arrays: finish(products(_as_rows(convert(arrays[0])))).reshape(-1, *shape)


def conv2d(context: Context) -> Step:
    """Return the step of a convolution.

    Args:
        context: of the operation.
    """
    kernel: Encoded = context.op.fields["kernel"]
    value = context.inputs[0]
    if value.kind == BINARY and kernel.encoding == SIGN:
        return _sign_conv2d(context, kernel)
    weights, convert = unscaled(kernel, context.tensors).reshape(-1, kernel.shape[-1]), to_float(value)
    windows, finish = _windows(context, kernel), _finish(context, kernel)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        images = convert(arrays[0])
        made = np.empty((len(images), *context.output.shape), np.float32)
        for some, rows, patches in windows.rows(images):
            place = made[some, rows]
            place[:] = finish(patches @ weights).reshape(place.shape)
        return made

    return step


def _sign_conv2d(context: Context, kernel: Encoded) -> Step:
    windows, finish = _windows(context, kernel), _finish(context, kernel)
    words = as_words(sign_bytes(kernel, context.tensors, context.inputs[0].group))
    sums = context.backend.sums(words, math.prod(kernel.shape[:3]))
    border = _border(context, kernel, windows)
    dtype = np.int32 if context.output.kind == INTEGER else np.float32

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        made = np.empty((len(arrays[0]), *context.output.shape), dtype)
        for some, rows, patches in windows.rows(arrays[0], WORD):
            place = made[some, rows]
            found = sums(patches.view(np.uint64)).reshape(place.shape)
            place[:] = finish(found if border is None else border(found, rows))
        return made

    return step


def depthwise_conv2d(context: Context) -> Step:
    """Return the step of a convolution of each channel by itself.

    Args:
        context: of the operation.
    """
    kernel: Encoded = context.op.fields["kernel"]
    weights, convert = decode(kernel, context.tensors), to_float(context.inputs[0])
    windows = _windows(context, kernel)
    bias = _bias(context)
    (height, *_), (width, *_) = windows.axis(0), windows.axis(1)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        padded = windows.pad(convert(arrays[0]))
        made = np.zeros((len(padded), height, width, *kernel.shape[2:]), np.float32)
        for row in range(kernel.shape[0]):
            for column in range(kernel.shape[1]):
                made += _shifted(padded, windows, (row, column), (height, width))[..., None] * weights[row, column]
        made = made.reshape(len(padded), *context.output.shape)
        return made if bias is None else made + bias

    return step


def _shifted(padded: np.ndarray, windows: Windows, entry: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Return what an entry of the window meets, window by window."""
    starts = [entry[axis] * windows.dilation[axis] for axis in (0, 1)]
    rows, columns = (
        slice(starts[axis], starts[axis] + (size[axis] - 1) * windows.strides[axis] + 1, windows.strides[axis])
        for axis in (0, 1)
    )
    return padded[:, rows, columns]


def _as_rows(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 2 else array.reshape(-1, array.shape[-1])


def _windows(context: Context, kernel: Encoded) -> Windows:
    fields, shape = context.op.fields, context.inputs[0].shape
    window = (kernel.shape[0], kernel.shape[1])
    return Windows((shape[0], shape[1]), window, fields["strides"], fields["dilation"], fields["padding"])


def _bias(context: Context) -> np.ndarray | None:
    bias = context.op.fields["bias"]
    return None if bias is None else decode(bias, context.tensors)


def _finish(context: Context, kernel: Encoded) -> Finish:
    """Return what applies scale and bias to sums; exact integers without either stay as they are."""
    bias = _bias(context)
    scale = scale_of(kernel, context.tensors) if kernel.scale is not None else None

    def finish(sums: np.ndarray) -> np.ndarray:
        if context.output.kind == INTEGER:
            return sums
        found = sums.astype(np.float32, copy=False)
        if scale is not None:
            found = found * scale
        return found if bias is None else found + bias

    return finish


def _border(context: Context, kernel: Encoded, windows: Windows) -> Callable[[np.ndarray, slice], np.ndarray] | None:
    """Return what makes sums exact at the border, where the padding's zeros were taken for -1.

    Each zero bit outside the image took the weights that it met away once; they are given back. Which entries of a
    window are outside depends on a few rows and columns only.
    """
    insides = windows.inside(0), windows.inside(1)
    if insides[0].all() and insides[1].all():
        return None
    weights = unscaled(kernel, context.tensors).sum(axis=2, dtype=np.int64)
    (rows, row_of), (columns, column_of) = (np.unique(each, axis=0, return_inverse=True) for each in insides)
    outside = ~(rows[:, None, :, None] & columns[None, :, None, :])
    table = np.einsum("rcij,ijk->rck", outside.astype(np.int64), weights).astype(np.int32)
    row_of, column_of = row_of.reshape(-1), column_of.reshape(-1)
    return lambda sums, some: sums + table[row_of[some][:, None], column_of]
