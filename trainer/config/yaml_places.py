"""Where the keys of a YAML file stand, and the comments beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

COMMENT = re.compile(r"[^\"']*?(?:^|\s)#\s*(.*)")
"""What follows a value on its line: neither in the quotes of the next one, nor a sign within a word."""
LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML was built with it


@dataclass(frozen=True)
class Place:
    """Say where a key stands.

    Attributes:
        line: from 1.
        comment: what follows the value, or the key of a block, on its line; empty for none.
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
        collection = isinstance(value, yaml.CollectionNode)
        block = not value.flow_style if collection else value.style in ("|", ">")
        end = key.end_mark if block else value.end_mark  # a block ends where the next key begins
        comment = COMMENT.match(lines[end.line][end.column :] if end.line < len(lines) else "")
        found[name] = Place(key.start_mark.line + 1, comment[1].strip() if comment else "")
        if isinstance(value, yaml.MappingNode):
            _collect(value, f"{name}.", lines, found)
