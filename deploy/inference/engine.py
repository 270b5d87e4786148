"""Inference with a packed file on NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hookline.deploy.inference import layers
from hookline.deploy.inference.bits import NUMPY_BACKEND, Backend
from hookline.deploy.inference.container import PACKED, read_container, reading, require
from hookline.deploy.inference.graph import BINARY, FIELDS, FLOAT, Context, Graph, Made, Value, parse_graph, to_float
from hookline.trainer.errors import UserError, check_choice

NUMPY, NUMBA = "numpy", "numba"
CHUNK = 2**22  # bytes of the values of examples that run together
MAX_ENTRIES = 2**28  # most entries in a value of one example: 1 GiB in float32
STEPS: dict[str, Callable[[Context], Made]] = {op: getattr(layers, op, layers.pointwise) for op in FIELDS}
"""The builder of each operation's step: the function of the same name in `layers`, or else `pointwise`."""


class Model:
    """A network that runs on NumPy. Several threads may share one model.

    Attributes:
        graph: the graph of the network.
        values: descriptions of all values, by name.
    """

    def __init__(self, graph: Graph, tensors: Mapping[str, np.ndarray], backend: Backend = NUMPY_BACKEND) -> None:
        self.graph = graph
        self.values = {graph.input_name: _checked("the input", Value(graph.input_shape, FLOAT))}
        self._steps = []
        for op in graph.ops:
            require(op.output not in self.values, f"Output {op.output!r:.60} of {op.label} exists already.")
            inputs = tuple(self.values[name] for name in op.inputs)
            value, step = STEPS[op.op](Context(op, inputs, tensors, backend))
            self.values[op.output] = _checked(op.label, value)
            self._steps.append(step)
        last = {name: number for number, op in enumerate(graph.ops) for name in (*op.inputs, op.output)}
        last[graph.output] = len(graph.ops)
        self._spent: list[list[str]] = [[] for _ in range(len(graph.ops) + 1)]  # values to free after each step
        for name, number in last.items():
            self._spent[number].append(name)
        widest = max(sum(_bytes(self.values[name]) for name in (*op.inputs, op.output)) for op in graph.ops)
        self._examples = max(1, CHUNK // widest)
        classes, outputs = graph.classes, self.values[graph.output].shape[-1]
        fits = classes is None or len(classes) == outputs
        require(fits, f"The number of class names differs from the {outputs} outputs.")

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs: float32 [batch, ...].

        Args:
            inputs: real numbers [batch, *shape], prepared as in training.

        Raises:
            UserError: the inputs have another shape or are not numbers.
        """
        checked = self._check(inputs)
        chunks = range(0, max(1, len(checked)), self._examples)
        return np.concatenate([self._run(checked[start : start + self._examples]) for start in chunks])

    def _check(self, inputs: np.ndarray) -> np.ndarray:
        array = np.asarray(inputs)
        wanted = self.graph.input_shape
        if array.shape[1:] != wanted or array.ndim == 0 or array.dtype.kind not in "fiub":
            shape = ", ".join(str(each) for each in wanted)
            raise UserError(f"Inputs are {array.dtype} {array.shape}. Expected numbers of shape [batch, {shape}].")
        return array.astype(np.float32, order="C", copy=False)

    def _run(self, inputs: np.ndarray) -> np.ndarray:
        arrays = {self.graph.input_name: inputs}
        for op, step, spent in zip(self.graph.ops, self._steps, self._spent, strict=False):
            arrays[op.output] = step([arrays[name] for name in op.inputs])
            for name in spent:
                del arrays[name]
        return to_float(self.values[self.graph.output])(arrays[self.graph.output])


def load_model(path: str | Path, kernels: str = NUMPY) -> Model:
    """Return the model of a packed file.

    Args:
        path: path of the file.
        kernels: "numpy", or "numba" for compiled kernels.

    Raises:
        UserError: the file is not a valid packed file, or the kernels are unknown or not installed.
    """
    backend = find_backend(kernels)
    model, tensors = read_container(Path(path), PACKED)
    with reading(Path(path), "packed file"):
        return Model(parse_graph(model), tensors, backend)


def find_backend(kernels: str) -> Backend:
    """Return the backend for kernels of signs."""
    if check_choice("kernels", kernels, (NUMPY, NUMBA)) == NUMPY:
        return NUMPY_BACKEND
    from hookline.deploy.inference.compiled import NUMBA_BACKEND

    return NUMBA_BACKEND


def _checked(what: str, value: Value) -> Value:
    fits = all(length > 0 for length in value.shape) and math.prod(value.shape) <= MAX_ENTRIES
    require(fits, f"Values of {what} have shape {value.shape}. Expected 1 to {MAX_ENTRIES:,} entries.")
    return value


def _bytes(value: Value) -> int:
    if value.kind == BINARY:
        return math.prod(value.shape[:-1]) * -(-value.shape[-1] // 8)
    return 4 * math.prod(value.shape)
