"""The operations of a graph on NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from hookline.deploy.inference.bits import (
    NUMPY_BACKEND,
    WORD,
    as_words,
    from_order,
    pack_last,
    unpack_last,
    unpack_stream,
)
from hookline.deploy.inference.graph import CODEBOOK, SIGN, Activation, Encoded, Op, find_activation
from hookline.deploy.inference.shapes import (
    BINARY,
    FLOAT,
    INTEGER,
    MAX_TERMS,
    Context,
    Step,
    to_float,
    window_pads,
)


def decode(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the values, scales included: float32, in Keras's shape."""
    values = unscaled(encoded, tensors)
    return values if encoded.scale is None else values * tensors[encoded.scale]


def unscaled(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the values without their scale: float32, in Keras's shape; signs are -1 and +1."""
    stored = tensors[encoded.tensor]
    count = math.prod(encoded.shape)
    if encoded.encoding == SIGN:
        values = unpack_stream(stored, count, 1).astype(np.float32)
        values += values
        values -= 1.0
    elif encoded.encoding == CODEBOOK:
        assert encoded.bits is not None
        assert encoded.values is not None
        values = tensors[encoded.values][unpack_stream(stored, count, encoded.bits)]
    else:
        return stored.astype(np.float32)
    return np.ascontiguousarray(from_order(values, encoded.shape))


def sign_bytes(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the signs of a kernel, packed as the signs that they meet: uint8 [units, bytes]."""
    inputs, units = encoded.shape[-2:]
    bits = unpack_stream(tensors[encoded.tensor], math.prod(encoded.shape), 1).reshape(units, -1, inputs)
    return pack_last(bits).reshape(units, -1)


BLOCK = 2**20  # bytes of the rows that are made at a time


@dataclass(frozen=True)
class Windows:
    """Describe the windows of a convolution or a pooling, along rows and columns."""

    size: tuple[int, int]  # of the input
    window: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: str  # "valid" or "same"

    def axis(self, axis: int) -> tuple[int, int, int]:
        """Return how often the window fits along an axis, and the padding before and after."""
        return window_pads(self.size[axis], self.window[axis], self.strides[axis], self.dilation[axis], self.padding)

    def inside(self, axis: int) -> np.ndarray:
        """Return which entries of each window lie in the image: bool [windows, entries]."""
        count, before, _ = self.axis(axis)
        starts = np.arange(count)[:, None] * self.strides[axis] - before
        places = starts + np.arange(self.window[axis]) * self.dilation[axis]
        return (places >= 0) & (places < self.size[axis])

    def view(self, images: np.ndarray, fill: float = 0) -> np.ndarray:
        """Return the windows of padded images: [batch, rows, columns, ...window, channels], a view if possible."""
        (_, top, bottom), (_, left, right) = self.axis(0), self.axis(1)
        if top or bottom or left or right:
            batch, rows, columns, channels = images.shape
            padded = np.full((batch, rows + top + bottom, columns + left + right, channels), fill, images.dtype)
            padded[:, top : top + rows, left : left + columns] = images
            images = padded
        reach = [dilation * (size - 1) + 1 for size, dilation in zip(self.window, self.dilation, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(images, reach, (1, 2))
        strided = windows[:, :: self.strides[0], :: self.strides[1], :, :: self.dilation[0], :: self.dilation[1]]
        return strided.transpose(0, 1, 2, 4, 5, 3)

    def rows(self, images: np.ndarray, multiple: int = 1) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield images and rows of windows as slices, with the windows [images * rows * columns, entries] of them."""
        view = self.view(images)
        batch, height, width = view.shape[:3]
        entries = math.prod(view.shape[3:])
        length = entries + -entries % multiple
        per_row = max(1, width * length * images.itemsize)
        some_rows = min(height, max(1, BLOCK // per_row))
        some_images = max(1, BLOCK // (per_row * height))
        for image in range(0, batch, some_images):
            for row in range(0, height, some_rows):
                part = view[image : image + some_images, row : row + some_rows]
                part = part.reshape(*part.shape[:4], -1)  # a row of a window is copied as one run of memory
                made = (np.zeros if length > entries else np.empty)((*part.shape[:3], length), images.dtype)
                made[..., :entries].reshape(part.shape)[:] = part
                yield slice(image, image + some_images), slice(row, row + some_rows), made.reshape(-1, length)


Finish = Callable[[np.ndarray], np.ndarray]


def dense(context: Context) -> Step:
    """Return the step of a dense layer."""
    kernel: Encoded = context.op.fields["kernel"]
    value, shape = context.inputs[0], context.output.shape
    finish = _finish(context, kernel)
    if value.kind == BINARY and kernel.encoding == SIGN:
        words = as_words(sign_bytes(kernel, context.tensors))
        sums = context.backend.sums(words, kernel.shape[0])
        return lambda arrays: finish(sums(as_words(_as_rows(arrays[0])))).reshape(-1, *shape)
    weights, convert = unscaled(kernel, context.tensors), to_float(value)
    products = (context.backend if kernel.encoding == SIGN else NUMPY_BACKEND).products(weights)
    return lambda arrays: finish(products(_as_rows(convert(arrays[0])))).reshape(-1, *shape)


def conv2d(context: Context) -> Step:
    """Return the step of a convolution."""
    kernel: Encoded = context.op.fields["kernel"]
    value = context.inputs[0]
    if value.kind == BINARY and kernel.encoding == SIGN:
        return _sign_conv2d(context, kernel)
    weights, convert = unscaled(kernel, context.tensors).reshape(-1, kernel.shape[-1]), to_float(value)
    windows, finish = _windows(context, kernel.shape), _finish(context, kernel)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        images = convert(arrays[0])
        made = np.empty((len(images), *context.output.shape), np.float32)
        for some, rows, patches in windows.rows(images):
            place = made[some, rows]
            place[:] = finish(patches @ weights).reshape(place.shape)
        return made

    return step


def _sign_conv2d(context: Context, kernel: Encoded) -> Step:
    windows, finish = _windows(context, kernel.shape), _finish(context, kernel)
    words = as_words(sign_bytes(kernel, context.tensors))
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
    """Return the step of a depthwise convolution."""
    kernel: Encoded = context.op.fields["kernel"]
    weights, convert = decode(kernel, context.tensors), to_float(context.inputs[0])
    windows, bias = _windows(context, kernel.shape), _bias(context)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        view = windows.view(convert(arrays[0]))
        made = np.zeros((*view.shape[:3], *kernel.shape[2:]), np.float32)
        for row, column in np.ndindex(*kernel.shape[:2]):
            made += view[:, :, :, row, column, :, None] * weights[row, column]
        made = made.reshape(len(made), *context.output.shape)
        return made if bias is None else made + bias

    return step


def _as_rows(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 2 else array.reshape(-1, array.shape[-1])


def _windows(context: Context, window: Sequence[int]) -> Windows:
    fields, shape = context.op.fields, context.inputs[0].shape
    dilation = fields.get("dilation", (1, 1))  # a pooling has none
    return Windows((shape[0], shape[1]), (window[0], window[1]), fields["strides"], dilation, fields["padding"])


def _bias(context: Context) -> np.ndarray | None:
    bias = context.op.fields["bias"]
    return None if bias is None else decode(bias, context.tensors)


def _finish(context: Context, kernel: Encoded) -> Finish:
    """Return the function that applies scale and bias to sums; exact integers without either stay as they are."""
    bias = _bias(context)
    scale = None if kernel.scale is None else context.tensors[kernel.scale]

    def finish(sums: np.ndarray) -> np.ndarray:
        if context.output.kind == INTEGER:
            return sums
        found = sums.astype(np.float32, copy=False)
        if scale is not None:
            found = found * scale
        return found if bias is None else found + bias

    return finish


def _border(context: Context, kernel: Encoded, windows: Windows) -> Callable[[np.ndarray, slice], np.ndarray] | None:
    """Return the correction of sums at the border: the weights that zeros of the padding, taken for -1, subtracted."""
    insides = windows.inside(0), windows.inside(1)
    if insides[0].all() and insides[1].all():
        return None
    weights = unscaled(kernel, context.tensors).sum(axis=2, dtype=np.int64)
    (rows, row_of), (columns, column_of) = (np.unique(each, axis=0, return_inverse=True) for each in insides)
    outside = ~(rows[:, None, :, None] & columns[None, :, None, :])
    table = np.einsum("rcij,ijk->rck", outside.astype(np.int64), weights).astype(np.int32)
    row_of, column_of = row_of.reshape(-1), column_of.reshape(-1)
    return lambda sums, some: sums + table[row_of[some][:, None], column_of]


def max_pool2d(context: Context) -> Step:
    """Return the step of a maximum over windows."""
    windows, kind = _windows(context, context.op.fields["pool_size"]), context.inputs[0].kind
    largest: Any = np.bitwise_or if kind == BINARY else np.maximum
    lowest: Any = {BINARY: 0, INTEGER: np.iinfo(np.int32).min}.get(kind, -np.inf)
    return lambda arrays: _pool(largest, windows, windows.view(arrays[0], lowest))


def average_pool2d(context: Context) -> Step:
    """Return the step of a mean over windows; zeros of the padding do not count."""
    windows, convert = _windows(context, context.op.fields["pool_size"]), to_float(context.inputs[0])
    counts = [windows.inside(axis).sum(axis=1, dtype=np.int64) for axis in (0, 1)]
    sizes = np.multiply.outer(*counts).astype(np.float32)[..., None]

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        made = _pool(np.add, windows, windows.view(convert(arrays[0])))
        made /= sizes
        return made

    return step


def _pool(function: np.ufunc, windows: Windows, view: np.ndarray) -> np.ndarray:
    """Return a function of the entries of each window, taken one after the other."""
    made = view[:, :, :, 0, 0].copy()
    for row, column in list(np.ndindex(*windows.window))[1:]:
        function(made, view[:, :, :, row, column], out=made)
    return made


def global_max_pool2d(context: Context) -> Step:
    """Return the step of a maximum over all places."""
    largest: Any = np.bitwise_or if context.inputs[0].kind == BINARY else np.maximum
    return lambda arrays: largest.reduce(arrays[0], axis=(1, 2))


def global_average_pool2d(context: Context) -> Step:
    """Return the step of a mean over all places."""
    convert = to_float(context.inputs[0])
    return lambda arrays: convert(arrays[0]).mean(axis=(1, 2), dtype=np.float32)


def sign(context: Context) -> Step:
    """Return the step of a sign, +1 at 0."""
    if context.inputs[0].kind == BINARY:
        return lambda arrays: arrays[0]
    convert = to_float(context.inputs[0])
    return lambda arrays: pack_last(convert(arrays[0]) >= 0)


def threshold(context: Context) -> Step:
    """Return the step from integers to signs: +1 at the threshold and above, or, where it descends, and below."""
    fields = context.op.fields
    limits = np.clip(context.tensors[fields["thresholds"]].astype(np.int32), -MAX_TERMS - 1, MAX_TERMS + 1)
    if fields["descending"] is None:
        return lambda arrays: pack_last(arrays[0] >= limits)
    descending = unpack_stream(context.tensors[fields["descending"]], len(limits), 1)
    lowest = limits + descending  # x <= t is not x >= t + 1
    turned = pack_last(descending)
    return lambda arrays: pack_last(arrays[0] >= lowest) ^ turned


def pointwise(context: Context) -> Step:
    """Return the step of a function of each entry, or of each channel."""
    function, convert = _function(context.op, context.tensors), to_float(context.inputs[0])
    return lambda arrays: function(convert(arrays[0]))


def _function(op: Op, tensors: Mapping[str, np.ndarray]) -> Activation:
    fields = op.fields
    match op.op:
        case "round":  # DoReFa-Net's activations: the levels i / n in [0, 1], n = 2^bits - 1, half to even
            steps = np.float32(2 ** fields["bits"] - 1)
            return lambda x: np.rint(np.clip(x, 0.0, 1.0) * steps) * (np.float32(1) / steps)
        case "ternary":
            limit = np.float32(fields["threshold"])
            return lambda x: np.subtract(x > limit, x < -limit, dtype=np.float32)
        case "scale_shift":
            scale, shift = (tensors[fields[key]].astype(np.float32) for key in ("scale", "shift"))
        case "rescale":
            scale, shift = (np.array(fields[key], np.float32) for key in ("scale", "offset"))
        case "zero_pad2d":
            return lambda x: np.pad(x, ((0, 0), *fields["padding"], (0, 0)))
        case _:
            return find_activation(fields["function"], fields["slope"])
    return lambda x: x * scale + shift


def reshape(context: Context) -> Step:
    """Return the step of another shape for the same entries, in their order."""
    shape, last = context.output.shape, context.inputs[0].shape[-1]
    if context.inputs[0].kind != BINARY:
        return lambda arrays: arrays[0].reshape(-1, *shape)
    if last == shape[-1] or (last % 8 == 0 and shape[-1] % 8 == 0):  # the bytes stay as they are
        return lambda arrays: arrays[0].reshape(-1, *shape[:-1], -(-shape[-1] // 8))
    return lambda arrays: pack_last(unpack_last(arrays[0], last).reshape(-1, *shape))


flatten = reshape


def upsample2d(context: Context) -> Step:
    """Return the step that repeats rows and columns."""
    rows, columns = context.op.fields["size"]
    return lambda arrays: arrays[0].repeat(rows, axis=1).repeat(columns, axis=2)


def concatenate(context: Context) -> Step:
    """Return the step that joins values along an axis."""
    axis, output, inputs = context.op.fields["axis"], context.output, context.inputs
    if output.kind == BINARY:
        unpack = [partial(unpack_last, last=value.shape[-1]) for value in inputs]
        return lambda arrays: pack_last(np.concatenate(_each(unpack, arrays), axis))
    converts = [to_float(value) if output.kind == FLOAT else np.asarray for value in inputs]
    return lambda arrays: np.concatenate(_each(converts, arrays), axis)


def _each(functions: Sequence[Activation], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [function(array) for function, array in zip(functions, arrays, strict=True)]


def _join(join: np.ufunc, context: Context) -> Step:
    converts = [to_float(value) for value in context.inputs]
    return lambda arrays: reduce(join, _each(converts, arrays))


add, subtract, multiply = (partial(_join, each) for each in (np.add, np.subtract, np.multiply))
