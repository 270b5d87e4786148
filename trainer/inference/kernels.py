"""Kernels and biases as the file encodes them, decoded."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from trainer.inference.bits import from_order, pack_last, unpack_stream
from trainer.inference.graph import CODEBOOK, SIGN, Encoded


def decode(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the values, scales included: float32, in Keras's shape.

    Args:
        encoded: checked.
        tensors: by name.
    """
    if encoded.encoding != SIGN:
        return unscaled(encoded, tensors)
    return unscaled(encoded, tensors) * scale_of(encoded, tensors)


def unscaled(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the values without their scale: float32, in Keras's shape; signs are -1 and +1.

    Args:
        encoded: checked.
        tensors: by name.
    """
    stored = tensors[encoded.tensor]
    count = math.prod(encoded.shape)
    if encoded.encoding == SIGN:
        values = unpack_stream(stored, count, 1).astype(np.float32)
        values += values
        values -= 1.0
    elif encoded.encoding == CODEBOOK:
        assert encoded.bits
        assert encoded.values
        values = tensors[encoded.values][unpack_stream(stored, count, encoded.bits)]
    else:
        return stored.astype(np.float32)
    return np.ascontiguousarray(from_order(values, encoded.shape))


def scale_of(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the scale of signs: float32 [1] or [channels].

    Args:
        encoded: checked.
        tensors: by name.
    """
    return np.ones(1, np.float32) if encoded.scale is None else tensors[encoded.scale].astype(np.float32)


def sign_bytes(encoded: Encoded, tensors: Mapping[str, np.ndarray], group: int) -> np.ndarray:
    """Return the signs of a kernel, packed as the signs that they meet: uint8 [units, bytes].

    Args:
        encoded: checked, of signs.
        tensors: by name.
        group: signs of an input that are packed together.
    """
    units = encoded.shape[-1]
    bits = unpack_stream(tensors[encoded.tensor], math.prod(encoded.shape), 1).reshape(units, -1, group)
    return pack_last(bits, group).reshape(units, -1)
