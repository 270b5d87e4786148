"""The machine of a run: its precision, its memory, and global state that is released or restored after a run."""

from __future__ import annotations

import random
import re
import resource
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from hookline.trainer.errors import UserError
from hookline.trainer.run.directory import cpu_flags
from hookline.trainer.step.metrics import LossScale

FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"
POLICIES = {FLOAT32: "float32", FLOAT16: "mixed_float16", BFLOAT16: "mixed_bfloat16"}
"""Under a mixed policy latent variables, statistics and slots stay float32."""
NEEDED_CAPABILITY = {FLOAT16: (7, 0), BFLOAT16: (8, 0)}
"""The smallest compute capability at which NVIDIA GPUs have hardware units for a precision."""
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Set Keras's dtype policy for a precision within the block, and restore the previous one after it."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def describe_precision(precision: str, scale: LossScale | None) -> dict[str, Any]:
    """Return the entry "precision" of summary.json."""
    return {
        "compute": precision,
        "loss_scale": None if scale is None else float(scale.value),
        "overflow_steps": None if scale is None else int(scale.overflow_steps),
    }


def check_precision(precision: str, *, allow_slow: bool) -> None:
    """Refuse a precision that would be slower on this machine."""
    if precision == FLOAT32 or allow_slow:
        return
    gpus = [tf.config.experimental.get_device_details(device) for device in tf.config.list_physical_devices("GPU")]
    if reason := _why_slow(precision, cpu_flags(), gpus):
        raise UserError(
            f"trainer.precision={precision} received, but {reason}. Expected trainer.precision=float32 here; to try it "
            "anyway, set trainer.allow_slow_precision=true."
        )


def _why_slow(precision: str, flags: Collection[str], gpus: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why a precision is slower on a machine; None if it is faster."""
    needed = NEEDED_CAPABILITY[precision]
    for gpu in gpus:
        found = tuple(gpu.get("compute_capability") or (0, 0))
        if found < needed:
            has, wants = (".".join(map(str, each)) for each in (found, needed))
            name = gpu.get("device_name", "this GPU")
            return f"{name} has compute capability {has}, and {precision} is fast from {wants} on"
    if gpus:
        return None
    if precision == FLOAT16:
        return "a CPU has no fast float16 (convolutions were measured 6 to 8 times slower than in float32)"
    if not any(flag in flags for flag in BFLOAT16_FLAGS):
        missing = " nor ".join(BFLOAT16_FLAGS)
        return f"this CPU has neither {missing} (without them bfloat16 was measured 4 to 9 times slower than float32)"
    return None


def peak_memory_bytes() -> dict[str, int | None]:
    """Return the peak memory in bytes since the process began, of the host and the device."""
    gpus = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices("GPU")]
    peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in gpus]
    unit = 1 if sys.platform == "darwin" else 1024
    return {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "device": max(peaks, default=None)}


Value = TypeVar("Value")


def estimated(what: str, estimate: Callable[[], Value], otherwise: Value) -> Value:
    """Return the result of a function; if it fails, warn in one line and return a substitute."""
    try:
        return estimate()
    except Exception as error:  # noqa: BLE001 - no reason to lose a run
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{what} is left out ({reason}). Training is not affected.", stacklevel=2)
        return otherwise


OF_MEMORY = re.compile(r"\bOOM\b|out of memory", re.IGNORECASE)
"""Distinguishes running out of memory from other exhausted resources in TensorFlow, such as disk space."""
ARRAY = re.compile(r"shape ?[\[(]([\d, ]+)[\])] and (?:data )?type (\w+)")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn TensorFlow's and NumPy's out-of-memory errors into a `UserError`."""
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


@contextmanager
def released_graphs() -> Iterator[None]:
    """Unregister, at the end of the block, the gradient functions that were registered inside.

    For each `tf.custom_gradient` that is traced, TensorFlow registers one permanently, with the whole graph around it;
    Keras's optimizers trace one in every step. A function traced inside must not be differentiated afterwards.
    """
    registered = ops.gradient_registry._registry  # no public API removes them (TensorFlow 2.21)
    before = set(registered)
    try:
        yield
    finally:
        for name in [each for each in registered if each.startswith("CustomGradient-") and each not in before]:
            del registered[name]


KERAS_SEEDS = ("global_random_seed", "global_seed_generator")


@contextmanager
def kept_seeds() -> Iterator[None]:
    """Restore, after the block, what `keras.utils.set_random_seed` sets in Python, NumPy, Keras and TensorFlow."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what `set_random_seed` sets
    own = {name: global_state.get_global_attribute(name) for name in KERAS_SEEDS}
    eager = context.context()  # no public API returns the seed or what was drawn from it (TensorFlow 2.21)
    seed, drawn = eager._seed, getattr(eager, "_rng", None)  # each `set_seed` makes a new one
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for name, value in own.items():
            global_state.set_global_attribute(name, value)
        if getattr(eager, "_rng", None) is not drawn:
            tf.random.set_seed(seed)
            eager._rng = drawn
