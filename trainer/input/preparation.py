"""How raw inputs become network inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hookline.trainer.errors import UserError

FITS = ("crop", "stretch")
AXES = ("last", "first", "new")
PIXEL_PEAK = 255
"""The largest pixel value of an image file decoded to 8 bits."""
Range: TypeAlias = "tuple[float, float] | None"
"""The network's input values for the darkest and the brightest pixel; None if raw values are not pixels."""


@dataclass(frozen=True)
class Preparation:
    """The preprocessing of a run's data."""

    shape: tuple[int, ...]  # of one network input: [height, width, channels] for an image
    scale: float = 1.0  # network input = scale * raw value + offset, in float32
    offset: float = 0.0  # see `scale`
    peak: float | None = None  # brightest raw value, such as 255; None if raw values are not pixels
    fit: str = FITS[0]  # how image files are resized: "crop" or "stretch" (see `recipes/data/images.py`)
    axes: str = AXES[0]  # channel axis of raw arrays: "last", "first", or "new" for one channel without an axis

    @property
    def raw_shape(self) -> tuple[int, ...]:
        if self.axes == "new":
            return self.shape[:-1]
        return (self.shape[-1], *self.shape[:-1]) if self.axes == "first" else self.shape

    @property
    def black_and_white(self) -> tuple[float, float]:
        """Return the network's input values for the darkest and the brightest pixel; -1 and 1 if these are unknown."""
        return self.pixel_range or (-1.0, 1.0)

    @property
    def pixel_range(self) -> Range:
        return None if self.peak is None else (self.offset, self.offset + self.scale * self.peak)

    @property
    def takes_images(self) -> bool:
        """Return whether image files can be converted to network inputs."""
        return self.peak is not None and len(self.shape) == 3 and self.shape[-1] in (1, 3)

    def of_arrays(self, raw: np.ndarray) -> np.ndarray:
        """Return raw examples as network inputs, float32 [n, *shape]."""
        if raw.dtype.kind not in "iufb":
            raise UserError(f"Received examples of dtype {raw.dtype}. Expected numbers.")
        if raw.shape[1:] == self.raw_shape and self.axes == "new":
            raw = raw[..., np.newaxis]
        elif raw.shape[1:] == self.raw_shape and self.axes == "first":
            raw = np.moveaxis(raw, 1, -1)
        elif raw.shape[1:] != self.shape:
            expected = [list(each) for each in dict.fromkeys((self.raw_shape, self.shape))]
            shapes = " or ".join(map(str, expected))
            raise UserError(f"Received examples of shape {list(raw.shape[1:])}. Expected {shapes} for each.")
        if raw.dtype.kind == "f" and not np.isfinite(raw).all():
            raise UserError("Received examples with NaN or infinite values. Expected finite numbers.")
        scaled_already = raw.dtype.kind == "f" and raw.size and 0 < raw.max() <= 1
        if self.peak is not None and raw.size and (raw.min() < 0 or raw.max() > self.peak or scaled_already):
            raise UserError(
                f"Received values from {raw.min():g} to {raw.max():g}. Expected pixels from 0 to {self.peak:g}, as "
                "the network's data has them; it scales them itself."
            )
        return self._scaled(raw, self.scale)

    def of_images(self, pixels: np.ndarray) -> np.ndarray:
        """Return the pixels of image files as network inputs, float32 [n, *shape]."""
        assert self.peak is not None
        return self._scaled(pixels, self.scale if self.peak == PIXEL_PEAK else self.scale * self.peak / PIXEL_PEAK)

    def _scaled(self, raw: np.ndarray, scale: float) -> np.ndarray:
        values = raw.astype(np.float32)
        if scale != 1.0:
            values *= np.float32(scale)
        if self.offset:
            values += np.float32(self.offset)
        return np.ascontiguousarray(values)


def different_ranges(first: Range, second: Range) -> list[str]:
    """Return descriptions of two pixel ranges if they differ, else an empty list."""
    if first == second or (first and second and np.allclose(first, second, rtol=0, atol=1e-3)):
        return []
    return ["of no known range" if each is None else f"from {each[0]:g} to {each[1]:g}" for each in (first, second)]


def pixel_preparation(shape: tuple[int, ...], peak: int, *, fit: str = FITS[0], axes: str | None = None) -> Preparation:
    """Return the preparation of pixels 0 .. peak to [-1, 1]; by default, raw gray images have no channel axis."""
    return Preparation(shape, 2.0 / peak, -1.0, peak=peak, fit=fit, axes=axes or ("new" if shape[-1] == 1 else "last"))
