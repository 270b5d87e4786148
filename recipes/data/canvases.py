"""Digits on canvases, among fragments of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes.data import digits as small
from hookline.recipes.data import keras_dataset as large
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data, Split

PEAKS = {"digits": small.PEAK, "mnist": large.PEAK}
"""The brightest grey value of each set."""


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


def open_originals(name: str, path: str | None, *, key: str) -> Data:
    """Return a set of originals."""
    check_originals(name, path, key=key)
    if name == "mnist":
        return large.keras_dataset(name=name, path=path)
    return small.digits()


def grey_values(split: Split, positions: np.ndarray, peak: int) -> np.ndarray:
    """Return images as they were before their set scaled them: uint8 [n, side, side]."""
    scaled = split.source.gather(tf.constant(split.indices[positions]))["inputs"].numpy()
    return np.rint((scaled[..., 0] + 1.0) * (peak / 2.0)).astype(np.uint8)


AUTO = "auto"


def check_amount(name: str, value: Any) -> None:
    """Check a seed, or a number of fragments."""
    if not is_whole_number(value) or value < 0:
        raise UserError(f"Received data.{name}={value!r}; expected an integer of 0 or more.")


def check_count(name: str, value: Any) -> None:
    """Check a number of examples."""
    if value is not None and (not is_whole_number(value) or value < 1):
        raise UserError(f"Received data.{name}={value!r}; expected an integer of 1 or more, or null.")


def resolve_pixels(name: str, value: Any, default: int, *, least: int, most: int | None = None) -> int:
    """Return a number of pixels a side."""
    if value == AUTO:
        return default
    if not is_whole_number(value) or value < least or (most is not None and value > most):
        span = f"of {least} or more" if most is None else f"in {least}..{most}"
        raise UserError(f"Received data.{name}={value!r}; expected 'auto' or a number of pixels {span}.")
    return int(value)


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
    top, left = (_below(clutter.canvas - side + 1, count, bits) for _ in range(2))
    canvases = np.zeros([count, clutter.canvas, clutter.canvas], np.uint8)
    for _ in range(clutter.fragments):
        donors = _below(len(images) - 1, count, bits)
        donors += donors >= rows  # never the image itself
        from_top, from_left = (_below(side - size + 1, count, bits) for _ in range(2))
        to_top, to_left = (_below(clutter.canvas - size + 1, count, bits) for _ in range(2))
        _paste(canvases, images[(donors[:, None, None], *_squares(from_top, from_left, size))], to_top, to_left)
    _paste(canvases, images[rows], top, left)
    extent = np.full(count, side, np.int64)
    return canvases, np.stack([top, left, extent, extent], axis=1)


def _below(limit: int, count: int, bits: np.random.PCG64) -> np.ndarray:
    """Return draws from 0 .. limit - 1, int64 [count]; the limit is under 2^32."""
    high = bits.random_raw(count) >> np.uint64(32)
    return ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def _squares(top: np.ndarray, left: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertical and horizontal positions in squares, [n, size, 1] and [n, 1, size]."""
    steps = np.arange(size)
    return (top[:, None] + steps)[:, :, None], (left[:, None] + steps)[:, None, :]


def _paste(canvases: np.ndarray, patches: np.ndarray, top: np.ndarray, left: np.ndarray) -> None:
    """Draw one patch on each canvas, in place, by maximum."""
    where = (np.arange(len(canvases))[:, None, None], *_squares(top, left, patches.shape[1]))
    canvases[where] = np.maximum(canvases[where], patches)
