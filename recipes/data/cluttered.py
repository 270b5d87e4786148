"""Cluttered digits: each somewhere on a larger canvas among fragments of others, with its place known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes.data import digits as small
from hookline.recipes.data import keras_dataset as large
from hookline.recipes.data.digits import centered_pixels, pixel_preparation
from hookline.recipes.data.hold_out import PARTS
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.input.split import split_indices
from hookline.trainer.objective import Batch

PEAKS = {"digits": small.PEAK, "mnist": large.PEAK}
"""The brightest grey value of each set."""
AUTO = "auto"
TARGETS = CLASS, MASK = "class", "mask"


def check_originals(name: str, path: str | None, *, key: str) -> None:
    """Check the name of the set of originals, and that its file exists."""
    if name not in PEAKS:
        raise unknown_name(key, name, PEAKS)
    if name == "mnist":
        large.check_set(name, path)
    elif path is not None:
        raise UserError(
            f"Received data.path={path} for {key}={name}, which is embedded; expected no path. "
            f"Set {key}=mnist, or data.path=null."
        )


def open_originals(
    name: str,
    path: str | None,
    *,
    key: str,
    amounts: Mapping[str, int],
    counts: Mapping[str, int | None],
    sides: Mapping[str, int | str],
    usual: Mapping[str, tuple[int, int]],
) -> tuple[Data, list[int]]:
    """Return a set of originals, and the sides of canvas and fragments.

    Checks seed and numbers of fragments, the numbers of examples by split, and the two sides, which are "auto" for what
    is usual for that set.
    """
    for option, value in amounts.items():
        if not is_whole_number(value) or value < 0:
            raise UserError(f"Received data.{option}={value!r}; expected an integer of 0 or more.")
    for part, count in counts.items():
        if count is not None and (not is_whole_number(count) or count < 1):
            raise UserError(f"Received data.{part}_examples={count!r}; expected an integer of 1 or more, or null.")
    check_originals(name, path, key=key)
    data = small.digits() if name == "digits" else large.keras_dataset(name=name, path=path)
    side = data.input_shape[0]
    spans = ((side + 1, None), (1, side))
    found = []
    for (option, asked), own, (least, most) in zip(sides.items(), usual[name], spans, strict=True):
        pixels: Any = own if asked == AUTO else asked
        if not is_whole_number(pixels) or pixels < least or (most is not None and pixels > most):
            span = f"of {least} or more" if most is None else f"in {least}..{most}"
            raise UserError(f"Received data.{option}={asked!r}; expected 'auto' or a number of pixels {span}.")
        found.append(pixels)
    return data, found


def data_of_canvases(
    name: str, originals: Data, parts: Mapping[str, Split], canvas: int, peak: int, *, has_classes: bool = True
) -> Data:
    """Return the data of splits of canvases."""
    shape = (canvas, canvas, 1)
    form = pixel_preparation(shape, peak)
    classes, names = (originals.classes, originals.class_names) if has_classes else (0, ())
    return Data(name, **parts, input_shape=shape, classes=classes, class_names=names, preparation=form)


@dataclass(frozen=True)
class Clutter:
    """Describe canvases.

    Attributes:
        canvas: side of a canvas in pixels, larger than the images.
        fragments: fragments on each canvas, 0 or more.
        fragment_size: side of a fragment in pixels, at most an image's.
    """

    canvas: int
    fragments: int
    fragment_size: int


def place_on_canvases(
    images: np.ndarray, rows: np.ndarray, clutter: Clutter, seed: int, stream: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return canvases of 0 with one image each, over fragments of the others.

    All draws are uniform: where the image is, where a fragment is, which other image it is from, and which square of
    that image it is. Where things overlap, the brighter pixel shows. The images are at the same places whatever the
    fragments are.

    A pure function of its arguments, the same on every machine and NumPy version: it uses only the raw stream of the
    bit generator, which NumPy keeps stable, and whole numbers.
    """
    count, side, size = len(rows), images.shape[1], clutter.fragment_size
    bits = np.random.PCG64(np.random.SeedSequence([seed, stream]))
    top, left = (below(clutter.canvas - side + 1, count, bits) for _ in range(2))
    canvases = np.zeros([count, clutter.canvas, clutter.canvas], np.uint8)
    for _ in range(clutter.fragments):
        donors = below(len(images) - 1, count, bits)
        donors += donors >= rows  # never the image itself
        from_top, from_left = (below(side - size + 1, count, bits) for _ in range(2))
        to_top, to_left = (below(clutter.canvas - size + 1, count, bits) for _ in range(2))
        paste(canvases, images[(donors[:, None, None], *_squares(from_top, from_left, size))], to_top, to_left)
    paste(canvases, images[rows], top, left)
    extent = np.full(count, side, np.int64)
    return canvases, np.stack([top, left, extent, extent], axis=1)


