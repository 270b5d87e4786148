"""Where the keys of a YAML file stand, and the comments beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML was built with it


@dataclass(frozen=True)
class Place:
    """Say where a key stands.

    Attributes:
        line: from 1.
        comment: what follows the value, or the key of a mapping, on its line; empty for none.
    """

    line: int
    comment: str = ""


def read_places(path: Path) -> dict[str, Place]:
    """Return the place of every key of a YAML file, keys in keys as "trainer.epochs".

    Args:
        path: of a file that can be read and holds a mapping, or nothing.
    """
    text = path.read_text(encoding="utf-8")
    found: dict[str, Place] = {}
    root = yaml.compose(text, Loader=LOADER)
    if isinstance(root, yaml.MappingNode):
        _collect(root, "", text.splitlines(), found)
    return found


def _collect(node: yaml.MappingNode, prefix: str, lines: list[str], found: dict[str, Place]) -> None:
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        nested = isinstance(value, yaml.MappingNode) and not value.flow_style
        end = key.end_mark if nested else value.end_mark
        rest = lines[end.line][end.column :] if end.line < len(lines) else ""
        _, sign, comment = rest.partition("#")
        found[name] = Place(key.start_mark.line + 1, comment.strip() if sign else "")
        if isinstance(value, yaml.MappingNode):
            _collect(value, f"{name}.", lines, found)
