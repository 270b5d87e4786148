"""Animations: pictures that are shown again and again, as GIF files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

MOST_FRAMES = 200  # beyond these every second one goes, so that memory stays small however long the run
TOTAL_MILLISECONDS, SHORTEST, LONGEST = 10_000, 60, 500  # of all frames together, and of one
LAST_MILLISECONDS = 2_000


@dataclass
class Frames:
    """Hold the frames of one animation, compressed, evenly spread over all that were added.

    Attributes:
        kept: frames as PNG.
        stride: every so many of those that are added are kept.
        added: how many there have been.
        latest: the last one that was added.
    """

    kept: list[bytes] = field(default_factory=list)
    stride: int = 1
    added: int = 0
    latest: bytes = b""

    def add(self, picture: np.ndarray) -> None:
        """Add a picture.

        Args:
            picture: float [height, width, 1 or 3] in [0, 1].
        """
        self.latest = _compress(picture)
        if self.added % self.stride == 0:
            self.kept.append(self.latest)
        self.added += 1
        if len(self.kept) > MOST_FRAMES:
            del self.kept[1::2]
            self.stride *= 2

    @classmethod
    def restored(cls, added: int, read: Callable[[int], bytes]) -> Frames:
        """Return the frames that there were after so many additions.

        Args:
            added: how many there had been, at least 1.
            read: called with the number of a frame, from 0 in the order of their addition; returns it as PNG.
        """
        stride = 1
        while (added - 1) // stride + 1 > MOST_FRAMES:
            stride *= 2
        kept = {number: read(number) for number in range(0, added, stride)}
        latest = kept[added - 1] if added - 1 in kept else read(added - 1)
        return cls(list(kept.values()), stride, added, latest)

    def encode(self) -> bytes:
        """Return all frames as an animated GIF that repeats for ever and rests on the last one."""
        frames = self.kept if self.kept[-1] is self.latest else [*self.kept, self.latest]
        images = [Image.open(io.BytesIO(frame)) for frame in frames]
        size = max(image.width for image in images), max(image.height for image in images)
        first, *others = [_on_canvas(image, size) for image in images]
        each = int(np.clip(TOTAL_MILLISECONDS / len(frames), SHORTEST, LONGEST))
        file = io.BytesIO()
        durations = [each] * len(others) + [LAST_MILLISECONDS]
        first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
        return file.getvalue()


def add_frames(animations: dict[str, Frames], pictures: Mapping[str, np.ndarray]) -> None:
    """Add a picture to each animation of its name.

    Args:
        animations: by name; a new name gets a new one.
        pictures: float [height, width, 1 or 3] in [0, 1], by name.
    """
    for name, picture in pictures.items():
        animations.setdefault(name, Frames()).add(picture)


def encode_animations(animations: Mapping[str, Frames]) -> dict[str, bytes]:
    """Return animated GIFs by name; what was shown once only is no animation.

    Args:
        animations: by name.
    """
    return {name: frames.encode() for name, frames in animations.items() if frames.added > 1}


def _compress(picture: np.ndarray) -> bytes:
    """Return a picture in 256 colours, as a GIF has them, as PNG."""
    pixels = np.round(picture * 255.0).astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(file, "PNG")
    return file.getvalue()


def _on_canvas(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return an image as large as all frames are; one that is smaller stands in the upper left corner."""
    if image.size == size:
        image.load()
        return image
    canvas = Image.new("RGB", size)
    canvas.paste(image.convert("RGB"))
    return canvas.quantize(256, dither=Image.Dither.NONE)
