"""Preparation of inputs for a network, and sources with rows that Python reads."""

from __future__ import annotations

import atexit
import gc
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from hookline.recipes.data.example_rows import LARGEST_NUMBER
from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.input.data import HOST, as_pixels, check_finite, labels_of
from hookline.trainer.input.preparation import PIXEL_PEAK, Preparation, pixel_preparation
from hookline.trainer.objective import Batch

TARGET_IMAGES = "target_domain"  # images of a second domain, prepared like "inputs"
FEW_CHANNELS = (1, 3)
AUTO_BYTES = 2**30  # cache "auto" holds data up to this size
TASKS = 64  # tasks per call: a task for each of many files would take longer to manage than to read
SHARE = 0.5  # largest share of the machine's memory for examples; TensorFlow copies them once

Item = TypeVar("Item")
Value = TypeVar("Value")


def is_held(cache: str, size: int) -> bool:
    """Return whether examples are held in memory."""
    check_choice("data.cache", cache, ("auto", "memory", "none"))
    return size <= AUTO_BYTES if cache == "auto" else cache == "memory"


def check_fits(size: int, what: str, remedy: str) -> None:
    """Check that examples take no more than half of the machine's memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > SHARE * total:
        raise UserError(f"{what} takes {size / 2**30:.1f} GiB of {total / 2**30:.1f} GiB; the limit is half. {remedy}")


def map_in_chunks(pool: ThreadPoolExecutor, function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    """Return the results of a function for all items, in order, computed by a pool of threads."""
    size = max(1, len(items) // TASKS)
    tasks = [items[start : start + size] for start in range(0, len(items), size)]
    done = pool.map(lambda task: [function(item) for item in task], tasks)
    return [value for values in done for value in values]


def input_form(stored: tuple[int, ...], dtype: np.dtype, options: Mapping[str, Any], where: str) -> Preparation:
    """Return the preparation of stored inputs; with data.scale=auto, uint8 inputs are pixels."""
    scale, channels = options["scale"], options["channels"]
    check_choice("data.scale", scale, ("auto", "pixels", "unit", "none"))
    check_choice("data.channels", channels, ("auto", "last", "first", "none"))
    if dtype.kind not in "iuf" or dtype.itemsize > LARGEST_NUMBER:
        raise UserError(f"{where}: inputs of dtype {dtype}; expected numbers of up to 64 bits. Convert them.")
    if not stored or not all(stored):
        raise UserError(f"{where}: inputs of shape {list(stored)}; expected numbers, such as [features] or an image's.")
    axes = _axes(stored, channels, where)
    shape = (*stored, 1) if axes == "new" else (*stored[1:], stored[0]) if axes == "first" else stored
    if scale == "pixels" or (scale == "auto" and dtype == np.uint8):
        return pixel_preparation(shape, PIXEL_PEAK, axes=axes)
    if scale == "unit":
        return Preparation(shape, 1.0 / PIXEL_PEAK, peak=PIXEL_PEAK, axes=axes)
    return Preparation(shape, axes=axes)


def transform_of(form: Preparation) -> Callable[[Batch], Batch]:
    """Return a transform of batches that prepares inputs for the network, float32, and leaves the rest unchanged."""

    def prepared(inputs: tf.Tensor) -> tf.Tensor:
        if form.axes == "new" and inputs.shape.rank == len(form.shape):
            inputs = inputs[..., tf.newaxis]
        elif form.axes == "first":
            inputs = tf.transpose(inputs, [0, *range(2, len(form.shape) + 1), 1])
        inputs = tf.cast(inputs, tf.float32)
        return inputs if form.peak is None else inputs * form.scale + form.offset

    def transform(batch: Batch) -> Batch:
        return {**batch, **{name: prepared(batch[name]) for name in ("inputs", TARGET_IMAGES) if name in batch}}

    return transform


def check_rows(form: Preparation, inputs: np.ndarray, rows: np.ndarray, where: str) -> None:
    """Check rows that were just read."""
    flat = inputs.reshape(len(inputs), -1)
    if inputs.dtype.kind == "f":
        _refuse_rows(~np.isfinite(flat), rows, where, "NaN or infinite values; expected finite numbers")
    if form.peak is not None and inputs.dtype != np.uint8:
        outside = (flat < 0) | (flat > PIXEL_PEAK)
        _refuse_rows(outside, rows, where, "values outside 0..255; expected gray values, or data.scale=none")


def check_row_weights(weights: np.ndarray, rows: np.ndarray, where: str) -> None:
    """Check the sample weights of rows that were just read."""
    flat = weights.reshape(len(weights), -1)
    bad = ~(np.isfinite(flat) & (flat >= 0))
    _refuse_rows(bad, rows, where, "a sample weight that is negative or not finite; expected 0 or more")


def check_pixels(inputs: np.ndarray, where: str) -> None:
    """Refuse uint8 inputs of 0 and 1, which scaling from 0..255 would make nearly constant."""
    if inputs.size and inputs.max() == 1:
        raise UserError(f"{where}: whole values within 0..1; expected pixels 0..255. Set data.scale=none to keep them.")


def in_memory(form: Preparation, inputs: np.ndarray, where: str) -> np.ndarray:
    """Return checked inputs as held in memory: pixels as uint8, float64 as float32, in native byte order."""
    inputs = inputs.astype(inputs.dtype.newbyteorder("="), copy=False)
    if form.peak is not None and inputs.dtype == np.uint8:
        check_pixels(inputs, where)
    elif form.peak is not None:
        check_finite(inputs, where)
        return as_pixels(inputs, where)
    if inputs.dtype == np.float64:
        with np.errstate(over="ignore"):  # float32 overflow is detected below
            inputs = inputs.astype(np.float32)
    check_finite(inputs, where)
    return inputs


def _axes(stored: tuple[int, ...], channels: str, where: str) -> str:
    """Return the position of the channel axis: "first", "last", or "new" if it is missing."""
    if channels == "auto" and len(stored) == 3 and stored[0] in FEW_CHANNELS and stored[2] not in (*FEW_CHANNELS, 2, 4):
        raise UserError(
            f"{where}: inputs of shape {list(stored)} look like [channels, height, width]; expected [height, width, "
            "channels]. Set data.channels=first to move the axis, or data.channels=last if the shape is correct."
        )
    return "first" if channels == "first" else "new" if len(stored) == 2 and channels != "none" else "last"


def _refuse_rows(bad: np.ndarray, rows: np.ndarray, where: str, what: str) -> None:
    if bad.any():
        row = int(rows[np.argmax(bad.any(axis=1))])
        raise UserError(f"{where}, row {row}: {what}. Fix or remove this row.")


_ENDING = threading.Event()


@atexit.register
def _end_reading() -> None:
    """Stop all reads, and destroy queues of batches that are no longer referenced.

    A queue destroyed while the interpreter exits would wait forever for a pending read, as no thread can enter Python.
    """
    _ENDING.set()
    gc.collect()


class HostRows:
    """Read rows with a Python function; only targets are held in memory, or nothing if it reads them, too."""

    host_only = True

    def __init__(
        self,
        read: Callable[[np.ndarray], Mapping[str, np.ndarray]],
        specs: Mapping[str, tf.TensorSpec],
        targets: np.ndarray | int,
        transform: Callable[[Batch], Batch],
    ) -> None:
        """Store the settings; `targets` are those of all rows, or the number of rows if `read` returns targets."""
        self._read, self._specs, self._transform = read, dict(specs), transform
        self._targets: tf.Tensor | None = None
        self.size = targets if isinstance(targets, int) else len(targets)
        if not isinstance(targets, int):
            with tf.init_scope(), tf.device(HOST):
                self._targets = tf.constant(targets)

    @property
    def bytes(self) -> int:
        row = sum(spec.shape.num_elements() * spec.dtype.size for spec in self._specs.values())
        held = 0 if self._targets is None else int(self._targets.shape.num_elements()) * self._targets.dtype.size
        return self.size * row + held

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self._targets)

    def on_accelerator(self) -> HostRows:
        return self

    def gather(self, indices: tf.Tensor) -> Batch:
        def call(rows: np.ndarray) -> list[np.ndarray]:
            if _ENDING.is_set():
                raise RuntimeError("Python ends.")
            arrays = self._read(np.asarray(rows))
            return [arrays[name] for name in self._specs]

        dtypes = [spec.dtype for spec in self._specs.values()]
        with tf.device(HOST):
            # Not stateful: the same rows give the same arrays, so an unused batch need not be read.
            tensors = tf.numpy_function(call, [indices], dtypes, stateful=False, name="host_rows")
            tensors = [tensors] if tf.is_tensor(tensors) else tensors  # eager mode unwraps a list of one
            rows = {
                name: tf.ensure_shape(tensor, [indices.shape[0], *spec.shape])
                for (name, spec), tensor in zip(self._specs.items(), tensors, strict=True)
            }
            if self._targets is not None:
                rows["targets"] = tf.gather(self._targets, indices)
        return self._transform(rows)
