"""Checks of options that come from a config."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainer.errors import UserError


def check_bools(**options: Any) -> None:
    """Raise a UserError unless every option is True or False.

    Args:
        **options: by name.
    """
    for name, value in options.items():
        if not isinstance(value, bool):
            raise UserError(f"Invalid {name}: {value!r}. Expected true or false.")


def check_positive(name: str, value: Any) -> float:
    """Return a finite number above 0 as a float, or raise a UserError.

    Args:
        name: of the option.
        value: that was given.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"Invalid {name}: {value!r}. Expected a number above 0, such as 1.0.")
    return float(value)


def check_patterns(name: str, value: Any) -> str | list[str]:
    """Return one pattern or a list of them, or raise a UserError.

    Args:
        name: of the option.
        value: that was given.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        patterns = list(value)
        if all(isinstance(pattern, str) and pattern for pattern in patterns):
            return patterns
    raise UserError(f"Invalid {name}: {value!r}. Expected a pattern such as '*', or a list of patterns.")
