"""Whether examples are held in memory, and whether they fit."""

from __future__ import annotations

import os

from trainer.errors import UserError, unknown_name

CACHES = ("auto", "memory", "none")
AUTO_BYTES = 2**30
"""Cache "auto" holds what takes no more."""
SHARE = 0.5
"""How much of the machine's memory examples may take; TensorFlow copies them once."""


def is_held(cache: str, size: int) -> bool:
    """Return whether examples are held in memory.

    Args:
        cache: "memory", "none", or "auto", which is "memory" up to 1 GiB.
        size: bytes that they take.

    Raises:
        UserError: another cache.
    """
    if cache not in CACHES:
        raise unknown_name("data.cache", cache, CACHES)
    return size <= AUTO_BYTES if cache == "auto" else cache == "memory"


def check_fits(size: int, what: str, mend: str) -> None:
    """Check that examples take no more than half of the machine's memory.

    Args:
        size: bytes that they take.
        what: they are called in messages.
        mend: what to do where they take more.

    Raises:
        UserError: they take more.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > SHARE * total:
        raise UserError(
            f"{what} takes {size / 2**30:.1f} GiB, and this machine has {total / 2**30:.1f} GiB; expected at most "
            f"half. {mend}"
        )
