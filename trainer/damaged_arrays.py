"""What reading a damaged npy or npz file may raise."""

from __future__ import annotations

import zipfile
import zlib
from tokenize import TokenError

ARRAY_FAULTS = (
    *(OSError, EOFError, RuntimeError, MemoryError, ValueError, TypeError, KeyError, SyntaxError),
    *(TokenError, zipfile.BadZipFile, zlib.error),
)
"""By the system, by NumPy, by Python's parser, which reads headers, by zip (NotImplementedError is a RuntimeError)."""
