"""A source that keeps images in their files and decodes the rows of a batch: for sets that memory does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from recipes.data.image_decoding import ImageForm, load_image
from trainer.input.source import HOST
from trainer.objective import Batch


class ImageFiles:
    """Decode image files when they are asked for.

    A file that is damaged shows when its batch is made: to find it before would be to decode the whole set.
    """

    def __init__(
        self, paths: Sequence[str], labels: np.ndarray, form: ImageForm, transform: Callable[[Batch], Batch]
    ) -> None:
        """Take files.

        Args:
            paths: files, one for each row.
            labels: int64 [size], the class of each.
            form: the pixels that each becomes.
            transform: applied to a batch of "inputs", uint8 [n, height, width, channels], and "targets".
        """
        with tf.init_scope(), tf.device(HOST):
            self._paths = tf.constant(list(paths))
            self._targets = tf.constant(labels, tf.int64)
        self._form = form
        self._transform = transform

    @property
    def size(self) -> int:
        """Return the number of files."""
        return int(self._paths.shape[0])

    @property
    def bytes(self) -> int:
        """Return how much memory all images would take, in bytes."""
        return self.size * int(np.prod(self._form.shape))

    @property
    def held_bytes(self) -> int:
        """Return how much of that lies in memory: nothing, an image is decoded when its batch is made."""
        return 0

    @property
    def host_only(self) -> bool:
        """Return True: files are read by the host."""
        return True

    @property
    def labels(self) -> np.ndarray:
        """Return the class of every file, int64 [size]."""
        return np.array(self._targets.numpy(), np.int64)

    def gather(self, indices: tf.Tensor) -> Batch:
        """Return the transformed rows, decoded now.

        Args:
            indices: int64 [n], rows in [0, size).

        Returns:
            What `transform` makes of the rows: tensors of shape [n, ...] by name.
        """
        with tf.device(HOST):
            inputs = tf.map_fn(
                lambda path: load_image(path, self._form),
                tf.gather(self._paths, indices),
                fn_output_signature=tf.TensorSpec(self._form.shape, tf.uint8),
            )
            targets = tf.gather(self._targets, indices)
        return self._transform({"inputs": inputs, "targets": targets})

    def on_accelerator(self) -> ImageFiles:
        """Return this source: files stay where they are."""
        return self
