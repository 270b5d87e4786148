"""Keep TensorFlow's start-up notices off the screen; errors still show."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_start() -> Iterator[None]:
    """Import TensorFlow and look for devices, with what the C++ libraries print meanwhile sent to nowhere.

    They print device notices before TensorFlow's own log level applies, and once more when devices are first looked
    for. A Python exception is not affected.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        import tensorflow as tf

        tf.config.list_physical_devices()
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
