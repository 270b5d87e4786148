"""Tables as CSV, with names that anybody may have given."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hookline.trainer.errors import printable

FORMULA = ("=", "+", "-", "@")
"""A spreadsheet computes a text that begins so."""


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        float(value)
        return value
    shown = printable(value)
    return f"'{shown}" if len(shown) > 1 and shown.startswith(FORMULA) else shown
