"""Whole numbers in environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.errors import UserError


def number_of(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable as a whole number of at least 0.

    Args:
        environment: variables by name.
        name: of the variable.
        default: where it is not set; None where it must be.

    Raises:
        UserError: it is not set, or no number.
    """
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise UserError(f"{name}={text or '(not set)'} received. Expected a whole number of at least 0.")
    return int(text)
