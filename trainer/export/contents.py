"""What an exported file holds, as a writer tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contents:
    """Describe what was written.

    Attributes:
        columns: heads of a table; the first column stands on the left, the others on the right.
        rows: of the table, a text for each column.
        notes: lines below the table.
        lossy: whether the file holds rounded values, so that its metrics may differ from the run's by more than the
            order of additions.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    lossy: bool = False
