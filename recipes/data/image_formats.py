"""The kinds of image files that are read."""

from __future__ import annotations

import re

from hookline.trainer.errors import UserError

KINDS = ("JPEG", "PNG", "BMP", "GIF")
"""As Pillow names them; it opens no other."""
FORMATS = "JPEG, PNG, BMP or GIF"
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF8")
SIGNATURE_BYTES = 8
MAX_REASON = 160


class UnreadableImage(Exception):  # noqa: N818 - it is the file that is wrong
    """Report that bytes are no whole image; the message says why."""


def check_beginning(data: bytes) -> None:
    """Check that a file may be an image of these kinds, whatever its name says."""
    if not data.startswith(SIGNATURES):
        raise UnreadableImage(f"it begins with {data[:SIGNATURE_BYTES]!r}" if data else "it is empty")


def unreadable(name: str, reason: object) -> UserError:
    """Return the error for a file that gives no image."""
    return UserError(
        f"{described(name, reason)}; expected a whole {FORMATS}. Replace or remove it, or set data.corrupt=skip."
    )


def described(name: str, reason: object) -> str:
    """Return what is wrong with an image, in a clause."""
    plain = re.sub(r"\{\{.*?\}\}|\[Op:.*| <_io[^>]*>", "", " ".join(str(reason).split())).strip(" .")[:MAX_REASON]
    return f"'{name}' cannot be read as an image ({plain})"
