"""Names, namespaces and formatting of the values that a run reports."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hookline.trainer.files import read_json

TRAINERS = {
    "loss": "what training minimizes: each term, and their sum, loss/total",
    "metric": "how good the networks are: averages over examples, or values of a whole split",
    "grad_norm": "L2 norm of all gradients of a network: before the hooks, after each that may change them, at the end",
    "opt": "of the optimizer: the learning rate of the next step, and in float16 the scale of the loss",
    "time": "milliseconds since the last report, by what took them; the speed; the share spent waiting for batches",
}
"""Namespaces that the trainer fills with any recipe and hooks."""
TECHNIQUES = {
    "sparsity": "share of zeros among the weights that the next forward pass sees, overall and by layer",
    "bnn": "low-bit weights: the share that changed value, and the share of latent weights at the clip",
    "attention": "the map of an attention gate: its mean and entropy, the share kept, and that inside the box",
    "center": "features and the centers of their classes: distances within and between, length of the centers",
    "ema": "the moving average of the weights: its decay, and how far the weights are from it",
}
"""Namespaces of techniques, named by the field's terms."""
OWN = "measures of the hook of that name"
"""Any other hook reports under its own name, and so does one of the above if it is given another name."""
NAMESPACES = {**TRAINERS, **TECHNIQUES}


AUTO = "auto"
ACCURACY, TOTAL_LOSS = "metric/accuracy", "loss/total"
LOWER = re.compile(
    r"loss|error|entropy|distance|divergence|hinge|poisson|huber|log_?cosh|perplexity|false_?(posi|nega)tives"
    r"|(^|/)metric/(.*_)?(mae|mse|mape|smape|msle|rmse|bce|nll)$",
    re.IGNORECASE,
)
"""Names of metrics for which lower is better."""


def mode_of(monitor: str, mode: str) -> str:
    """Return "max" or "min": the mode that was set or, for "auto", the one that the metric's name implies."""
    return mode if mode != AUTO else "min" if LOWER.search(monitor) else "max"


def namespace_of(name: str, *, hooks: Collection[str] = (), scopes: Collection[str] = ()) -> str | None:
    """Return the namespace of a scalar; None if it is in no documented namespace."""
    for part in name.split("/")[:-1]:
        if part in NAMESPACES or part in hooks:
            return part
        if part not in scopes:
            return None
    return None


def explain(names: Iterable[str], *, hooks: Collection[str] = (), scopes: Collection[str] = ()) -> dict[str, str]:
    """Return a one-line explanation of each namespace of scalars, by namespace, in the order of the names."""
    found = dict.fromkeys(namespace_of(name, hooks=hooks, scopes=scopes) for name in names)
    return {each: NAMESPACES.get(each, OWN) for each in found if each is not None}


WHOLE = 1e-3
"""The tolerance for rounding errors in a whole number."""
COMPLETE = ("completed", "stopped")
"""Statuses of complete runs in summary.json: all steps were made, or a hook ended the run for good."""


def read_summary(run: Path) -> dict[str, Any]:
    """Return the contents of a run's summary.json; an empty dict if it cannot be read."""
    try:
        summary = read_json(run / "summary.json")
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def is_complete(summary: Mapping[str, Any]) -> bool:
    """Return whether a run is complete, so that nothing is left to do."""
    return summary.get("status") in COMPLETE


def format_value(value: float | None) -> str:
    """Return a metric as text: four decimals, or four significant digits if it is tiny or huge; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def format_metric(value: float | None, examples: int) -> str:
    """Return a metric of a split as text; a share of its examples has no more decimals than their number resolves."""
    if value is None or not 0.0 <= value <= 1.0 or abs(value * examples - round(value * examples)) >= WHOLE:
        return format_value(value)  # not a share of the examples, as accuracy is
    return f"{value:.{min(4, max(1, math.ceil(math.log10(examples))))}f}"


def format_bytes(count: float) -> str:
    """Return a size in binary units, such as "13.19 KiB"."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def format_seconds(seconds: float) -> str:
    """Return a duration as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_share(share: float) -> str:
    """Return a share as text, such as "12 %"; only an exact 0 reads "0 %"."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "under 1 %"


def short_name(name: str) -> str:
    """Return the display name of a metric: "metric/accuracy" reads "accuracy", "x/loss/total" reads "x/loss"."""
    if is_total_loss(name):
        return name.removesuffix("/total")
    return name.removeprefix("metric/") if name.startswith("metric/") else name.replace("/metric/", "/", 1)


def is_total_loss(name: str) -> bool:
    """Return whether a value is the total loss, of the only objective or of one among several."""
    return name == TOTAL_LOSS or name.endswith(f"/{TOTAL_LOSS}")


def is_metric(name: str) -> bool:
    """Return whether a value is a metric, of the only objective or of one among several."""
    return name.startswith("metric/") or "/metric/" in name


def metric_rows(summary: Mapping[str, Any]) -> list[tuple[str, float | None, float | None, float | None]]:
    """Return the metrics and the total losses of a summary as rows: name, train, validation, test."""
    columns = [_values(summary.get("final")), _values(_values(summary.get("best")).get("values"))]
    columns.append(_values(summary.get("test")))
    names = {name: None for column in columns for name in column if is_metric(name)}
    names |= {name: None for column in columns for name in column if is_total_loss(name)}
    return [(short_name(name), *(column.get(name) for column in columns)) for name in names]  # type: ignore[misc]


def _values(part: Any) -> Mapping[str, Any]:
    return part if isinstance(part, Mapping) else {}
