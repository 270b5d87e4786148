"""A sheet of training examples, as the network sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from trainer.input.batches import TrainingBatches

ROWS, DRAWS = 8, 8
SMALLEST, LARGEST = 48, 128  # pixels a side: images are enlarged or thinned out to about this
GAP = 3
PAPER = 1.0


def training_sheet(batches: TrainingBatches) -> np.ndarray | None:
    """Return a picture of some training examples: rows of one example each, where there is augmentation.

    To the left of a row is the example as it is, to the right as it comes at the first steps. Without augmentation,
    all are different examples.

    Args:
        batches: of the run.

    Returns:
        float32 [height, width, 1 or 3] in [0, 1]; None where inputs are no images of 1 or 3 channels.
    """
    step = tf.constant(0, tf.int64)
    rows = batches.indices(step)
    if batches.augmentation is None:
        images = batches.read(rows[: ROWS * (DRAWS + 1)])["inputs"]
        return _sheet([[image] for image in _cut(images.numpy())]) if _are_images(images) else None
    rows = rows[:ROWS]
    plain = batches.read(rows)["inputs"]
    if not _are_images(plain):
        return None
    drawn = [batches.drawn(rows, step + number)["inputs"].numpy() for number in range(DRAWS)]
    return _sheet([[np.stack([image]), np.stack(drawn)[:, row]] for row, image in enumerate(plain.numpy())])


def _are_images(inputs: tf.Tensor) -> bool:
    return inputs.shape.rank == 4 and inputs.shape[-1] in (1, 3)


def _cut(images: np.ndarray) -> list[np.ndarray]:
    """Return images [n, ...] in full rows, or in one where there are fewer."""
    columns = min(len(images), DRAWS + 1)
    return [images[start : start + columns] for start in range(0, len(images) - columns + 1, columns)]


def _sheet(rows: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Return rows of groups of images [n, height, width, channels] on white; groups stand apart."""
    plain = np.concatenate([group for row in rows for group in row[:1]])
    low, high = min(-1.0, float(plain.min())), max(1.0, float(plain.max()))
    lines = []
    for row in rows:
        tiles = []
        for number, group in enumerate(row):
            tiles += [_gap(group[0], 3 * GAP if number else GAP, axis=1)]
            for image in group:
                tiles += [np.clip((_sized(image) - low) / (high - low), 0.0, 1.0), _gap(image, GAP, axis=1)]
        line = np.concatenate(tiles, axis=1)
        lines += [line, np.full((GAP, *line.shape[1:]), PAPER)]
    return np.concatenate([lines[1], *lines]).astype(np.float32)


def _sized(image: np.ndarray) -> np.ndarray:
    """Return an image enlarged where it is small, and thinned out where it is large, by whole factors."""
    thin = max(1, min(image.shape[:2]) // LARGEST)
    times = max(1, -(-SMALLEST // min(image.shape[:2])))
    return image[::thin, ::thin].repeat(times, axis=0).repeat(times, axis=1)


def _gap(image: np.ndarray, pixels: int, axis: int) -> np.ndarray:
    shape = list(_sized(image).shape)
    shape[axis] = pixels
    return np.full(shape, PAPER)
