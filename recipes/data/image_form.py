"""The form that all images of a set are brought to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError, unknown_name
from trainer.input.checks import is_whole_number

FITS = ("crop", "stretch")


@dataclass(frozen=True)
class ImageForm:
    """Describe the pixels that every image becomes.

    Attributes:
        height: in pixels.
        width: in pixels.
        channels: 3 (colour) or 1 (grey).
        fit: "crop" keeps the proportions and cuts the middle out; "stretch" changes them and cuts nothing.
    """

    height: int
    width: int
    channels: int
    fit: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return height, width and channels."""
        return (self.height, self.width, self.channels)

    @property
    def bytes(self) -> int:
        """Return how much memory one image takes, at one byte a value."""
        return self.height * self.width * self.channels


def image_form(image_size: Any, fit: Any, channels: Any) -> ImageForm:
    """Return the form that a user describes.

    Args:
        image_size: data.image_size, height and width in pixels, or one number for both.
        fit: data.fit, "crop" or "stretch".
        channels: data.channels, 3 or 1.

    Raises:
        UserError: anything else.
    """
    sides = list(image_size) if isinstance(image_size, list | tuple) else [image_size] * 2
    if len(sides) != 2 or not all(is_whole_number(side) and side > 0 for side in sides):
        raise UserError(
            f"Received data.image_size={image_size!r}; expected a number of pixels, or [height, width], such as 96."
        )
    if fit not in FITS:
        raise unknown_name("data.fit", fit, FITS)
    if not is_whole_number(channels) or channels not in (1, 3):
        raise UserError(f"Received data.channels={channels!r}; expected 3 for colour or 1 for grey.")
    return ImageForm(int(sides[0]), int(sides[1]), int(channels), fit)
