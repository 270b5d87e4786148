"""Activations as Keras defines them, in NumPy and in the precision of their input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, "Self-Normalizing Neural Networks", arXiv 1706.02515."""
SLOPES = {"leaky_relu": 0.2, "elu": 1.0}
"""What stands where no slope is given: Keras's defaults of `negative_slope` and `alpha`."""

Activation = Callable[[np.ndarray], np.ndarray]


def find_activation(function: str, slope: float | None) -> Activation:
    """Return an activation: float32 [...] to float32 [...].

    Args:
        function: a key of ACTIVATIONS.
        slope: of "leaky_relu" and "elu"; None for Keras's default.
    """
    if function in SLOPES:
        factor = SLOPES[function] if slope is None else slope
        return lambda x: _with_slope(function, x, factor)
    return ACTIVATIONS[function]


def _with_slope(function: str, x: np.ndarray, slope: float) -> np.ndarray:
    below = x if function == "leaky_relu" else np.expm1(np.minimum(x, 0.0))
    return np.where(x < 0, slope * below, x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-_softplus(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.float32(0))


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


ACTIVATIONS: dict[str, Activation] = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: _with_slope("leaky_relu", x, SLOPES["leaky_relu"]),
    "elu": lambda x: _with_slope("elu", x, SLOPES["elu"]),
    "selu": lambda x: SELU_SCALE * _with_slope("elu", x, SELU_ALPHA),
    "tanh": np.tanh,
    "hard_tanh": lambda x: np.clip(x, -1.0, 1.0),
    "sigmoid": _sigmoid,
    "hard_sigmoid": _hard_sigmoid,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softplus": _softplus,
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "exponential": np.exp,
    "silu": lambda x: x * _sigmoid(x),
    "hard_silu": lambda x: x * _hard_sigmoid(x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
}
