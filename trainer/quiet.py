"""Keep the screen clear: no start-up notices of TensorFlow, warnings as one line; errors still show."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hookline.trainer.deferred import defer_frameworks
from hookline.trainer.errors import one_line


def open_streams() -> None:
    """Open standard streams that were closed at the start, or the next file would get their number and their output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


@contextmanager
def quiet_start(*, errors: bool = True) -> Iterator[None]:
    """Import TensorFlow and look for devices; discard the notices that the C++ libraries print meanwhile."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if errors else "3")
    defer_frameworks()  # also packages of Keras that no run uses
    with silent():
        import tensorflow as tf

        tf.config.list_physical_devices()
        yield


@contextmanager
def silent() -> Iterator[None]:
    """Discard what is written to standard error inside the block, also by C++ libraries."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show a warning to the user as one line, without the place in the code that raised it."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *place, **more: f"Warning: {one_line(str(message))}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before
