"""From a section of the config to the part of a run that it stands for, checked to be one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from trainer.config.build import build
from trainer.config.parts import TARGET
from trainer.errors import UserError

Part = TypeVar("Part")


def build_part(
    key: str, node: Mapping[str, Any], kind: type[Part], *, plugins: Sequence[str] = (), **injected: Any
) -> Part:
    """Return what a section of the config builds.

    Args:
        key: of the section, such as "model".
        node: `_target_` and keyword arguments.
        kind: what it must be.
        plugins: packages that the user allows beside this project and Keras.
        injected: further arguments, for those that take them.

    Raises:
        UserError: as `build` raises it, or the result is of another kind.
    """
    part = build(node, group=key, plugins=plugins, **injected)
    if not isinstance(part, kind):
        raise UserError(
            f"{key}._target_={node[TARGET]} returned a value of type {type(part).__name__}. "
            f"Expected {kind.__module__.partition('.')[0]}'s {kind.__name__}."
        )
    return part
