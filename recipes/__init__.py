"""Recipes: the networks, objectives, data and evaluation to train with. Checks of plain options are here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import is_whole_number


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Check that an option is one of some names."""
    names = list(known)
    if value not in names:
        raise unknown_name(name, str(value), names)


def check_whole(name: str, value: Any, least: int, most: float = math.inf) -> None:
    """Check that an option is a whole number in a range."""
    if not is_whole_number(value) or not least <= value <= most:
        span = f"of at least {least}" if most == math.inf else f"in {least}..{most}"
        raise UserError(f"{name}={value!r} received. Expected a whole number {span}.")


def check_number(name: str, value: Any, least: float, most: float = math.inf, *, open_below: bool = False) -> float:
    """Return an option as a float, if it is a finite number in a range; `open_below` leaves the least out."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not least <= value <= most or (open_below and value == least):
        span = f"above {least:g}" if open_below else f"of at least {least:g}"
        span += f" and at most {most:g}" if most != math.inf else ""
        raise UserError(f"{name}={value} received. Expected a number {span}.")
    return float(value)
