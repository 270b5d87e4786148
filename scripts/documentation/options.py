"""The keys of a hook's YAML file with their defaults and comments, as they are written there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

KEY = re.compile(r"  (?P<key>\w+):\s*(?P<default>\"[^\"]*\"|.*?)(?:\s+#\s*(?P<comment>.*))?")
FURTHER = re.compile(r"\s+#\s*(?P<comment>.*)")
TARGET = "_target_"


@dataclass(frozen=True)
class Option:
    """Hold a key.

    Attributes:
        key: its name.
        default: as it is written.
        comment: behind it and on the lines below it; empty for none.
    """

    key: str
    default: str
    comment: str


def read_options(path: Path) -> list[Option]:
    """Return what a hook's config file says of its keys, in their order, without the target.

    Args:
        path: a file with one hook: its name in the first column, its keys two columns further in.

    Raises:
        ValueError: a line that is none of these.
    """
    options: list[Option] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            continue  # what the file is for, and the hook's name
        if (more := FURTHER.fullmatch(line)) and options:
            last = options.pop()
            options.append(Option(last.key, last.default, f"{last.comment} {more['comment']}".strip()))
        elif found := KEY.fullmatch(line):
            options.append(Option(found["key"], found["default"], found["comment"] or ""))
        else:
            raise ValueError(f"{path.name}: '{line.strip()}' is no 'key: value  # comment' in one line.")
    return [option for option in options if option.key != TARGET]