def grey_values(split: Split, positions: np.ndarray, peak: int) -> np.ndarray:
    """Return images as they were before their set scaled them: uint8 [n, side, side]."""
    scaled = split.source.gather(tf.constant(split.indices[positions]))["inputs"].numpy()
    return np.rint((scaled[..., 0] + 1.0) * (peak / 2.0)).astype(np.uint8)


def below(limit: int, count: int, bits: np.random.PCG64) -> np.ndarray:
    """Return draws from 0 .. limit - 1, int64 [count]; the limit is under 2^32."""
    high = bits.random_raw(count) >> np.uint64(32)
    return ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def _squares(top: np.ndarray, left: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertical and horizontal positions in squares, [n, size, 1] and [n, 1, size]."""
    steps = np.arange(size)
    return (top[:, None] + steps)[:, :, None], (left[:, None] + steps)[:, None, :]


def paste(canvases: np.ndarray, patches: np.ndarray, top: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Draw one patch on each canvas, in place, by maximum, and return the canvases."""
    where = (np.arange(len(canvases))[:, None, None], *_squares(top, left, patches.shape[1]))
    canvases[where] = np.maximum(canvases[where], patches)
    return canvases


USUAL = {"digits": (20, 3), "mnist": (60, 8)}
"""Sides of the canvas and of the fragments that suit each set, in pixels."""


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
    targets: str = CLASS,
    seed: int = 0,
) -> Data:
    """Return a source's images on canvases, as Cluttered MNIST of Mnih et al. 2014 (arXiv 1406.6247), section 4.1.

    The splits are those of the source. Fragments come from other images of the same split, and only from those that
    appear on its canvases. If fewer examples are asked for than the source has, they are drawn with the same share of
    every class; if more, images repeat, at other places and among other fragments.

    Targets "class" are int64 [canvases], "mask" int64 [canvases, canvas, canvas, 1]: 1 where the image has ink, more
    than half of the brightest grey value.
    """
    if targets not in TARGETS:
        raise unknown_name("data.targets", targets, TARGETS)
    counts = dict(zip(PARTS, (train_examples, validation_examples, test_examples), strict=True))
    data, (canvas_side, fragment_side) = open_originals(
        source,
        path,
        key="data.source",
        amounts={"seed": seed, "fragments": fragments},
        counts=counts,
        sides={"canvas": canvas, "fragment_size": fragment_size},
        usual=USUAL,
    )
    peak, clutter = PEAKS[source], Clutter(canvas_side, fragments, fragment_side)
    parts = {
        name: _cluttered(getattr(data, name), counts[name], peak, clutter, (seed, stream), targets)
        for stream, name in enumerate(PARTS)
    }
    return data_of_canvases(f"cluttered_{source}", data, parts, canvas_side, peak, has_classes=targets == CLASS)


def _cluttered(
    split: Split, count: int | None, peak: int, clutter: Clutter, seeds: tuple[int, int], targets: str
) -> Split:
    """Return a split of canvases, made from the images of another."""
    labels = split.source.labels[split.indices]
    rows = _choose(labels, len(labels) if count is None else count, seeds[0])
    pool, places = np.unique(rows, return_inverse=True)
    if clutter.fragments and len(pool) < 2:
        raise UserError(
            f"Received {len(pool)} {split.name} image for canvases with fragments of others; expected 2 or more. "
            f"Set data.{split.name}_examples higher, or data.fragments=0."
        )
    images = grey_values(split, pool, peak)
    canvases, boxes = place_on_canvases(images, places, clutter, *seeds)
    if targets == MASK:
        blank = np.zeros([len(rows), clutter.canvas, clutter.canvas], np.uint8)
        ink = paste(blank, images[places], boxes[:, 0], boxes[:, 1]) > peak / 2
        masked = {"inputs": canvases[..., None], "targets": ink[..., None].astype(np.int64)}
        return Split(split.name, ArraySource(masked, centered_pixels(peak)), np.arange(len(rows)))
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
