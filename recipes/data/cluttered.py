"""Cluttered digits: each somewhere on a larger canvas among fragments of others, with its place known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes.data.canvases import (
    AUTO,
    PEAKS,
    Clutter,
    check_amount,
    check_count,
    check_originals,
    grey_values,
    open_originals,
    place_on_canvases,
    resolve_pixels,
)
from hookline.recipes.data.digits import centered_pixels, pixel_preparation
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.input.split import split_indices
from hookline.trainer.objective import Batch

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class _Kind:
    """The canvas and the fragments that suit the images of a source."""

    canvas: int
    fragment_size: int


KINDS = {"digits": _Kind(20, 3), "mnist": _Kind(60, 8)}


@prechecked(lambda source, path: check_originals(source, path, key="data.source"))
def cluttered(
    *,
    source: str = "digits",
    path: str | None = None,
    canvas: int | str = AUTO,
    fragments: int = 8,
    fragment_size: int | str = AUTO,
    train_examples: int | None = None,
    validation_examples: int | None = None,
    test_examples: int | None = None,
    seed: int = 0,
) -> Data:
    """Return a source's images on canvases, as Cluttered MNIST of Mnih et al. 2014 (arXiv 1406.6247), section 4.1.

    The splits are those of the source. Fragments come from other images of the same split, and only from those that
    appear on its canvases. If fewer examples are asked for than the source has, they are drawn with the same share of
    every class; if more, images repeat, at other places and among other fragments.
    """
    counts = dict(zip(SPLITS, (train_examples, validation_examples, test_examples), strict=True))
    check_amount("seed", seed)
    check_amount("fragments", fragments)
    for name, count in counts.items():
        check_count(f"{name}_examples", count)
    data = open_originals(source, path, key="data.source")
    kind, side = KINDS[source], data.input_shape[0]
    clutter = Clutter(
        resolve_pixels("canvas", canvas, kind.canvas, least=side + 1),
        fragments,
        resolve_pixels("fragment_size", fragment_size, kind.fragment_size, least=1, most=side),
    )
    parts = {
        name: _cluttered(getattr(data, name), counts[name], PEAKS[source], clutter, (seed, stream))
        for stream, name in enumerate(SPLITS)
    }
    shape = (clutter.canvas, clutter.canvas, 1)
    form, names = pixel_preparation(shape, PEAKS[source]), data.class_names
    name = f"cluttered_{source}"
    return Data(name, **parts, input_shape=shape, classes=data.classes, class_names=names, preparation=form)


def _cluttered(split: Split, count: int | None, peak: int, clutter: Clutter, seeds: tuple[int, int]) -> Split:
    """Return a split of canvases, made from the images of another."""
    labels = split.source.labels[split.indices]
    rows = _choose(labels, len(labels) if count is None else count, seeds[0])
    pool, places = np.unique(rows, return_inverse=True)
    if clutter.fragments and len(pool) < 2:
        raise UserError(
            f"Received {len(pool)} {split.name} image for canvases with fragments of others; expected 2 or more. "
            f"Set data.{split.name}_examples higher, or data.fragments=0."
        )
    canvases, boxes = place_on_canvases(grey_values(split, pool, peak), places, clutter, *seeds)
    arrays = {"inputs": canvases[..., None], "targets": labels[rows], "box": boxes}
    return Split(split.name, ArraySource(arrays, _transform(peak, clutter.canvas)), np.arange(len(rows)))


def _choose(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return positions in `labels`, int64 [count]: as many full rounds as fit, then a share of every class."""
    size = len(labels)
    rows = np.tile(np.arange(size), count // size)
    rest = count % size
    if rest:
        chosen = split_indices(size, {"chosen": rest / size}, seed, labels)["chosen"]
        rows = np.concatenate([rows, chosen])
    return rows


def _transform(peak: int, canvas: int) -> Any:
    """Return the transform that turns canvases into inputs and adds "map"."""
    scale = centered_pixels(peak)

    def transform(batch: Batch) -> Batch:
        top, left, height, width = tf.unstack(batch["box"][:, :, None], axis=1)
        line = tf.range(canvas, dtype=tf.int64)
        vertical = tf.logical_and(line >= top, line < top + height)
        horizontal = tf.logical_and(line >= left, line < left + width)
        inside = tf.logical_and(vertical[:, :, None], horizontal[:, None, :])
        return {**scale(batch), "map": tf.cast(inside, tf.float32)}

    return transform
