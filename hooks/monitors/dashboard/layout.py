"""The layout of the custom scalars tab: what belongs together in one chart, from the names that a run reports."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, create_summary_metadata
from tensorboard.util.tensor_util import make_tensor_proto

from hookline.trainer.run.results import namespace_of

LOSS, METRIC, GRADIENTS, RATE, TIME = "loss", "metric", "grad_norm", "opt", "time"
TITLES = {LOSS: "Losses", METRIC: "Metrics", GRADIENTS: "Gradient norms", RATE: "Optimizer", TIME: "Time"}
"""Titles of the namespaces that any run has; a technique's own keep their name."""
WHOLE = (GRADIENTS, "sparsity")
"""Namespaces whose values all share one chart."""
TOTAL = "total"
HELD_UP = ("evaluation_ms", "save_ms")


@dataclass(frozen=True)
class Chart:
    """Hold one chart.

    Attributes:
        category: under which it stands.
        title: above it.
        tags: a regular expression that matches the names of its curves.
    """

    category: str
    title: str
    tags: str


def layout_summary(names: Iterable[str], *, hooks: Collection[str], networks: Collection[str]) -> Summary:
    """Return the layout as a record for the custom scalars plugin; without values where there is nothing to show."""
    layout = layout_pb2.Layout()
    for chart in charts(names, hooks=hooks, networks=networks):
        if not layout.category or layout.category[-1].title != chart.category:
            layout.category.add(title=chart.category)
        layout.category[-1].chart.add(title=chart.title).multiline.tag.append(chart.tags)
    summary = Summary()
    if layout.category:
        tensor = make_tensor_proto(layout.SerializeToString())
        summary.value.add(tag=CONFIG_SUMMARY_TAG, metadata=create_summary_metadata(), tensor=tensor)
    return summary


def charts(names: Iterable[str], *, hooks: Collection[str], networks: Collection[str]) -> list[Chart]:
    """Return charts in which each name has a curve: losses, metrics, techniques, gradients, learning rate, time.

    A loss that is the whole total gets no chart of its own. The splits are runs of TensorBoard: each chart overlays
    them.
    """
    names, total = sorted(set(names)), f"/{LOSS}/{TOTAL}"
    scopes = {*networks, *(name.removesuffix(total) for name in names if name.endswith(total))}
    parsed = [_Name.parse(name, hooks, scopes) for name in names]
    techniques = sorted({each.namespace for each in parsed} - TITLES.keys())
    found: list[Chart] = []
    for namespace in (LOSS, METRIC, *techniques, GRADIENTS, RATE, TIME):
        own = [each for each in parsed if each.namespace == namespace]
        for prefix in sorted({each.prefix for each in own}):
            found += _charts_of([each for each in own if each.prefix == prefix])
    return found


@dataclass(frozen=True)
class _Name:
    prefix: str
    namespace: str
    rest: str

    @classmethod
    def parse(cls, name: str, hooks: Collection[str], scopes: Collection[str]) -> _Name:
        """Split a name at its namespace; if none is known, at the first part that is no objective or network."""
        parts = name.split("/")
        if (namespace := namespace_of(name, hooks=hooks, scopes=scopes)) is not None:
            at = parts.index(namespace)
        else:
            at = next((index for index, part in enumerate(parts[:-1]) if part not in scopes), max(len(parts) - 2, 0))
        return cls("".join(f"{part}/" for part in parts[:at]), parts[at], "/".join(parts[at + 1 :]))

    @property
    def start(self) -> str:
        return f"{self.prefix}{self.namespace}"


def _charts_of(names: list[_Name]) -> list[Chart]:
    """Return the charts of names that share prefix and namespace."""
    first = names[0]
    category, start = TITLES.get(first.namespace, first.namespace), first.start
    if first.namespace in WHOLE:
        return [Chart(category, start, _under(start))]
    if first.namespace == LOSS:
        parts = [each for each in names if each.rest != TOTAL]
        total = [Chart(category, f"{start}/{TOTAL}", f"^{re.escape(f'{start}/{TOTAL}')}$")] if parts != names else []
        several = len(parts) > 1 or not total
        return total + [Chart(category, f"{start}: parts", f"^{re.escape(start)}/(?!{TOTAL}$)")] * several
    found = {}
    for each in names:
        stem = each.rest.partition("/")[0].partition("@")[0]
        if first.namespace == TIME and stem in HELD_UP:
            title, tags = f"{start}: held up", f"^{re.escape(start)}/({'|'.join(HELD_UP)})$"
        else:
            title = f"{start}/{stem}" if stem else start
            tags = _under(title)
        found[title] = Chart(category, title, tags)
    return list(found.values())


def _under(stem: str) -> str:
    """Return an expression for a name, what stands under it, and its places such as "recall@5"."""
    return f"^{re.escape(stem)}([/@]|$)"
