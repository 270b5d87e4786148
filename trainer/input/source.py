"""Where examples lie: a source gives rows by index, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import Batch

HOST = "CPU:0"
"""The device where input is prepared when it is not held on an accelerator."""


class Source(Protocol):
    """Give examples by row."""

    @property
    def size(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """Return the class of every example, int64 [size], in row order and without making any input."""

    @property
    def host_only(self) -> bool:
        """Return whether `gather` runs Python or reads files, so that batches can only be made on the host."""

    def gather(self, indices: tf.Tensor) -> Batch:
        """Return examples as a batch.

        Pure: the same rows give the same bits, eagerly, in `tf.data` and in a traced loop. Made of TensorFlow ops,
        which may call Python or read files where the source says `host_only`.
        """

    def on_accelerator(self) -> Source:
        """Return this source with its examples in the accelerator's memory; itself if there is no accelerator."""


def labels_of(targets: tf.Tensor | None) -> np.ndarray:
    """Return targets as labels, int64 [size], for what needs the class of each example."""
    if targets is None or targets.shape.rank != 1 or not targets.dtype.is_integer:
        found = "none" if targets is None else f"{targets.dtype.name} of shape {list(targets.shape)}"
        raise UserError(f"Received targets: {found}; expected integers [size]. Give the class of each row.")
    return np.array(targets.numpy(), np.int64)


class ArraySource:
    """Hold arrays in memory and gather their rows.

    The arrays keep their own dtype: images stay uint8, and `transform` casts only the rows of a batch. They become
    eager tensors once, here; a traced function captures them as inputs, so no graph holds a copy as a constant.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], transform: Callable[[Batch], Batch]) -> None:
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or not all(lengths.values()):
            found = ", ".join(f"{name}: {length}" for name, length in lengths.items()) or "no array"
            raise UserError(f"Received arrays of lengths {found}; expected one equal, positive length. Fix the data.")
        # A source may be made while a function is being traced; its tensors must outlive that trace.
        with tf.init_scope(), tf.device(HOST):
            self._tensors = {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
        self._transform = transform
        self._device: str | None = HOST
        self._accelerated: ArraySource | None = None

    @property
    def size(self) -> int:
        return int(next(iter(self._tensors.values())).shape[0])

    @property
    def bytes(self) -> int:
        return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in self._tensors.values())

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self._tensors.get("targets"))

    @property
    def host_only(self) -> bool:
        return False

    def gather(self, indices: tf.Tensor) -> Batch:
        # Arrays on the host are gathered there: only the batch travels to the accelerator, not the arrays.
        with tf.device(self._device):
            rows = {name: tf.gather(tensor, indices) for name, tensor in self._tensors.items()}
        return self._transform(rows)

    def on_accelerator(self) -> ArraySource:
        accelerators = tf.config.list_logical_devices("GPU")
        if not accelerators or self._device is None:
            return self
        if self._accelerated is None:  # all splits of a source share the copy
            copy = object.__new__(ArraySource)
            with tf.init_scope(), tf.device(accelerators[0].name):
                copy._tensors = {name: tf.identity(tensor) for name, tensor in self._tensors.items()}
            copy._transform, copy._device, copy._accelerated = self._transform, None, None
            self._accelerated = copy
        return self._accelerated
