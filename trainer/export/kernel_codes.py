"""How the numbers of a kernel are written: one bit each, indices into a list of values, or floats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.inference.bits import encode_order, pack_stream
from trainer.inference.graph import CODEBOOK, SIGN

MOST_VALUES = 256


@dataclass(frozen=True)
class Code:
    """Hold numbers in the form in which they are written.

    Attributes:
        encoding: "sign", "codebook", "float32" or "float16".
        shape: of the numbers.
        data: uint8 bits for the first two, else floats of the shape.
        extra: float32; scales of a sign, one for all or one a channel, values of a codebook; None without.
        bits: per number, what `extra` takes not counted.
    """

    encoding: str
    shape: tuple[int, ...]
    data: np.ndarray
    extra: np.ndarray | None
    bits: int

    @property
    def bytes(self) -> int:
        """Return the bytes of the data and of what belongs to it."""
        return int(self.data.nbytes + (0 if self.extra is None else self.extra.nbytes))


def encode(values: np.ndarray, *, half: bool = False) -> Code:
    """Return the smallest exact form of numbers; of several as small, the one with the fewest bits.

    Args:
        values: float32, finite, of any shape; the last axis tells channels apart.
        half: whether floats are rounded to float16; what has a sign or a codebook stays exact.
    """
    values = np.asarray(values, np.float32)
    found = [each for each in (_signs(values), _codebook(values)) if each is not None]
    return min([*found, encode_floats(values, half=half)], key=lambda code: code.bytes)


def encode_floats(values: np.ndarray, *, half: bool = False) -> Code:
    """Return numbers as float32 or float16.

    Args:
        values: float32, of any shape.
        half: whether they are rounded to float16; one that is too large for it becomes infinite.
    """
    dtype = np.dtype(np.float16 if half else np.float32)
    return Code(dtype.name, values.shape, values.astype(dtype), None, 8 * dtype.itemsize)


def sign_scale(values: np.ndarray) -> np.ndarray | None:
    """Return the magnitude that all numbers of a kernel have, [1], or each channel's, [channels]; None without one.

    Args:
        values: float32, of any shape; the last axis tells channels apart.
    """
    if values.ndim == 0 or values.size == 0:
        return None
    rows = np.abs(values.reshape(-1, values.shape[-1]))
    if (rows != rows[0]).any():
        return None
    return rows[0][:1] if (rows[0] == rows[0][0]).all() else rows[0]


def _signs(values: np.ndarray) -> Code | None:
    scale = sign_scale(values)
    if scale is None:
        return None
    stored = None if scale.size == 1 and scale[0] == 1.0 else scale
    return Code(SIGN, values.shape, pack_stream(encode_order(values >= 0.0), 1), stored, 1)


def _codebook(values: np.ndarray) -> Code | None:
    distinct, indices = np.unique(values, return_inverse=True)
    if not 0 < len(distinct) <= MOST_VALUES or values.ndim == 0:
        return None
    bits = max(1, int(len(distinct) - 1).bit_length())
    ordered = encode_order(indices.reshape(values.shape))
    return Code(CODEBOOK, values.shape, pack_stream(ordered, bits), distinct, bits)
