"""Checks of constructor arguments: one line for the user instead of a failure later."""

from __future__ import annotations

import math
from typing import Any

from trainer.errors import UserError


def check_integer(hook: str, argument: str, value: object, minimum: int) -> int:
    """Return `value` when it is an integer of at least `minimum`.

    Args:
        hook: the hook's name in the config, for the message.
        argument: the argument's name.
        value: what was received.
        minimum: the smallest value allowed.

    Raises:
        UserError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UserError(f"hooks.{hook}.{argument} received {value!r}. Expected an integer of at least {minimum}.")
    return value


def check_number(hook: str, argument: str, value: Any, minimum: float, exclusive: bool = False) -> float:
    """Return `value` as a float when it is a finite number in range.

    Args:
        hook: the hook's name in the config, for the message.
        argument: the argument's name.
        value: what was received.
        minimum: the lower end of the range.
        exclusive: whether `minimum` itself is not allowed.

    Raises:
        UserError: anything else.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < minimum or (exclusive and value == minimum):
        bound = f"above {minimum:g}" if exclusive else f"of at least {minimum:g}"
        raise UserError(f"hooks.{hook}.{argument} received {value!r}. Expected a number {bound}.")
    return float(value)


def check_flag(hook: str, argument: str, value: object) -> bool:
    """Return `value` when it is true or false.

    Args:
        hook: the hook's name in the config, for the message.
        argument: the argument's name.
        value: what was received.

    Raises:
        UserError: anything else.
    """
    if not isinstance(value, bool):
        raise UserError(f"hooks.{hook}.{argument} received {value!r}. Expected true or false.")
    return value
