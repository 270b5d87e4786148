"""Probabilities and their logits, without TensorFlow: prediction on NumPy uses them."""

from __future__ import annotations

from typing import Any

import numpy as np

SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = 1.0 - 2.0**-24  # the float32 before 1
TOLERANCE = 1e-2  # of a sum: probabilities may be in half precision, or in 8 bits


def are_probabilities(outputs: np.ndarray) -> bool:
    """Return whether the outputs of each example lie in [0, 1] and add up to 1.

    Args:
        outputs: [examples, ...], at least one example.
    """
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    wide = outputs.astype(np.float64)
    return bool((wide >= 0.0).all() and (wide <= 1.0).all() and (np.abs(wide.sum(axis=1) - 1.0) < TOLERANCE).all())


def as_logits(outputs: Any, activation: str | None, ops: Any = np) -> Any:
    """Return logits whose activation gives the outputs; of a softmax those with a log-sum-exp of 0.

    Args:
        outputs: [..., classes].
        activation: "softmax" or "sigmoid"; None if the outputs are logits.
        ops: what computes: NumPy, or `keras.ops`.
    """
    if activation is None:
        return outputs
    if activation == "softmax":
        return ops.log(ops.clip(outputs, SMALLEST, 1.0))
    inside = ops.clip(outputs, SMALLEST, LARGEST)
    return ops.log(inside) - ops.log1p(-inside)
