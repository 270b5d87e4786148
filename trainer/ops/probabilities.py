"""Probabilities and their logits, without TensorFlow, as prediction with NumPy requires."""

from __future__ import annotations

from typing import Any

import numpy as np

SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = 1.0 - 2.0**-24  # the largest float32 below 1
TOLERANCE = 1e-2  # of the sum: probabilities may be in half precision or in 8 bits


def are_probabilities(outputs: np.ndarray) -> bool:
    """Return whether outputs are [examples, 2 or more], lie in [0, 1], and add up to 1 for each example.

    Args:
        outputs: [examples, ...], at least one example.
    """
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    wide = outputs.astype(np.float64)
    return bool((wide >= 0.0).all() and (wide <= 1.0).all() and (np.abs(wide.sum(axis=1) - 1.0) < TOLERANCE).all())


def as_logits(outputs: Any, activation: str | None, ops: Any = np) -> Any:
    """Return logits that the activation maps to the outputs; for softmax, those with a log-sum-exp of 0.

    Args:
        outputs: [..., classes].
        activation: "softmax" or "sigmoid"; None if the outputs are logits.
        ops: the array module to compute with: NumPy or `keras.ops`.
    """
    if activation is None:
        return outputs
    if activation == "softmax":
        return ops.log(ops.clip(outputs, SMALLEST, 1.0))
    inside = ops.clip(outputs, SMALLEST, LARGEST)
    return ops.log(inside) - ops.log1p(-inside)
