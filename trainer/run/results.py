"""How results read: numbers, sizes and times as text, and the table of a summary's metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SHOWN_LOSS = "loss/total"
WHOLE = 1e-3
"""How far from a whole number rounding may have brought one."""
COMPLETE = ("completed", "stopped")
"""Of summary.json: the run has made all its steps, or a hook has ended it for good."""


def format_value(value: float | None) -> str:
    """Return a metric as text of four significant digits; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def format_metric(value: float | None, examples: int) -> str:
    """Return a metric of a split as text; a share of its examples with no more decimals than so many can tell apart.

    Args:
        value: such as an accuracy; None gives a dash.
        examples: of the split, 1 or more.
    """
    if value is None or not is_share_of(value, examples):
        return format_value(value)
    return f"{value:.{min(4, max(1, math.ceil(math.log10(examples))))}f}"


def is_share_of(value: float, examples: int) -> bool:
    """Return whether a value is a whole number of examples out of all, as accuracy is.

    Args:
        value: of a metric.
        examples: of the split, 1 or more.
    """
    return 0.0 <= value <= 1.0 and abs(value * examples - round(value * examples)) < WHOLE


def format_bytes(count: float) -> str:
    """Return a size in binary units, such as "13.19 KiB".

    Args:
        count: bytes.
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def format_seconds(seconds: float) -> str:
    """Return a duration as m:ss or h:mm:ss.

    Args:
        seconds: of at least 0.
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_share(share: float) -> str:
    """Return a share as text, such as "12 %"; what is not nothing is never called 0 %.

    Args:
        share: in [0, 1].
    """
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "under 1 %"


def short_name(name: str) -> str:
    """Return a metric's name as shown to people: "metric/accuracy" reads "accuracy", "loss/total" reads "loss".

    What stands before it stays: "generator/loss/total" reads "generator/loss".
    """
    if is_total_loss(name):
        return name.removesuffix("/total")
    return name.removeprefix("metric/") if name.startswith("metric/") else name.replace("/metric/", "/", 1)


def is_total_loss(name: str) -> bool:
    """Return whether a value is the total loss, of the only objective or of one among several."""
    return name == SHOWN_LOSS or name.endswith(f"/{SHOWN_LOSS}")


def is_metric(name: str) -> bool:
    """Return whether a value is a metric, of the only objective or of one among several."""
    return name.startswith("metric/") or "/metric/" in name


def metric_rows(summary: Mapping[str, Any]) -> list[tuple[str, float | None, float | None, float | None]]:
    """Return the metrics and the total losses of a summary as rows: name, train, validation, test.

    Args:
        summary: what `summary.json` holds; a run that failed early may lack any part.
    """
    columns = [_values(summary.get("final")), _values(_values(summary.get("best")).get("values"))]
    columns.append(_values(summary.get("test")))
    names = {name: None for column in columns for name in column if is_metric(name)}
    names |= {name: None for column in columns for name in column if is_total_loss(name)}
    return [(short_name(name), *(column.get(name) for column in columns)) for name in names]  # type: ignore[misc]


def _values(part: Any) -> Mapping[str, Any]:
    return part if isinstance(part, Mapping) else {}
