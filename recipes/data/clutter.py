"""Place images at random on larger canvases, among fragments of other images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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

    Every place and fragment is uniform: where the image lies, where a fragment lies, which other image it is from,
    and which square of that image it is. Where things overlap, the brighter pixel shows. The images lie at the same
    places whatever the fragments are.

    A pure function of its arguments, the same on every machine and NumPy version: it uses only the raw stream of the
    bit generator, which NumPy keeps stable, and whole numbers.

    Args:
        images: uint8 [size, side, side]; at least 2 where there are fragments.
        rows: int64 [n], the image on each canvas.
        clutter: of the canvases.
        seed: 0 or more.
        stream: 0 or more; another stream gives other draws.

    Returns:
        uint8 [n, canvas, canvas], and the images' boxes, int64 [n, 4]: top, left, height, width in pixels.
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
