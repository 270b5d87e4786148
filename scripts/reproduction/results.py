"""recipes/results.json: the rows that were measured last; a row is replaced as a whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.reproduction.rows import Row
from scripts.reproduction.table import render
from trainer.errors import UserError
from trainer.files import read_json, write_whole

FILE = Path(__file__).resolve().parents[2] / "recipes" / "results.json"
TABLE = "RESULTS.md"
VERSION = 1
REMEDY = "Expected what reproduce.py writes: take it from version control, or remove it."
KEYS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "recipe": str,
    "data": str,
    "seeds": list,
    "commands": list,
    "measures": list,
    "goals": list,
    "bytes": (int, float, type(None)),
    "seconds": dict,
    "threads": int,
    "under_load": bool,
    "environment": dict,
}


def read_results(path: Path) -> list[Row]:
    """Return the rows of a file; none where there is no file.

    Args:
        path: of results.json.

    Raises:
        UserError: it is damaged or of another format.
    """
    if not path.exists():
        return []
    try:
        content: Any = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: it is damaged. {REMEDY}") from error
    rows = content.get("rows") if isinstance(content, dict) and content.get("version") == VERSION else None
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise UserError(f"{path} is of another format than version {VERSION}. {REMEDY}")
    return rows


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return False
    if "not_run" in row:
        return all(isinstance(row.get(key), str) for key in ("title", "recipe", "data", "not_run"))
    return all(isinstance(row.get(key, ...), kind) for key, kind in KEYS.items()) and bool(row["measures"])


def merge(rows: Sequence[Row], new: Row, order: Sequence[str]) -> list[Row]:
    """Return rows with a new one in its place; one that was not run replaces none that was.

    Args:
        rows: as they are.
        new: to be added.
        order: names of the targets.
    """
    named = {row["name"]: row for row in rows}
    before = named.get(new["name"])
    if "not_run" not in new or before is None or "not_run" in before:
        named[new["name"]] = new
    places = {name: place for place, name in enumerate(order)}
    return sorted(named.values(), key=lambda row: places.get(row["name"], len(places)))


def write_results(path: Path, rows: Sequence[Row]) -> None:
    """Write results.json, and the table beside it.

    Args:
        path: of results.json.
        rows: in order.

    Raises:
        UserError: one of the files cannot be written.
    """
    _write(path, json.dumps({"version": VERSION, "rows": list(rows)}, indent=1, ensure_ascii=False) + "\n")
    write_table(path, rows)


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write the table.

    Args:
        path: of results.json, beside which it lies.
        rows: in order.

    Raises:
        UserError: a row is of another format, or the file cannot be written.
    """
    try:
        text = render(rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is of another format ({type(error).__name__}: {error}). {REMEDY}") from error
    _write(path.with_name(TABLE), text)


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Give another with results=.") from error
