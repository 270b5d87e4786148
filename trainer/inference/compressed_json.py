"""JSON values as a compressed array, and back, without more memory than was agreed on."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from trainer.inference.container import DamagedError
from trainer.inference.strict_json import from_json, to_json

MAX_BYTES = 2**22
"""Of the text: as much as the header of a file may have."""


def compress_json(value: Any) -> np.ndarray:
    """Return JSON values as a zlib stream.

    Args:
        value: of JSON's types.

    Returns:
        uint8 [bytes].

    Raises:
        ValueError: a number is NaN or infinite, or the text is longer than `MAX_BYTES`.
    """
    text = to_json(value).encode("ascii")
    if len(text) > MAX_BYTES:
        raise ValueError(f"The text has {len(text):,} bytes. Expected {MAX_BYTES:,} at most.")
    return np.frombuffer(zlib.compress(text, level=9), np.uint8)


def expand_json(stream: np.ndarray, what: str) -> Any:
    """Return the values that `compress_json` has compressed.

    Args:
        stream: of a file that nobody vouches for.
        what: it holds, for errors, such as "network".

    Raises:
        DamagedError: it is no such stream, or holds more than `MAX_BYTES`.
    """
    if stream.dtype != np.uint8 or stream.ndim != 1:
        raise DamagedError(f"its {what} is no stream of bytes.")
    expander = zlib.decompressobj()
    try:
        text = expander.decompress(stream.tobytes(), MAX_BYTES)
    except zlib.error as error:
        raise DamagedError(f"its {what} cannot be expanded ({error}).") from error
    if not expander.eof or expander.unused_data:
        raise DamagedError(f"its {what} does not end where its text of at most {MAX_BYTES:,} bytes does.")
    try:
        return from_json(text)
    except ValueError as error:
        raise DamagedError(f"its {what} cannot be read ({error}).") from error
