"""The windows of a convolution as rows of a matrix, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainer.inference.shapes import window_pads

BLOCK = 2**20
"""Bytes of the rows that are made at a time."""


@dataclass(frozen=True)
class Windows:
    """Say where the windows of a convolution lie.

    Attributes:
        size: rows and columns of the input.
        window: rows and columns of the window.
        strides: its steps.
        dilation: between its entries.
        padding: "valid" or "same".
    """

    size: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: str

    def axis(self, axis: int) -> tuple[int, int, int]:
        """Return how often the window fits along an axis, and the zeros before and after.

        Args:
            axis: 0 for rows, 1 for columns.
        """
        return window_pads(self.size[axis], self.window[axis], self.strides[axis], self.dilation[axis], self.padding)

    def pad(self, images: np.ndarray) -> np.ndarray:
        """Return images with the zeros around them that the padding takes.

        Args:
            images: [batch, rows, columns, channels].
        """
        (_, top, bottom), (_, left, right) = self.axis(0), self.axis(1)
        if not (top or bottom or left or right):
            return np.ascontiguousarray(images)
        batch, rows, columns, channels = images.shape
        padded = np.zeros((batch, rows + top + bottom, columns + left + right, channels), images.dtype)
        padded[:, top : top + rows, left : left + columns] = images
        return padded

    def inside(self, axis: int) -> np.ndarray:
        """Return which entries of which window lie in the image: bool [windows, entries].

        Args:
            axis: 0 for rows, 1 for columns.
        """
        count, before, _ = self.axis(axis)
        starts = np.arange(count)[:, None] * self.strides[axis] - before
        places = starts + np.arange(self.window[axis]) * self.dilation[axis]
        return (places >= 0) & (places < self.size[axis])

    def rows(self, images: np.ndarray, multiple: int = 1) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield images and rows of windows as slices, with the windows [images * rows * columns, entries] of them.

        Args:
            images: [batch, rows, columns, channels].
            multiple: what the length of a row is a multiple of; zeros are at its end.
        """
        padded = self.pad(images)
        batch, channels, itemsize = len(padded), padded.shape[3], padded.itemsize
        height, width = self.axis(0)[0], self.axis(1)[0]
        entries = self.window[0] * self.window[1] * channels
        length = entries + -entries % multiple
        per_row = max(1, width * length * itemsize)
        some_rows = min(height, max(1, BLOCK // per_row))
        some_images = max(1, BLOCK // (per_row * height))
        view = self._view(padded, height, width)
        for image in range(0, batch, some_images):
            for row in range(0, height, some_rows):
                part = view[image : image + some_images, row : row + some_rows]
                made = (np.zeros if length > entries else np.empty)((*part.shape[:3], length), images.dtype)
                made[..., :entries].reshape(part.shape)[:] = part
                yield slice(image, image + some_images), slice(row, row + some_rows), made.reshape(-1, length)

    def _view(self, padded: np.ndarray, height: int, width: int) -> np.ndarray:
        """Return the windows as a view: [batch, rows, columns, ...entries of a window]."""
        n, y, x, c = padded.strides
        lead = (len(padded), height, width)
        steps = (n, y * self.strides[0], x * self.strides[1], y * self.dilation[0])
        channels = padded.shape[3]
        if self.dilation[1] == 1:  # a row of the window is one run of memory
            shape: tuple[int, ...] = (*lead, self.window[0], self.window[1] * channels)
            return np.lib.stride_tricks.as_strided(padded, shape, (*steps, c), writeable=False)
        shape = (*lead, *self.window, channels)
        return np.lib.stride_tricks.as_strided(padded, shape, (*steps, x * self.dilation[1], c), writeable=False)
