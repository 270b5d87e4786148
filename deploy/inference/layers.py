"""The steps of operations in NumPy: windows, layers with a kernel, and the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from hookline.deploy.inference.bits import NUMPY_BACKEND, WORD, as_words, pack_last, unpack_last
from hookline.deploy.inference.container import require
from hookline.deploy.inference.graph import (
    BINARY,
    FLOAT,
    INTEGER,
    SIGN,
    Activation,
    Context,
    Encoded,
    Made,
    Value,
    find_activation,
    to_float,
)

BLOCK = 2**20  # bytes of the rows that are built at a time
MAX_TERMS = 2**24  # most terms of a sum of signs: float32 does not represent larger integers exactly


@dataclass(frozen=True)
class Windows:
    """Describe the windows of a convolution or a pooling, along rows and columns."""

    size: tuple[int, int]  # of the input
    window: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: str  # "valid" or "same"

    @property
    def places(self) -> tuple[int, int]:
        """Return the number of windows along rows and columns."""
        return self.axis(0)[0], self.axis(1)[0]

    def axis(self, axis: int) -> tuple[int, int, int]:
        """Return the number of windows along an axis, and the padding before and after, by TensorFlow's rule."""
        size, stride = self.size[axis], self.strides[axis]
        reach = self.dilation[axis] * (self.window[axis] - 1) + 1
        if self.padding == "valid":
            return (size - reach) // stride + 1, 0, 0
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + reach - size)
        return count, total // 2, total - total // 2

    def inside(self, axis: int) -> np.ndarray:
        """Return the mask of the entries of each window that lie in the image: bool [windows, entries]."""
        count, before, _ = self.axis(axis)
        starts = np.arange(count)[:, None] * self.strides[axis] - before
        places = starts + np.arange(self.window[axis]) * self.dilation[axis]
        return (places >= 0) & (places < self.size[axis])

    def view(self, images: np.ndarray, fill: float = 0) -> np.ndarray:
        """Return the windows of padded images: [batch, rows, columns, ...window, channels], a view if possible."""
        (_, top, bottom), (_, left, right) = self.axis(0), self.axis(1)
        if top or bottom or left or right:
            images = np.pad(images, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
        reach = [dilation * (size - 1) + 1 for size, dilation in zip(self.window, self.dilation, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(images, reach, (1, 2))
        strided = windows[:, :: self.strides[0], :: self.strides[1], :, :: self.dilation[0], :: self.dilation[1]]
        return strided.transpose(0, 1, 2, 4, 5, 3)

    def rows(self, images: np.ndarray, multiple: int = 1) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield slices of images and of window rows, with their windows [images * rows * columns, entries]."""
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
                part = part.reshape(*part.shape[:4], -1)  # a row of a window is copied as one block of memory
                made = (np.zeros if length > entries else np.empty)((*part.shape[:3], length), images.dtype)
                made[..., :entries].reshape(part.shape)[:] = part
                yield slice(image, image + some_images), slice(row, row + some_rows), made.reshape(-1, length)


def windows_of(context: Context, window: Sequence[int]) -> Windows:
    """Return the windows of an operation on images."""
    fields, (rows, columns, _) = context.fields, context.input.shape
    dilation = fields.get("dilation", (1, 1))  # a pooling has none
    return Windows((rows, columns), (window[0], window[1]), fields["strides"], dilation, fields["padding"])


def _sums_signs(context: Context) -> bool:
    return context.input.kind == BINARY and context.fields["kernel"].encoding == SIGN


def _output(context: Context, places: Sequence[int], taken: int, filters: int, *, exact: bool = False) -> Value:
    """Return the output value of a layer with a kernel, after checking the shapes of kernel and bias."""
    kernel, bias, label = context.fields["kernel"], context.fields["bias"], context.op.label
    received, terms = context.input.shape[-1], math.prod(kernel.shape[:-1])
    require(taken == received, f"The kernel of {label} takes {taken} channels. Received: {received}.")
    require(not exact or terms <= MAX_TERMS, f"{label} adds up {terms:,} signs. Expected {MAX_TERMS:,} at most.")
    fits = bias is None or bias.shape == (filters,)
    require(fits, f"The bias of {label} has the wrong shape. Expected ({filters},).")
    return Value((*places, filters), INTEGER if exact and kernel.scale is None and bias is None else FLOAT)


def dense(context: Context) -> Made:
    """Return the step of a dense layer."""
    kernel: Encoded = context.fields["kernel"]
    (inputs, units), value, exact = kernel.shape, context.input, _sums_signs(context)
    output = _output(context, value.shape[:-1], inputs, units, exact=exact)
    finish = _finish(context, output)
    if exact:
        sums = context.backend.sums(as_words(_sign_bytes(context)), inputs)
        return output, lambda arrays: finish(sums(as_words(_as_rows(arrays[0])))).reshape(-1, *output.shape)
    convert = to_float(value)
    products = (context.backend if kernel.encoding == SIGN else NUMPY_BACKEND).products(context.unscaled(kernel))
    return output, lambda arrays: finish(products(_as_rows(convert(arrays[0])))).reshape(-1, *output.shape)


def conv2d(context: Context) -> Made:
    """Return the step of a convolution."""
    kernel: Encoded = context.fields["kernel"]
    (height, width, channels, filters), exact = kernel.shape, _sums_signs(context)
    windows = windows_of(context, (height, width))
    output = _output(context, windows.places, channels, filters, exact=exact)
    finish = _finish(context, output)
    convert, border = to_float(context.input), None
    if exact:
        convert, border = np.asarray, _border(context, windows)
        sums = context.backend.sums(as_words(_sign_bytes(context)), height * width * channels)
    else:
        weights = context.unscaled(kernel).reshape(-1, filters)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        images = convert(arrays[0])
        made = np.empty((len(images), *output.shape), np.int32 if output.kind == INTEGER else np.float32)
        for some, rows, patches in windows.rows(images, WORD if exact else 1):
            place = made[some, rows]
            found = (sums(patches.view(np.uint64)) if exact else patches @ weights).reshape(place.shape)
            place[:] = finish(found if border is None else border(found, rows))
        return made

    return output, step


def depthwise_conv2d(context: Context) -> Made:
    """Return the step of a depthwise convolution."""
    kernel: Encoded = context.fields["kernel"]
    height, width, channels, multiplier = kernel.shape
    if channels == 1:  # otherwise the file is older, and its kernel has Keras's shape
        channels = math.gcd(multiplier, context.input.shape[-1])
        multiplier //= channels
    windows = windows_of(context, (height, width))
    output = _output(context, windows.places, channels, channels * multiplier)
    weights = context.decode(kernel).reshape(height, width, channels, multiplier)
    convert, bias = to_float(context.input), _bias(context)

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        view = windows.view(convert(arrays[0]))
        made = np.zeros((*view.shape[:3], channels, multiplier), np.float32)
        for row, column in np.ndindex(height, width):
            made += view[:, :, :, row, column, :, None] * weights[row, column]
        made = made.reshape(len(made), *output.shape)
        return made if bias is None else made + bias

    return output, step


def _as_rows(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 2 else array.reshape(-1, array.shape[-1])


def _sign_bytes(context: Context) -> np.ndarray:
    """Return the signs of a kernel, packed in the layout of the inputs that they meet: uint8 [units, bytes]."""
    kernel: Encoded = context.fields["kernel"]
    inputs, units = kernel.shape[-2:]
    bits = context.numbers(kernel.tensor, math.prod(kernel.shape), 1).reshape(units, -1, inputs)
    return pack_last(bits).reshape(units, -1)


def _bias(context: Context) -> np.ndarray | None:
    bias = context.fields["bias"]
    return None if bias is None else context.decode(bias)


def _finish(context: Context, output: Value) -> Activation:
    """Return the function that applies scale and bias to sums; exact integers without either stay as they are."""
    scale, bias = context.scale(context.fields["kernel"]), _bias(context)

    def finish(sums: np.ndarray) -> np.ndarray:
        if output.kind == INTEGER:
            return sums
        found = sums.astype(np.float32, copy=False)
        if scale is not None:
            found = found * scale
        return found if bias is None else found + bias

    return finish


def _border(context: Context, windows: Windows) -> Callable[[np.ndarray, slice], np.ndarray] | None:
    """Return the correction of sums at the border, which adds back the weights of padding zeros counted as -1."""
    insides = windows.inside(0), windows.inside(1)
    if insides[0].all() and insides[1].all():
        return None
    weights = context.unscaled(context.fields["kernel"]).sum(axis=2, dtype=np.int64)
    (rows, row_of), (columns, column_of) = (np.unique(each, axis=0, return_inverse=True) for each in insides)
    outside = ~(rows[:, None, :, None] & columns[None, :, None, :])
    table = np.einsum("rcij,ijk->rck", outside.astype(np.int64), weights).astype(np.int32)
    row_of, column_of = row_of.reshape(-1), column_of.reshape(-1)
    return lambda sums, some: sums + table[row_of[some][:, None], column_of]


def max_pool2d(context: Context) -> Made:
    """Return the step of max pooling."""
    windows, kind = windows_of(context, context.fields["pool_size"]), context.input.kind
    largest: Any = np.bitwise_or if kind == BINARY else np.maximum
    lowest: Any = {BINARY: 0, INTEGER: np.iinfo(np.int32).min}.get(kind, -np.inf)
    output = Value((*windows.places, context.input.shape[-1]), kind)
    return output, lambda arrays: _pool(largest, windows, windows.view(arrays[0], lowest))


def average_pool2d(context: Context) -> Made:
    """Return the step of average pooling; padding does not count."""
    windows, convert = windows_of(context, context.fields["pool_size"]), to_float(context.input)
    counts = [windows.inside(axis).sum(axis=1, dtype=np.int64) for axis in (0, 1)]
    sizes = np.multiply.outer(*counts).astype(np.float32)[..., None]

    def step(arrays: Sequence[np.ndarray]) -> np.ndarray:
        made = _pool(np.add, windows, windows.view(convert(arrays[0])))
        made /= sizes
        return made

    return Value((*windows.places, context.input.shape[-1]), FLOAT), step


def _pool(function: np.ufunc, windows: Windows, view: np.ndarray) -> np.ndarray:
    """Return the reduction of each window by a ufunc, one entry after the other."""
    made = view[:, :, :, 0, 0].copy()
    for row, column in list(np.ndindex(*windows.window))[1:]:
        function(made, view[:, :, :, row, column], out=made)
    return made


def global_max_pool2d(context: Context) -> Made:
    """Return the step of global max pooling."""
    _, _, channels = context.input.shape
    largest: Any = np.bitwise_or if context.input.kind == BINARY else np.maximum
    return Value((channels,), context.input.kind), lambda arrays: largest.reduce(arrays[0], axis=(1, 2))


def global_average_pool2d(context: Context) -> Made:
    """Return the step of global average pooling."""
    _, _, channels = context.input.shape
    convert = to_float(context.input)
    return Value((channels,), FLOAT), lambda arrays: convert(arrays[0]).mean(axis=(1, 2), dtype=np.float32)


def sign(context: Context) -> Made:
    """Return the step of the sign function, +1 at 0."""
    output = Value(context.input.shape, BINARY)
    if context.input.kind == BINARY:
        return output, lambda arrays: arrays[0]
    convert = to_float(context.input)
    return output, lambda arrays: pack_last(convert(arrays[0]) >= 0)


def threshold(context: Context) -> Made:
    """Return the step from integers to signs: +1 at or above the threshold, or, if descending, at or below it."""
    fields, value = context.fields, context.input
    is_sum = value.kind == INTEGER
    require(is_sum, f"The input of {context.op.label} is of kind {value.kind}. Expected integer sums; use sign.")
    thresholds = context.array(fields["thresholds"], value.shape[-1:], np.int8, np.int16, np.int32)
    limits, output = np.clip(thresholds.astype(np.int32), -MAX_TERMS - 1, MAX_TERMS + 1), Value(value.shape, BINARY)
    if fields["descending"] is None:
        return output, lambda arrays: pack_last(arrays[0] >= limits)
    descending = context.numbers(fields["descending"], len(limits), 1)
    lowest = limits + descending  # x <= t is the negation of x >= t + 1
    turned = pack_last(descending)
    return output, lambda arrays: pack_last(arrays[0] >= lowest) ^ turned


def pointwise(context: Context) -> Made:
    """Return the step of a function that keeps the shape, such as an activation."""
    function, convert = _function(context), to_float(context.input)
    return Value(context.input.shape, FLOAT), lambda arrays: function(convert(arrays[0]))


def _function(context: Context) -> Activation:
    fields = context.fields
    match context.op.op:
        case "round":  # DoReFa-Net's activations: levels i / n in [0, 1], n = 2^bits - 1, rounded half to even
            steps = np.float32(2 ** fields["bits"] - 1)
            return lambda x: np.rint(np.clip(x, 0.0, 1.0) * steps) * (np.float32(1) / steps)
        case "ternary":
            limit = np.float32(fields["threshold"])
            return lambda x: np.subtract(x > limit, x < -limit, dtype=np.float32)
        case "scale_shift":
            channels = context.input.shape[-1:]
            scale, shift = (context.array(fields[key], channels, np.float32) for key in ("scale", "shift"))
        case "prelu":
            slopes = context.array(fields["slopes"], context.input.shape[-1:], np.float32)
            return lambda x: np.where(x < 0, slopes * x, x)
        case "rescale":
            scale, shift = (np.array(fields[key], np.float32) for key in ("scale", "offset"))
        case _:
            return find_activation(fields["function"], fields["slope"])
    return lambda x: x * scale + shift


def reshape(context: Context) -> Made:
    """Return the step that reshapes values, with entries in the same order."""
    before, kind = context.input.shape, context.input.kind
    shape = context.fields.get("shape", (math.prod(before),))
    is_same = math.prod(shape) == math.prod(before)
    require(is_same, f"{context.op.label} gives {shape} from {before}. Expected the same number of entries.")
    output, last = Value(shape, kind), before[-1]
    if kind != BINARY:
        return output, lambda arrays: arrays[0].reshape(-1, *shape)
    if last == shape[-1] or (last % 8 == 0 and shape[-1] % 8 == 0):  # the packed bytes do not change
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
    require(axis % joined.ndim != 0, f"{context.op.label} got axis {axis}. Expected any but the batch axis.")
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
