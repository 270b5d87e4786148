"""A source whose inputs Python reads when a batch is made: for what memory does not hold, or a user's code gives."""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from trainer.input.source import HOST
from trainer.objective import Batch

ReadRows = Callable[[np.ndarray], Mapping[str, np.ndarray]]

_ENDING = threading.Event()


@atexit.register
def _end_reading() -> None:
    """Let no read be under way when Python ends.

    A queue of batches that is only taken down while the interpreter ends waits forever for a read that has not come
    back, because no thread enters Python any more. So reads end at once, and queues that nobody holds are taken down.
    """
    _ENDING.set()
    gc.collect()


class HostRows:
    """Let a Python function read rows; only the labels lie in memory."""

    def __init__(
        self,
        read: ReadRows,
        specs: Mapping[str, tf.TensorSpec],
        labels: np.ndarray,
        transform: Callable[[Batch], Batch],
    ) -> None:
        """Take a function that reads.

        Args:
            read: takes rows, int64 [n], and returns new arrays [n, ...] by name, nothing else. Pure, and called by
                several threads at a time. It raises `UserError` for what it cannot read.
            specs: shape of one row and dtype of every array that it returns, by name; "inputs" among them.
            labels: int64 [size], the class of each row.
            transform: applied to a batch of these arrays and "targets"; pure, made of TensorFlow ops only.
        """
        self._read, self._specs, self._transform = read, dict(specs), transform
        with tf.init_scope(), tf.device(HOST):
            self._targets = tf.constant(labels, tf.int64)

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return int(self._targets.shape[0])

    @property
    def bytes(self) -> int:
        """Return how much memory all examples would take, in bytes."""
        row = sum(spec.shape.num_elements() * spec.dtype.size for spec in self._specs.values())
        return self.size * (row + self._targets.dtype.size)

    @property
    def held_bytes(self) -> int:
        """Return how much of that lies in memory: the labels."""
        return self.size * self._targets.dtype.size

    @property
    def labels(self) -> np.ndarray:
        """Return the class of every row, int64 [size]."""
        return np.array(self._targets.numpy(), np.int64)

    @property
    def host_only(self) -> bool:
        """Return True: Python reads the rows."""
        return True

    def gather(self, indices: tf.Tensor) -> Batch:
        """Return the transformed rows, read now.

        Args:
            indices: int64 [n], rows in [0, size).

        Returns:
            What `transform` makes of the rows: tensors of shape [n, ...] by name.

        Raises:
            UserError: what `read` refuses; in a graph this is a `tf.errors.OpError` with that message.
        """

        def call(rows: np.ndarray) -> list[np.ndarray]:
            if _ENDING.is_set():
                raise RuntimeError("Python ends.")
            arrays = self._read(np.asarray(rows))
            return [arrays[name] for name in self._specs]

        dtypes = [spec.dtype for spec in self._specs.values()]
        with tf.device(HOST):
            # Not stateful: the same rows give the same arrays, so a batch that nobody looks at need not be read.
            tensors = tf.numpy_function(call, [indices], dtypes, stateful=False, name="host_rows")
            tensors = [tensors] if tf.is_tensor(tensors) else tensors  # eagerly, a list of one is none
            rows = {
                name: tf.ensure_shape(tensor, [indices.shape[0], *spec.shape])
                for (name, spec), tensor in zip(self._specs.items(), tensors, strict=True)
            }
            rows["targets"] = tf.gather(self._targets, indices)
        return self._transform(rows)

    def on_accelerator(self) -> HostRows:
        """Return this source: Python reads on the host."""
        return self
