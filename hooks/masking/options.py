"""Checks of options of masks that depend on one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.errors import UserError


def check_partner(name: str, value: Any, masks: str, *, users: Sequence[str]) -> str | None:
    """Return an option that some sources of masks need, and that has no effect on the others.

    Args:
        name: of the option.
        value: that was given.
        masks: the source of masks.
        users: the sources that need the option.

    Raises:
        UserError: it is needed and missing, or given without effect.
    """
    if masks in users and (not isinstance(value, str) or not value):
        raise UserError(f"masks={masks} needs {name}=... Received: {name}={value!r}.")
    if masks not in users and value is not None:
        raise UserError(f"{name}={value} has no effect with masks={masks}. Expected masks={' or '.join(users)}.")
    return value


def check_following(hook: str, *, freeze: str) -> None:
    """Refuse to freeze what another hook leaves free.

    Args:
        hook: that makes the masks.
        freeze: what is frozen.

    Raises:
        UserError: the survivors, which says what to do.
    """
    if freeze == "survivors":
        raise UserError(
            f"freeze=survivors cannot follow the hook '{hook}', which sets the values of what it masks. "
            "Expected freeze=masked, or a second run with masks=zeros."
        )
