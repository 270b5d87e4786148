"""Several digits on a canvas: which of the ten are there?"""

from __future__ import annotations

import numpy as np

from hookline.recipes import check_whole
from hookline.recipes.data.cluttered import below, grey_values, paste
from hookline.recipes.data.digits import CLASSES, PEAK, SIDE, centered_pixels, digits, pixel_preparation
from hookline.recipes.data.splits import PARTS
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource

CELLS = 3  # a side


def several_digits(
    *,
    most: int = 4,
    train_examples: int = 4000,
    validation_examples: int = 500,
    test_examples: int = 1000,
    seed: int = 0,
) -> Data:
    """Return canvases of 24 x 24 pixels, each with one to `most` of the embedded digits in cells of a 3 x 3 grid.

    Targets are int64 [canvases, 10], 1 for each digit that is there. The splits are those of data=digits: no digit is
    on canvases of two splits.
    """
    check_whole("data.most", most, 1, CELLS**2)
    counts = dict(zip(PARTS, (train_examples, validation_examples, test_examples), strict=True))
    for part, count in counts.items():
        check_whole(f"data.{part}_examples", count, 1)
    originals, shape = digits(), (CELLS * SIDE, CELLS * SIDE, 1)
    splits = {
        name: _composed(getattr(originals, name), counts[name], most, (seed, stream))
        for stream, name in enumerate(PARTS)
    }
    form = pixel_preparation(shape, PEAK)
    return Data("several_digits", **splits, input_shape=shape, classes=0, class_names=(), preparation=form)


def _composed(split: Split, count: int, most: int, seeds: tuple[int, int]) -> Split:
    """Return a split of canvases, made from the images of another; pure: only raw bits and whole numbers."""
    images, labels = grey_values(split, np.arange(split.size), PEAK), split.labels
    bits = np.random.PCG64(np.random.SeedSequence(seeds))
    present = 1 + below(most, count, bits)
    cells = np.argsort(bits.random_raw(count * CELLS**2).reshape(count, -1), axis=1, kind="stable")
    canvases = np.zeros([count, CELLS * SIDE, CELLS * SIDE], np.uint8)
    targets = np.zeros([count, CLASSES], np.int64)
    for place in range(most):
        rows = below(len(images), count, bits)
        there = np.flatnonzero(place < present)
        top, left = np.divmod(cells[there, place], CELLS)
        canvases[there] = paste(canvases[there], images[rows[there]], top * SIDE, left * SIDE)
        targets[there, labels[rows[there]]] = 1
    source = ArraySource({"inputs": canvases[..., None], "targets": targets}, centered_pixels(PEAK))
    return Split(split.name, source, np.arange(count))
