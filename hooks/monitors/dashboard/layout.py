"""The layout of the custom scalars tab: what belongs together in one chart, from the names that a run reports."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2, summary

from hookline.trainer.run.results import namespace_of

LOSS, METRIC, GRADIENTS, RATE, TIME = "loss", "metric", "grad_norm", "opt", "time"
TITLES = {LOSS: "Losses", METRIC: "Metrics", GRADIENTS: "Gradient norms", RATE: "Optimizer", TIME: "Time"}
"""Titles of the namespaces that any run has; a technique's own keep their name."""
WHOLE = (GRADIENTS, "sparsity")  # namespaces whose values all share one chart
TOTAL = "total"
HELD_UP = ("evaluation_ms", "save_ms")


class Chart(NamedTuple):
    """Describe a chart."""

    category: str
    title: str
    tags: str  # a regular expression for the names of its curves


def layout_summary(names: Iterable[str], *, hooks: Collection[str], networks: Collection[str]) -> Summary:
    """Return the layout as a record for the custom scalars plugin; without values where there is nothing to show."""
    layout = layout_pb2.Layout()
    for chart in charts(names, hooks=hooks, networks=networks):
        if not layout.category or layout.category[-1].title != chart.category:
            layout.category.add(title=chart.category)
        layout.category[-1].chart.add(title=chart.title).multiline.tag.append(chart.tags)
    return Summary.FromString(summary.pb(layout).SerializeToString()) if layout.category else Summary()


def charts(names: Iterable[str], *, hooks: Collection[str], networks: Collection[str]) -> list[Chart]:
    """Return charts in which each name has a curve: losses, metrics, techniques, gradients, learning rate, time."""
    names, total = sorted(set(names)), f"/{LOSS}/{TOTAL}"
    scopes = {*networks, *(name.removesuffix(total) for name in names if name.endswith(total))}
    rests: dict[tuple[str, str], list[str]] = {}
    for name in names:
        *start, rest = _split(name, hooks, scopes)
        rests.setdefault((start[1], start[0]), []).append(rest)
    order = [LOSS, METRIC, *sorted({namespace for namespace, _ in rests} - TITLES.keys()), GRADIENTS, RATE, TIME]
    places = sorted(rests, key=lambda place: (order.index(place[0]), place[1]))
    return [chart for place in places for chart in _charts_of(*place, rests[place])]


def _split(name: str, hooks: Collection[str], scopes: Collection[str]) -> tuple[str, str, str]:
    """Split a name at its namespace; if none is known, at the first part that is not an objective or network."""
    parts = name.split("/")
    if (namespace := namespace_of(name, hooks=hooks, scopes=scopes)) is not None:
        at = parts.index(namespace)
    else:
        at = next((index for index, part in enumerate(parts[:-1]) if part not in scopes), max(len(parts) - 2, 0))
    return "".join(f"{part}/" for part in parts[:at]), parts[at], "/".join(parts[at + 1 :])


def _charts_of(namespace: str, prefix: str, rests: list[str]) -> list[Chart]:
    """Return the charts of the names that share a namespace and what is before it, by what is behind it."""
    category, start = TITLES.get(namespace, namespace), f"{prefix}{namespace}"
    if namespace in WHOLE:
        return [Chart(category, start, _under(start))]
    if namespace == LOSS:
        parts = [rest for rest in rests if rest != TOTAL]
        total = [Chart(category, f"{start}/{TOTAL}", f"^{re.escape(f'{start}/{TOTAL}')}$")] if parts != rests else []
        several = len(parts) > 1 or not total
        return total + [Chart(category, f"{start}: parts", f"^{re.escape(start)}/(?!{TOTAL}$)")] * several
    found = {}
    for rest in rests:
        stem = rest.partition("/")[0].partition("@")[0]
        title = f"{start}/{stem}" if stem else start
        tags = _under(title)
        if namespace == TIME and stem in HELD_UP:
            title, tags = f"{start}: held up", f"^{re.escape(start)}/({'|'.join(HELD_UP)})$"
        found[title] = Chart(category, title, tags)
    return list(found.values())


def _under(stem: str) -> str:
    """Return an expression for a name, what is under it, and its places such as "recall@5"."""
    return f"^{re.escape(stem)}([/@]|$)"
