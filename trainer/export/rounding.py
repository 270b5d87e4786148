"""Whether a packed network predicts something else than its run because of rounding alone."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from trainer.export.describe import described_op
from trainer.graph import as_functional, is_graph
from trainer.inference.engine import Model

TOLERANCE = 1e-4  # of the largest magnitude that the tensor has for the example


def differ_by_rounding(model: keras.Model, packed: Model, inputs: np.ndarray) -> np.ndarray:
    """Return for which examples the outputs of a model and of its packed form differ by the order of additions alone.

    Sums of signs are exact, so what differs begins at a float sum. A sum next to 0 may get another sign, as it may in
    the model itself on another machine, or in a batch of another size; everything behind it is another example then.
    So the first signs that differ have to be those of values next to 0, and where no sign differs, outputs have to be
    as near to each other.

    Args:
        model: with the values in its variables that the file holds.
        packed: read from the file.
        inputs: float32 [batch, ...].

    Returns:
        bool [batch].
    """
    before, expected = _signed_values(model, inputs)
    names = [op.output for op in packed.graph.ops if op.output in before and packed.values[op.output].kind == "binary"]
    outputs, signs = packed.run(inputs, keep=names)
    differs = np.zeros(len(inputs), bool)  # at a sign so far
    rounds = np.ones(len(inputs), bool)
    for name in names:
        values = before[name]
        other = (signs[name] > 0) != (values >= 0)
        far = np.abs(values) > TOLERANCE * _largest(values)
        rounds &= differs | ~_any(other & far)
        differs |= _any(other)
    near = ~_any(np.abs(outputs - expected) > TOLERANCE * _largest(expected))
    return np.asarray(rounds & (differs | near))


def _any(flags: np.ndarray) -> np.ndarray:
    return np.asarray(flags.reshape(len(flags), -1).any(axis=1))


def _largest(values: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each example, in a shape that broadcasts."""
    return np.asarray(np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True))


def _signed_values(model: keras.Model, inputs: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return what a model takes the sign of, by the names that the values of `keras_graph` have, and its outputs."""
    found: dict[str, np.ndarray] = {}

    def run(graph: keras.Model, tensors: list[Any], prefix: str) -> Any:
        def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
            path = prefix + operation.name
            if is_graph(operation):
                return run(operation, keras.tree.flatten(args), f"{path}/")
            if (described_op(operation) or {}).get("op") == "sign":
                count = sum(name == path or name.startswith(f"{path}:") for name in found) + 1
                found[path if count == 1 else f"{path}:{count}"] = np.asarray(args[0])
            return operation(*args, **kwargs)

        return as_functional(graph)._run_through_graph(tensors, call_fn=call)

    outputs = run(model, [keras.ops.convert_to_tensor(inputs, "float32")], "")
    return found, np.asarray(keras.tree.flatten(outputs)[0])
