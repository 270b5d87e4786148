"""Values as they are typed on the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


def show(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(show, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{show(item)}" for key, item in value.items()) + "}"
    return str(value)


def visible(value: Any) -> str:
    """Return a value as `show` does, but an empty string in quotes."""
    return show(value) if value != "" else "''"


def quoted(path: Path | str) -> str:
    """Return a path as a value on the command line, in quotes if it has special characters."""
    text = str(path)
    if PLAIN.fullmatch(text):
        return text
    # Hydra takes a backslash literally, except before a quote.
    return "'" + re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'") + "'"


def resume_override(directory: Path | str) -> str:
    """Return resume=<directory> as it is typed in a shell."""
    text = f"resume={quoted(directory)}"
    return f'"{text}"' if "'" in text and not {*'"$`\\!'} & {*text} else shlex.quote(text)
