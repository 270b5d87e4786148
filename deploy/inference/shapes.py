"""Shapes of the values of a graph, and what its steps share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hookline.deploy.inference.bits import Backend, pack_last, stream_bytes, unpack_last, unpack_stream
from hookline.deploy.inference.graph import CODEBOOK, FLOAT16, SIGN, Encoded, Graph, Op
from hookline.trainer.errors import UserError

FLOAT, INTEGER, BINARY = "float", "integer", "binary"
MAX_ENTRIES = 2**28
"""Of a value of one example: 1 GiB in float32."""
MAX_TERMS = 2**24
"""Of a sum of signs: float32 holds no larger integers exactly."""


@dataclass(frozen=True)
class Value:
    """Describe a value.

    Attributes:
        shape: of one example.
        kind: "float", "integer" (exact sums of signs) or "binary" (-1 and +1).
        group: of a binary value: signs along the last axis that are packed together, each group in whole bytes.
    """

    shape: tuple[int, ...]
    kind: str
    group: int = 0


class ShapeInference:
    """Infer the kinds and shapes of a graph's values, and check that each array fits where it is used."""

    def __init__(self, graph: Graph, tensors: Mapping[str, np.ndarray]) -> None:
        """Take what is checked."""
        self._graph, self._tensors = graph, tensors
        self._used: set[str] = set()
        self.values: dict[str, Value] = {}

    def run(self) -> dict[str, Value]:
        """Return the values by name."""
        graph = self._graph
        self.values[graph.input_name] = _checked("the input", Value(graph.input_shape, FLOAT))
        for op in graph.ops:
            owner = f"{op.op} {op.name!r}"
            for name in op.inputs:
                if name not in self.values:
                    raise UserError(f"Input {name!r:.60} of {owner} is not a value before it.")
            if op.output in self.values:
                raise UserError(f"Output {op.output!r:.60} of {owner} exists already.")
            self.values[op.output] = _checked(owner, self._infer(owner, op))
        self._check_ends()
        return self.values

    def _check_ends(self) -> None:
        graph = self._graph
        if graph.output not in self.values or graph.output == graph.input_name:
            raise UserError(f"The output {graph.output!r:.60} is not a value that an operation gives.")
        if unused := sorted(self._tensors.keys() - self._used):
            raise UserError(f"Array {unused[0]!r:.60} is used by no operation.")
        if graph.classes is not None and len(graph.classes) != self.values[graph.output].shape[-1]:
            count = self.values[graph.output].shape[-1]
            raise UserError(f"{len(graph.classes)} classes are named. Expected {count}, as the output has.")

    def _infer(self, owner: str, op: Op) -> Value:
        inputs = [self.values[name] for name in op.inputs]
        if op.op in ("add", "multiply", "subtract", "concatenate"):
            if len(inputs) < 2 or (op.op == "subtract" and len(inputs) > 2):
                raise UserError(f"{owner} has {len(inputs)} inputs. Expected two{'' if op.op == 'subtract' else '+'}.")
            return _concatenate(owner, op, inputs) if op.op == "concatenate" else _broadcast(owner, inputs)
        if len(inputs) != 1:
            raise UserError(f"{owner} has {len(inputs)} inputs. Expected one.")
        if op.op in ("dense", "conv2d", "depthwise_conv2d"):
            return self._kernel_layer(owner, op, inputs[0])
        if op.op == "threshold":
            self._check_thresholds(owner, op, inputs[0])
        if op.op == "scale_shift":
            for key in ("scale", "shift"):
                self._array(owner, op.fields[key], np.float32, inputs[0].shape[-1:])
        return _of_one(owner, op, inputs[0])

    def _kernel_layer(self, owner: str, op: Op, value: Value) -> Value:
        kernel: Encoded = op.fields["kernel"]
        bias: Encoded | None = op.fields["bias"]
        rank = 2 if op.op == "dense" else 4
        if len(kernel.shape) != rank:
            raise UserError(f"The kernel of {owner} has shape {kernel.shape}. Expected {rank} axes.")
        _check_rank(owner, value, 1 if rank == 2 else 3, exact=rank == 4)
        if kernel.shape[-2] != value.shape[-1]:
            raise UserError(f"The kernel of {owner} takes {kernel.shape[-2]} channels. Received: {value.shape[-1]}.")
        self._encoded(f"kernel of {owner}", kernel)
        filters = kernel.shape[-1] * (kernel.shape[-2] if op.op == "depthwise_conv2d" else 1)
        if bias is not None:
            self._encoded(f"bias of {owner}", bias)
            if bias.shape != (filters,):
                raise UserError(f"The bias of {owner} has shape {bias.shape}. Expected ({filters},).")
        exact = value.kind == BINARY and kernel.encoding == SIGN and op.op != "depthwise_conv2d"
        if exact and math.prod(kernel.shape[:-1]) > MAX_TERMS:
            raise UserError(f"{owner} adds up {math.prod(kernel.shape[:-1]):,} signs. Expected {MAX_TERMS:,} at most.")
        kind = INTEGER if exact and kernel.scale is None and bias is None else FLOAT
        if rank == 2:
            return Value((*value.shape[:-1], filters), kind)
        return Value((*_slide(owner, value.shape, kernel.shape[:2], op), filters), kind)

    def _encoded(self, what: str, encoded: Encoded) -> None:
        count = math.prod(encoded.shape)
        if encoded.encoding == SIGN:
            self._array(what, encoded.tensor, np.uint8, (stream_bytes(count, 1),))
            if encoded.scale is not None:
                scale = self._array(what, encoded.scale, np.float32)
                if scale.shape not in {(1,), encoded.shape[-1:]}:
                    raise UserError(f"The scale of the {what} has shape {scale.shape}. Expected one per channel.")
        elif encoded.encoding == CODEBOOK:
            assert encoded.bits
            assert encoded.values
            stream = self._array(what, encoded.tensor, np.uint8, (stream_bytes(count, encoded.bits),))
            values = self._array(what, encoded.values, np.float32)
            if values.ndim != 1 or not 0 < len(values) <= 2**encoded.bits:
                raise UserError(f"The {what} has {values.shape} values. Expected 1 to {2**encoded.bits}.")
            _check_indices(what, stream, count, encoded.bits, len(values))
        else:
            dtype = np.float16 if encoded.encoding == FLOAT16 else np.float32
            self._array(what, encoded.tensor, dtype, encoded.shape)

    def _check_thresholds(self, owner: str, op: Op, value: Value) -> None:
        if value.kind != INTEGER:
            raise UserError(f"The input of {owner} is of kind {value.kind}. Expected integer sums; use sign.")
        array = self._array(owner, op.fields["thresholds"])
        if array.dtype not in (np.int8, np.int16, np.int32) or array.shape != value.shape[-1:]:
            raise UserError(f"The thresholds of {owner} are {array.dtype} {array.shape}. Expected an int per channel.")
        if (descending := op.fields["descending"]) is not None:
            self._array(owner, descending, np.uint8, (stream_bytes(value.shape[-1], 1),))

    def _array(
        self, what: str, name: str, dtype: type[np.generic] | None = None, shape: tuple[int, ...] | None = None
    ) -> np.ndarray:
        if name not in self._tensors:
            raise UserError(f"Array {name!r:.60} of {what} is not in the file.")
        self._used.add(name)
        array = self._tensors[name]
        if (dtype is not None and array.dtype != dtype) or (shape is not None and array.shape != shape):
            wanted = f"{np.dtype(dtype).name if dtype else ''} {shape if shape is not None else ''}".strip()
            raise UserError(f"Array {name!r:.60} of {what} is {array.dtype} {array.shape}. Expected {wanted}.")
        return array


