"""What a packed network gives, computed entry by entry in float64: slow, plain, and nothing shared with the engine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hookline.deploy.inference.graph import Encoded, Graph, Op

Arrays = dict[str, np.ndarray]


def bit_of(stream: np.ndarray, place: int) -> int:
    """Return bit number `place`, the lowest of a byte first."""
    return int(stream[place // 8]) >> (place % 8) & 1


def decode(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the values of a kernel or a bias, one by one."""
    if encoded.encoding in ("float32", "float16"):
        return tensors[encoded.tensor].astype(np.float64)
    width = encoded.bits or 1
    stream, found = tensors[encoded.tensor], np.zeros(encoded.shape)
    channels, rest = encoded.shape[-1], encoded.shape[:-1]
    place = 0
    for channel in range(channels):
        for entry in np.ndindex(*rest):
            index = sum(bit_of(stream, place + bit) << bit for bit in range(width))
            place += width
            if encoded.encoding == "codebook":
                value = float(tensors[encoded.values][index])
            else:
                scale = 1.0 if encoded.scale is None else np.broadcast_to(tensors[encoded.scale], channels)[channel]
                value = float(scale) * (1 if index else -1)
            found[(*entry, channel)] = value
    return found


def evaluate(graph: Graph, tensors: Mapping[str, np.ndarray], inputs: np.ndarray) -> Arrays:
    """Return every value of a graph in float64, signs as -1 and +1."""
    arrays: Arrays = {graph.input_name: inputs.astype(np.float64)}
    for op in graph.ops:
        taken = [arrays[name] for name in op.inputs]
        arrays[op.output] = np.stack([_one(op, tensors, [each[row] for each in taken]) for row in range(len(inputs))])
    return arrays


def _one(op: Op, tensors: Mapping[str, np.ndarray], taken: list[np.ndarray]) -> np.ndarray:
    """Return what an operation gives for one example."""
    x, fields = taken[0], op.fields
    match op.op:
        case "dense" | "conv2d" | "depthwise_conv2d":
            kernel = decode(fields["kernel"], tensors)
            bias = 0.0 if fields["bias"] is None else decode(fields["bias"], tensors)
            if op.op == "dense":
                return np.tensordot(x, kernel, 1) + bias
            return _convolve(x, kernel, fields, depthwise=op.op != "conv2d") + bias
        case "sign":
            return np.where(x >= 0, 1.0, -1.0)
        case "threshold":
            return _threshold(x, tensors[fields["thresholds"]], fields["descending"], tensors)
        case "scale_shift":
            return x * tensors[fields["scale"]].astype(float) + tensors[fields["shift"]].astype(float)
        case "rescale":
            return x * fields["scale"] + fields["offset"]
        case "max_pool2d" | "average_pool2d":
            return _pool(x, fields, np.max if op.op == "max_pool2d" else np.mean)
        case "global_max_pool2d" | "global_average_pool2d":
            pool = np.max if "max" in op.op else np.mean
            return np.array([pool(x[..., channel]) for channel in range(x.shape[-1])])
        case "flatten":
            return np.array(list(x.flat))
        case "reshape":
            return np.array(list(x.flat)).reshape(fields["shape"])
        case "add":
            return sum(taken[1:], start=taken[0])
        case "multiply":
            return math.prod(taken[1:], start=taken[0])
        case "subtract":
            return taken[0] - taken[1]
        case "concatenate":
            return np.concatenate(taken, fields["axis"] - 1 if fields["axis"] > 0 else fields["axis"])
        case "zero_pad2d":
            return np.pad(x, (*fields["padding"], (0, 0)))
        case "upsample2d":
            return np.kron(x, np.ones((*fields["size"], 1)))
    raise AssertionError(op.op)


def _threshold(x: np.ndarray, limits: np.ndarray, descending: str | None, tensors: Any) -> np.ndarray:
    found = np.empty_like(x)
    for place in np.ndindex(*x.shape):
        channel = place[-1]
        falls = descending is not None and bit_of(tensors[descending], channel)
        above = x[place] <= limits[channel] if falls else x[place] >= limits[channel]
        found[place] = 1.0 if above else -1.0
    return found


def _places(size: int, window: int, stride: int, dilation: int, padding: str) -> list[list[int]]:
    """Return the places that each window looks at; those outside are below 0 or not below the size."""
    reach = (window - 1) * dilation + 1
    if padding == "valid":
        starts = list(range(0, size - reach + 1, stride))
    else:
        count = math.ceil(size / stride)
        starts = [each * stride - max((count - 1) * stride + reach - size, 0) // 2 for each in range(count)]
    return [[start + each * dilation for each in range(window)] for start in starts]


def _windows(x: np.ndarray, window: tuple[int, ...], fields: Mapping[str, Any]) -> list[list[list[list[int]]]]:
    dilation = fields.get("dilation", (1, 1))
    return [
        _places(x.shape[axis], window[axis], fields["strides"][axis], dilation[axis], fields["padding"])
        for axis in (0, 1)
    ]


def _convolve(x: np.ndarray, kernel: np.ndarray, fields: Mapping[str, Any], *, depthwise: bool) -> np.ndarray:
    rows, columns = _windows(x, kernel.shape[:2], fields)
    filters = kernel.shape[2] * kernel.shape[3] if depthwise else kernel.shape[3]
    found = np.zeros((len(rows), len(columns), filters))
    for i, j in itertools.product(range(len(rows)), range(len(columns))):
        for (a, row), (b, column) in itertools.product(enumerate(rows[i]), enumerate(columns[j])):
            if 0 <= row < x.shape[0] and 0 <= column < x.shape[1]:
                seen = x[row, column]
                found[i, j] += (seen[:, None] * kernel[a, b]).ravel() if depthwise else seen @ kernel[a, b]
    return found


def _pool(x: np.ndarray, fields: Mapping[str, Any], function: Any) -> np.ndarray:
    rows, columns = _windows(x, fields["pool_size"], fields)
    found = np.zeros((len(rows), len(columns), x.shape[2]))
    for i, j, channel in itertools.product(range(len(rows)), range(len(columns)), range(x.shape[2])):
        inside = itertools.product(rows[i], columns[j])
        seen = [x[row, column, channel] for row, column in inside if 0 <= row < x.shape[0] and 0 <= column < x.shape[1]]
        found[i, j, channel] = function(seen)
    return found
