"""Options of data sets on canvases: each is checked, and "auto" gets its value."""

from __future__ import annotations

from typing import Any

from trainer.errors import UserError
from trainer.input.checks import is_whole_number

AUTO = "auto"


def check_amount(name: str, value: Any) -> None:
    """Check a seed, or a number of fragments.

    Args:
        name: of the option, without "data.".
        value: that was given.

    Raises:
        UserError: anything but a whole number of 0 or more.
    """
    if not is_whole_number(value) or value < 0:
        raise UserError(f"Received data.{name}={value!r}; expected an integer of 0 or more.")


def check_count(name: str, value: Any) -> None:
    """Check a number of examples.

    Args:
        name: of the option, without "data.".
        value: that was given; None for as many as there are.

    Raises:
        UserError: anything but a whole number of 1 or more, or None.
    """
    if value is not None and (not is_whole_number(value) or value < 1):
        raise UserError(f"Received data.{name}={value!r}; expected an integer of 1 or more, or null.")


def resolve_pixels(name: str, value: Any, default: int, *, least: int, most: int | None = None) -> int:
    """Return a number of pixels a side.

    Args:
        name: of the option, without "data.".
        value: that was given; "auto" for the default.
        default: what suits the images.
        least: smallest number allowed.
        most: largest number allowed; None for any.

    Raises:
        UserError: anything else.
    """
    if value == AUTO:
        return default
    if not is_whole_number(value) or value < least or (most is not None and value > most):
        span = f"of {least} or more" if most is None else f"in {least}..{most}"
        raise UserError(f"Received data.{name}={value!r}; expected 'auto' or a number of pixels {span}.")
    return int(value)
