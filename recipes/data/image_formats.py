"""The kinds of image files that are read."""

from __future__ import annotations

import re

from trainer.errors import UserError

FORMATS = "JPEG, PNG, BMP or GIF"
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF8")
SIGNATURE_BYTES = 8
MAX_REASON = 160


def begins_as_image(beginning: bytes) -> bool:
    """Return whether a file with this beginning may be an image of these kinds, whatever its name says.

    TensorFlow 2.21 decodes more kinds, but an animated WebP corrupts its memory, so no other content may reach it.

    Args:
        beginning: the first `SIGNATURE_BYTES` of it, or all where it has fewer.
    """
    return beginning.startswith(SIGNATURES)


def unreadable(path: str, reason: str) -> UserError:
    """Return the error for a file that gives no image.

    Args:
        path: of the file.
        reason: why it does not, in the words of the system or of TensorFlow.
    """
    plain = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", " ".join(reason.split())).strip(" .")[:MAX_REASON]
    return UserError(
        f"'{path}' cannot be read as an image ({plain}); expected a whole {FORMATS}. Replace or remove the file."
    )
