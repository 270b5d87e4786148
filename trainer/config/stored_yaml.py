"""YAML that a run has written, from a file that anybody may have made: bounded, and nothing in it refers to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainer.files import MAX_DEPTH, read_bytes

MAX_BYTES = 2**20
"""A hundred times what a run writes."""
MAX_TEXT = 2**16
"""Characters of one value: to read a longer number takes long."""
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> Any:
    """Return the plain values that a YAML file holds.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be read, is too large, or is a link, a pipe or a device.
        ValueError: as for `parse_yaml`.
    """
    return parse_yaml(read_bytes(path, MAX_BYTES).decode())


def parse_yaml(text: str) -> Any:
    """Return the plain values that a YAML text holds.

    Args:
        text: of a file that anybody may have made.

    Raises:
        ValueError: it is no YAML, or something that no run writes: an anchor, a very long value, very deep nesting.
    """
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
    try:
        _check(text)
        return yaml.load(text, LOADER)
    except (yaml.YAMLError, ArithmeticError) as error:  # of a number
        raise ValueError(str(error)) from error


def _check(text: str) -> None:
    """Refuse what a run does not write, event by event, before anything is built of it."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise ValueError("it holds an anchor")
        if depth > MAX_DEPTH or (isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT):
            raise ValueError("it holds too much")
