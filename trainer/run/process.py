"""The memory of a run's process: its peak, its end, what is released after a run; and what can be left out."""

from __future__ import annotations

import re
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import tensorflow as tf
from tensorflow.python.framework import ops

from hookline.trainer.errors import UserError

UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in which the system counts ru_maxrss."""


def peak_memory_bytes() -> dict[str, int | None]:
    """Return the most bytes that were held at one time since the process began, by place."""
    gpus = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices("GPU")]
    peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in gpus]
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
    return {"host": held, "device": max(peaks, default=None)}


Value = TypeVar("Value")


def estimated(what: str, estimate: Callable[[], Value], otherwise: Value) -> Value:
    """Return an estimate; if it fails, warn in one line and return a substitute."""
    try:
        return estimate()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason to lose a run
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{what} cannot be estimated and is left out ({reason}). Training is not affected.", stacklevel=2)
        return otherwise


OF_MEMORY = re.compile(r"\bOOM\b|out of memory", re.IGNORECASE)
"""Distinguishes running out of memory from other exhausted resources in TensorFlow, such as disk space."""
ARRAY = re.compile(r"shape ?[\[(]([\d, ]+)[\])] and (?:data )?type (\w+)")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise a `UserError` where memory was not enough for a tensor of TensorFlow or an array of NumPy."""
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        text = str(error)
        if isinstance(error, tf.errors.OpError) and not OF_MEMORY.search(text):
            raise
        found = ARRAY.search(text)
        asked = f" for a tensor of shape [{re.sub(r' *, *', ', ', found[1])}], {found[2]}" if found else ""
        raise UserError(
            f"There is not enough memory{asked}. Expected a smaller trainer.batch_size, more "
            "trainer.accumulation_steps, smaller inputs or a smaller model."
        ) from error


CUSTOM = "CustomGradient-"
"""How TensorFlow names the gradient functions that `tf.custom_gradient` registers while a function is traced."""


@contextmanager
def released_graphs() -> Iterator[None]:
    """Unregister, at the end of the block, the gradient functions that were registered inside.

    Each `tf.custom_gradient` that is traced registers one for good, and it holds the whole graph around it; Keras's
    optimizers trace one in every step. There is no public API to remove them (TensorFlow 2.21). A function that was
    traced inside must not be differentiated afterwards.
    """
    registered = ops.gradient_registry._registry
    before = set(registered)
    try:
        yield
    finally:
        for name in [each for each in registered if each.startswith(CUSTOM) and each not in before]:
            del registered[name]