def infer(graph: Graph, tensors: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """Return descriptions of a graph's values, by name."""
    return ShapeInference(graph, tensors).run()


def window_pads(size: int, window: int, stride: int, dilation: int, padding: str) -> tuple[int, int, int]:
    """Return how often a window fits along an axis, and the zeros before and after: TensorFlow's rule."""
    reach = dilation * (window - 1) + 1
    if padding == "valid":
        return (size - reach) // stride + 1, 0, 0
    count = -(-size // stride)
    total = max(0, (count - 1) * stride + reach - size)
    return count, total // 2, total - total // 2


def _checked(owner: str, value: Value) -> Value:
    if math.prod(value.shape) > MAX_ENTRIES:
        raise UserError(f"{owner} gives values of shape {value.shape}. Expected {MAX_ENTRIES:,} entries at most.")
    if value.kind == BINARY and not value.group:
        return Value(value.shape, BINARY, value.shape[-1])
    return value


def _check_rank(owner: str, value: Value, rank: int, *, exact: bool = True) -> None:
    if len(value.shape) < rank or (exact and len(value.shape) != rank):
        raise UserError(f"{owner} got values of shape {value.shape}. Expected {rank} axes.")


def _check_indices(what: str, stream: np.ndarray, count: int, bits: int, values: int) -> None:
    if values < 2**bits and count and int(unpack_stream(stream, count, bits).max()) >= values:
        raise UserError(f"The {what} refers to a value that it does not have.")


def _slide(owner: str, shape: Sequence[int], window: Sequence[int], op: Op) -> tuple[int, int]:
    dilation = op.fields.get("dilation", (1, 1))
    strides, padding = op.fields["strides"], op.fields["padding"]
    if max(strides) > 1 and max(dilation) > 1:
        raise UserError(f"{owner} has strides {strides} and dilation {dilation}. Expected one of them to be 1.")
    rows, columns = (window_pads(shape[i], window[i], strides[i], dilation[i], padding)[0] for i in (0, 1))
    if rows < 1 or columns < 1:
        raise UserError(f"The window of {owner} is larger than its input, {shape[0]} x {shape[1]}.")
    return rows, columns


def _of_one(owner: str, op: Op, value: Value) -> Value:
    """Return the output of an operation without a kernel."""
    shape, keep = value.shape, value.kind
    match op.op:
        case "sign" | "threshold":
            return Value(shape, BINARY)
        case "max_pool2d" | "average_pool2d":
            _check_rank(owner, value, 3)
            rows, columns = _slide(owner, shape, op.fields["pool_size"], op)
            return Value((rows, columns, shape[2]), keep if op.op == "max_pool2d" else FLOAT)
        case "global_max_pool2d" | "global_average_pool2d":
            _check_rank(owner, value, 3)
            return Value(shape[-1:], keep if op.op == "global_max_pool2d" else FLOAT)
        case "flatten":
            group = value.group if value.group % 8 else 0
            return Value((math.prod(shape),), keep, group)
        case "reshape":
            if math.prod(op.fields["shape"]) != math.prod(shape):
                raise UserError(f"{owner} gives {op.fields['shape']} from {shape}. Expected as many entries.")
            return Value(tuple(op.fields["shape"]), keep)
        case "zero_pad2d":
            _check_rank(owner, value, 3)
            rows, columns = (shape[i] + sum(op.fields["padding"][i]) for i in (0, 1))
            return Value((rows, columns, shape[2]), FLOAT)
        case "upsample2d":
            _check_rank(owner, value, 3)
            size = op.fields["size"]
            return Value((shape[0] * size[0], shape[1] * size[1], shape[2]), keep)
        case _:
            return Value(shape, FLOAT)


def _broadcast(owner: str, inputs: Sequence[Value]) -> Value:
    ranks = {len(each.shape) for each in inputs}
    try:
        shape = np.broadcast_shapes(*(each.shape for each in inputs))
    except ValueError:
        shape = None
    if shape is None or len(ranks) > 1:
        raise UserError(f"The inputs of {owner} have shapes {[each.shape for each in inputs]}. Expected one shape.")
    return Value(tuple(shape), FLOAT)


def _concatenate(owner: str, op: Op, inputs: Sequence[Value]) -> Value:
    axis, rank = op.fields["axis"], len(inputs[0].shape) + 1  # with the batch
    place = axis + rank if axis < 0 else axis
    shapes = [list(each.shape) for each in inputs]
    if not 1 <= place < rank or any(len(each) != rank - 1 for each in shapes):
        raise UserError(f"{owner} got axis {axis} and shapes {shapes}. Expected an axis that all have, not the batch.")
    total = sum(each[place - 1] for each in shapes)
    rests = {(*each[: place - 1], *each[place:]) for each in shapes}
    if len(rests) > 1:
        raise UserError(f"The inputs of {owner} have shapes {shapes}. Expected them to differ along axis {axis} only.")
    kinds = {each.kind for each in inputs}
    shape = (*shapes[0][: place - 1], total, *shapes[0][place:])
    return Value(shape, kinds.pop() if len(kinds) == 1 else FLOAT)


Convert = Callable[[np.ndarray], np.ndarray]
Step = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Computes a value from others, each [batch, ...]: float32, int32, or signs packed along the last axis."""


@dataclass(frozen=True)
class Context:
    """Hold the parts of a step.

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
    """Return the conversion of a value to float32 [batch, *shape]."""
    if value.kind == FLOAT:
        return lambda array: array
    if value.kind == BINARY:
        return lambda array: to_signs(array, value).astype(np.float32)
    return lambda array: array.astype(np.float32)


def to_signs(array: np.ndarray, value: Value) -> np.ndarray:
    """Return packed signs as -1 and +1: int8 [batch, *shape]."""
    signs = unpack_last(array, value.group, value.shape[-1]).view(np.int8)
    signs += signs
    signs -= 1
    return signs


def pack(positive: np.ndarray, value: Value) -> np.ndarray:
    """Return signs packed as a binary value has them."""
    return pack_last(positive, value.group)
