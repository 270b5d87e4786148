"""Keys of a config with dots between their names, and what they lead to in plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.config.schema import NAMED


def children(node: Any) -> dict[str, Any]:
    """Return what a mapping holds by name, and what a list holds by place, from "0"; nothing for other values.

    Args:
        node: plain value.
    """
    if isinstance(node, Mapping):
        return {str(name): value for name, value in node.items()}
    return {str(place): value for place, value in enumerate(node)} if isinstance(node, list) else {}


def follow(node: Any, key: str) -> tuple[list[tuple[str, Any]], str | None]:
    """Follow a key through plain values, as far as it goes.

    A name may hold dots itself, as the pattern "dense_.*" does: of several that fit, the longest counts.

    Args:
        node: that holds the first name.
        key: such as "optimizer.learning_rate" or "model.units.0".

    Returns:
        Each name with its value, and what is left of the key; None where it leads to the last of the values.
    """
    passed: list[tuple[str, Any]] = []
    rest: str | None = key
    while rest is not None:
        named = children(node)
        name = max((each for each in named if f"{rest}.".startswith(f"{each}.")), key=len, default=None)
        if name is None:
            break
        node = named[name]
        passed.append((name, node))
        rest = None if name == rest else rest[len(name) + 1 :]
    return passed, rest


def lookup(node: Any, key: str) -> Any:
    """Return the value that a key leads to; None where it leads to none.

    Args:
        node: plain value that holds the first name.
        key: as for `follow`.
    """
    passed, rest = follow(node, key)
    return passed[-1][1] if rest is None else None


def is_part(key: str) -> bool:
    """Return whether a key is that of a part by name, such as "hooks.prune".

    Args:
        key: with its section.
    """
    section, _, name = key.partition(".")
    return section in NAMED and bool(name) and "." not in name
