"""Cluttered digits: each somewhere on a larger canvas among fragments of others, with its place known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes import check_choice, check_whole
from hookline.recipes.data import digits as small
from hookline.recipes.data import keras_dataset as large
from hookline.recipes.data.digits import centered_pixels, pixel_preparation
from hookline.recipes.data.splits import PARTS
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.input.split import split_indices
from hookline.trainer.objective import Batch

PEAKS = {"digits": small.PEAK, "mnist": large.PEAK}
"""The brightest grey value of each set."""
USUAL = {"digits": (20, 3), "mnist": (60, 8)}
"""Sides of the canvas and of the fragments that suit each set, in pixels."""
AUTO = "auto"
TARGETS = CLASS, MASK = "class", "mask"


@prechecked(lambda source, path: check_originals(source, path, "source"))
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
    originals = Originals(source, "source", dict(locals()), USUAL)
    check_choice("data.targets", targets, TARGETS)
    clutter = originals.clutter(fragments)
    parts = {
        name: _cluttered(split, originals.counts[name], originals.peak, clutter, (seed, stream), targets)
        for stream, (name, split) in enumerate(originals.splits.items())
    }
    return originals.data_of(f"cluttered_{source}", parts, has_classes=targets == CLASS)


def check_originals(name: str, path: str | None, key: str) -> None:
    """Check the name of the set of originals, and that its file exists."""
    check_choice(f"data.{key}", name, PEAKS)
    if name == "mnist":
        large.check_set(name, path)
    elif path is not None:
        raise UserError(
            f"data.path={path} received for data.{key}={name}, which is embedded. Set data.{key}=mnist, or "
            "data.path=null."
        )


@dataclass(frozen=True)
class Clutter:
    """What canvases are made of."""

    canvas: int  # side in pixels, larger than the images
    fragments: int  # on each canvas, 0 or more
    fragment_size: int  # side in pixels, at most an image's


class Originals:
    """A set of images to be put on canvases, and the options of a data source that does so, checked."""

    def __init__(self, name: str, key: str, options: Mapping[str, Any], usual: Mapping[str, tuple[int, int]]) -> None:
        """Open a set, which the option `key` names; `usual` has the sides of its canvas and fragments in pixels."""
        check_originals(name, options["path"], key)
        self.counts: dict[str, int | None] = {part: options[f"{part}_examples"] for part in PARTS}
        for option, value in options.items():
            if option == "seed" or option.endswith("fragments"):
                check_whole(f"data.{option}", value, 0)
            elif option.endswith("_examples") and value is not None:
                check_whole(f"data.{option}", value, 1)
        self.peak = PEAKS[name]
        self.data = small.digits() if name == "digits" else large.keras_dataset(name=name, path=options["path"])
        self.splits = {part: getattr(self.data, part) for part in PARTS}
        side, (canvas, fragment) = self.data.input_shape[0], usual[name]
        self.canvas = canvas if options["canvas"] == AUTO else options["canvas"]
        self._fragment = fragment if options["fragment_size"] == AUTO else options["fragment_size"]
        check_whole("data.canvas", self.canvas, side + 1)
        check_whole("data.fragment_size", self._fragment, 1, side)

    def clutter(self, fragments: int) -> Clutter:
        """Return what canvases with so many fragments are made of."""
        return Clutter(self.canvas, fragments, self._fragment)

    def data_of(self, name: str, parts: Mapping[str, Split], *, has_classes: bool = True) -> Data:
        """Return the data of splits of canvases."""
        shape = (self.canvas, self.canvas, 1)
        form = pixel_preparation(shape, self.peak)
        classes, names = (self.data.classes, self.data.class_names) if has_classes else (0, ())
        return Data(name, **parts, input_shape=shape, classes=classes, class_names=names, preparation=form)


def _cluttered(
    split: Split, count: int | None, peak: int, clutter: Clutter, seeds: tuple[int, int], targets: str
) -> Split:
    """Return a split of canvases, made from the images of another."""
    labels = split.labels
    rows = _choose(labels, len(labels) if count is None else count, seeds[0])
    pool, places = np.unique(rows, return_inverse=True)
    if clutter.fragments and len(pool) < 2:
        raise UserError(
            f"Received {len(pool)} {split.name} image for canvases with fragments of others; expected 2 or more. "
            f"Set data.{split.name}_examples higher, or data.fragments=0."
        )
    images = grey_values(split, pool, peak)
    canvases, boxes = place_on_canvases(images, places, clutter, *seeds)
    arrays, transform = {"inputs": canvases[..., None]}, centered_pixels(peak)
    if targets == MASK:
        blank = np.zeros([len(rows), clutter.canvas, clutter.canvas], np.uint8)
        ink = paste(blank, images[places], boxes[:, 0], boxes[:, 1]) > peak / 2
        arrays |= {"targets": ink[..., None].astype(np.int64)}
    else:
        arrays |= {"targets": labels[rows], "box": boxes}
        transform = _transform(peak, clutter.canvas)
    return Split(split.name, ArraySource(arrays, transform), np.arange(len(rows)))


def _choose(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return positions in `labels`, int64 [count]: as many full rounds as fit, then a share of every class."""
    size = len(labels)
    rows, rest = np.tile(np.arange(size), count // size), count % size
    if rest:
        rows = np.concatenate([rows, split_indices(size, {"chosen": rest / size}, seed, labels)["chosen"]])
    return rows


def _transform(peak: int, canvas: int) -> Callable[[Batch], Batch]:
    """Return the transform that turns canvases into inputs and adds "map"."""
    scale = centered_pixels(peak)

    def transform(batch: Batch) -> Batch:
        top, left, height, width = tf.unstack(batch["box"][:, :, None], axis=1)
        line = tf.range(canvas, dtype=tf.int64)
        vertical = (line >= top) & (line < top + height)
        horizontal = (line >= left) & (line < left + width)
        return {**scale(batch), "map": tf.cast(vertical[:, :, None] & horizontal[:, None, :], tf.float32)}

    return transform


def place_on_canvases(
    images: np.ndarray, rows: np.ndarray, clutter: Clutter, seed: int, stream: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return canvases of 0 with one image each, over fragments of the others, and boxes: top, left, height, width.

    All draws are uniform: where the image is, where a fragment is, which other image it is from, and which square of
    that image it is. Where things overlap, the brighter pixel shows. The images are at the same places whatever the
    fragments are. It is the same on every machine and NumPy version, from whole numbers and the raw stream of the bit
    generator, which NumPy keeps stable.
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
