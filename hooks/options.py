"""Checks of options that come from a config: each returns the value, or says in one line what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainer.errors import UserError, unknown_name


def check_flag(name: str, value: Any) -> bool:
    """Return True or False.

    Args:
        name: of the option.
        value: that was given.

    Raises:
        UserError: anything else, 0 and 1 included.
    """
    if not isinstance(value, bool):
        raise UserError(f"Invalid {name}: {value!r}. Expected true or false.")
    return value


def check_integer(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
    """Return a whole number in a range.

    Args:
        name: of the option.
        value: that was given.
        minimum: smallest value allowed.
        maximum: largest value allowed; None for any.

    Raises:
        UserError: anything else, 2.0 and true included.
    """
    if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
        bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise UserError(f"Invalid {name}: {value!r}. Expected a whole number {bounds}.")
    return value


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above_minimum: bool = False,
    expected: str | None = None,
) -> float:
    """Return a finite number in a range as a float.

    Args:
        name: of the option.
        value: that was given.
        minimum: smallest value allowed.
        maximum: largest value allowed.
        above_minimum: whether the minimum itself is out of range.
        expected: what the message asks for; None for a number in that range.

    Raises:
        UserError: anything else, text such as "1" and true included.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not minimum <= value <= maximum or (above_minimum and value == minimum):
        wanted = expected or _range_in_words(minimum, maximum, above_minimum)
        raise UserError(f"Invalid {name}: {value!r}. Expected {wanted}.")
    return float(value)


def _range_in_words(minimum: float, maximum: float, above_minimum: bool) -> str:
    if maximum < math.inf:
        return f"a number in {'(' if above_minimum else '['}{minimum:g}, {maximum:g}]"
    if minimum > -math.inf:
        return f"a number {'above' if above_minimum else 'of at least'} {minimum:g}"
    return "a finite number"


def check_choice(name: str, value: Any, known: Sequence[str]) -> str:
    """Return one of several names.

    Args:
        name: of the option.
        value: that was given.
        known: the names that exist.

    Raises:
        UserError: another one; suggests the nearest.
    """
    if not isinstance(value, str) or value not in known:
        raise unknown_name(name, str(value), known)
    return value


def check_patterns(name: str, value: Any) -> str | list[str]:
    """Return one pattern on paths, or a list of them.

    Args:
        name: of the option.
        value: that was given.

    Raises:
        UserError: an empty text or list, or other things in it.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        patterns = list(value)
        if all(isinstance(pattern, str) and pattern for pattern in patterns):
            return patterns
    raise UserError(f"Invalid {name}: {value!r}. Expected a pattern such as '*', or a list of patterns.")
