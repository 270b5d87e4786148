"""The most memory that the process has held."""

from __future__ import annotations

import resource
import sys

import tensorflow as tf

UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in which the system counts ru_maxrss."""


def peak_memory_bytes() -> dict[str, int | None]:
    """Return the most bytes that were held at one time since the process began, by place.

    Returns:
        "host": resident memory of the process. "device": of the GPU that held the most; None without a GPU.
    """
    gpus = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices("GPU")]
    peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in gpus]
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
    return {"host": held, "device": max(peaks, default=None)}
