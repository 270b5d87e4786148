"""Records for TensorBoard: hyperparameters and results, scalars, texts, the graph, pictures, histograms, the layout."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.summary import pb as layout_pb
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram_metadata
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.image.metadata import create_summary_metadata as image_metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.util.tensor_util import make_tensor_proto

from hookline.hooks import catalogue, technique_hooks
from hookline.hooks.monitors.pictures import encode_picture
from hookline.trainer.config.overrides import show
from hookline.trainer.config.schema import TARGET
from hookline.trainer.config.stored import IGNORED, overridden_key, spread_settings
from hookline.trainer.run.results import COMPLETE, NAMESPACES, format_value, metric_rows

Value = bool | float | str
PLACES = ("data", "model", "optimizer", "schedule")
ALWAYS = {
    "learning_rate": "optimizer.learning_rate",
    "batch_size": "trainer.batch_size",
    "epochs": "trainer.epochs",
    "steps": "trainer.steps",
    "seed": "seed",
}
"""Hyperparameters shown for every run whose config sets them, by name: the config key."""
FIRST = ("hooks", "learning_rate", "model", "recipe", "seed")


def hyperparameters(recipe: str, config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Value]:
    """Return the settings that distinguish a run from others, by name, for TensorBoard's HPARAMS tab."""
    hooks = technique_hooks(config.get("hooks") or {})
    settings = {key: values[0] for key, values in spread_settings([config], ignored=()).items()}
    targets = {place: settings.get(f"{place}.{TARGET}") for place in PLACES}
    found: dict[str, Any] = {"recipe": recipe, "hooks": " ".join(sorted(hooks)) or "none"}
    found |= {place: str(target).rpartition(".")[2] for place, target in targets.items() if target is not None}
    found |= {name: settings[key] for name, key in ALWAYS.items() if settings.get(key) is not None}
    changed = {key for name, node in hooks.items() for key in _changed_options(name, node)}
    found |= {key: value for key, value in settings.items() if _is_part(key, changed)}
    given = {overridden_key(text) for text in overrides} - {*found, *ALWAYS.values(), *IGNORED}
    found |= {key: value for key, value in settings.items() if _is_part(key, given) and not key.endswith(TARGET)}
    return {
        name: value if isinstance(value, bool | int | float | str) else show(value) for name, value in found.items()
    }


def _changed_options(name: str, node: Mapping[str, Any]) -> set[str]:
    """Return the keys of the options that differ from the hook's own config file."""
    entry = next((entry for entry in catalogue().values() if entry.target == node.get(TARGET)), None)
    default = entry.node if entry else {}
    return {f"hooks.{name}.{key}" for key, value in node.items() if key != TARGET and value != default.get(key)}


def _is_part(key: str, keys: set[str]) -> bool:
    return key in keys or any(key.startswith(f"{each}.") for each in keys if "." in each)


def start_summary(values: Mapping[str, Value]) -> Summary:
    """Return the record that opens a session of TensorBoard's hparams plugin, with hyperparameters by name."""
    from tensorboard.plugins.hparams.summary import session_start_pb  # uses TensorFlow on import

    # TensorBoard sorts them by name, capitals first, and shows five: those in FIRST, unless others differ between runs.
    values = {name.capitalize().replace("_", " ") if name in FIRST else name: value for name, value in values.items()}
    return Summary.FromString(session_start_pb(values).SerializeToString())


def end_summary(status: str) -> Summary:
    """Return the record that closes a session."""
    from tensorboard.plugins.hparams.summary import session_end_pb

    known = api_pb2.STATUS_SUCCESS if status in COMPLETE else api_pb2.STATUS_FAILURE
    return Summary.FromString(session_end_pb(known).SerializeToString())


def reached_values(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return a run's best validation values and its test values, by tag."""
    rows = metric_rows(summary)
    best = {f"summary/best_validation/{name}": value for name, _, value, _ in rows}
    tested = {f"summary/test/{name}": value for name, *_, value in rows}
    return {tag: value for tag, value in {**best, **tested}.items() if value is not None}


def summary_as_markdown(summary: dict[str, Any]) -> str:
    """Return the result as a Markdown table of the metrics, followed by the contents of `summary.json`."""
    lines = ["| | train (final) | validation (best) | test |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(map(format_value, values))} |" for name, *values in metric_rows(summary)]
    return "\n".join([*lines, "", "```json", json.dumps(summary, indent=2, default=str), "```"])


MOST_BYTES = 8 * 2**20  # browsers take too long to lay out larger graphs
LARGE = 1_000  # bytes above which a constant is large


def graph_event(graph: Any) -> Event | None:
    """Return the record of a graph, without large constants if it is large; None if it is still too large."""
    if graph.ByteSize() > MOST_BYTES:
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        for node in nodes:
            if node.op == "Const" and node.attr["value"].ByteSize() > LARGE:
                tensor = node.attr["value"].tensor
                tensor.CopyFrom(type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape))
    if (size := graph.ByteSize()) > MOST_BYTES:
        warnings.warn(f"TensorBoard's GRAPHS tab stays empty: the step's graph has {size:,} bytes.", stacklevel=2)
        return None
    return Event(graph_def=graph.SerializeToString())


BUCKETS = 30  # as many as TensorBoard shows


def scalar_summary(values: Mapping[str, float]) -> Summary:
    """Return values as one summary, marked for the scalars plugin."""
    return _merged(scalar_pb(name, float(value)) for name, value in values.items())


def _merged(records: Iterable[Summary]) -> Summary:
    summary = Summary()
    for each in records:
        summary.MergeFrom(each)
    return summary


def text_summary(texts: Mapping[str, str]) -> Summary:
    """Return texts as one summary, marked for the text plugin."""
    return _merged(text_pb(name, text) for name, text in texts.items())


def picture_summary(pictures: Mapping[str, np.ndarray]) -> Summary:
    """Return pictures as one summary, marked for the images plugin."""
    summary = Summary()
    for name, picture in pictures.items():
        encoded = encode_picture(name, picture)
        height, width = picture.shape[:2]
        tensor = make_tensor_proto(np.array([str(width).encode(), str(height).encode(), encoded], dtype=object))
        summary.value.add(tag=name, metadata=image_metadata(display_name=name, description=""), tensor=tensor)
    return summary


def histogram_summary(arrays: Mapping[str, np.ndarray]) -> Summary:
    """Return histograms of arrays as one summary, marked for the histograms plugin."""
    summary = Summary()
    for name, values in arrays.items():
        tensor = make_tensor_proto(histogram(values))
        summary.value.add(tag=name, metadata=histogram_metadata(display_name=None, description=""), tensor=tensor)
    return summary


def histogram(values: np.ndarray) -> np.ndarray:
    """Return the histogram of the finite values, float64 [30, 3]: lower edge, upper edge, count; [0, 3] if none."""
    # TensorBoard's `histogram_pb` compares every value with every bin (30 bytes per weight) and fails on infinite ones.
    flat = np.asarray(values).ravel().astype(np.float64)  # edges in float32 may coincide, or overflow
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return np.zeros([0, 3])
    low, high = flat.min(), flat.max()
    if low == high:
        parts = np.full([BUCKETS, 3], [low, low, 0.0])
        parts[-1, 2] = flat.size
        return parts
    counts, edges = np.histogram(flat, BUCKETS, (low, high))
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


LOSS, METRIC, GRADIENTS, RATE, TIME = "loss", "metric", "grad_norm", "opt", "time"
TITLES = {LOSS: "Losses", METRIC: "Metrics", GRADIENTS: "Gradient norms", RATE: "Optimizer", TIME: "Time"}
"""Titles of the common namespaces; a namespace of a technique is shown under its own name."""
WHOLE = (GRADIENTS, "sparsity")  # namespaces that are one chart
TOTAL = "total"
HELD_UP = ("evaluation_ms", "save_ms")


def layout_summary(names: Iterable[str], *, hooks: Collection[str], networks: Collection[str]) -> Summary:
    """Return a layout of the custom scalars tab with a curve for each name; empty if there are no names."""
    total = f"/{LOSS}/{TOTAL}"
    scopes = {*networks, *(name.removesuffix(total) for name in names if name.endswith(total))}
    charts: dict[tuple[str, str], dict[str, str]] = {}  # {(namespace, prefix): {title: tags}}
    for name in sorted(set(names), key=lambda name: (not name.endswith(total.removeprefix("/")), name)):
        start, namespace, rest = _split(name, hooks, scopes)
        title, tags = _chart(f"{start}{namespace}", namespace, rest)
        charts.setdefault((namespace, start), {})[title] = tags
    own = sorted({namespace for namespace, _ in charts} - TITLES.keys())
    order = [LOSS, METRIC, *own, GRADIENTS, RATE, TIME]
    layout = layout_pb2.Layout()
    for namespace, start in sorted(charts, key=lambda place: (order.index(place[0]), place[1])):
        if not layout.category or layout.category[-1].title != TITLES.get(namespace, namespace):
            layout.category.add(title=TITLES.get(namespace, namespace))
        for title, tags in charts[namespace, start].items():
            layout.category[-1].chart.add(title=title).multiline.tag.append(tags)
    return Summary.FromString(layout_pb(layout).SerializeToString()) if layout.category else Summary()


def _split(name: str, hooks: Collection[str], scopes: Collection[str]) -> tuple[str, str, str]:
    """Split a name at its namespace; if none is known, at the first part that is not an objective or network."""
    parts, known = name.split("/"), {*NAMESPACES, *hooks}
    ends = (index for index, part in enumerate(parts[:-1]) if part in known or part not in scopes)
    at = next(ends, max(len(parts) - 2, 0))
    return "".join(f"{part}/" for part in parts[:at]), parts[at], "/".join(parts[at + 1 :])


def _chart(start: str, namespace: str, rest: str) -> tuple[str, str]:
    """Return the title of the chart that a name belongs to, and a regular expression for the names of its curves."""
    stem = rest.partition("/")[0].partition("@")[0]
    if namespace == LOSS and rest != TOTAL:
        return f"{start}: parts", f"^{re.escape(start)}/(?!{TOTAL}$)"
    if namespace == TIME and stem in HELD_UP:
        return f"{start}: held up", f"^{re.escape(start)}/({'|'.join(HELD_UP)})$"
    title = start if namespace in WHOLE or not stem else f"{start}/{stem}"
    return title, f"^{re.escape(title)}([/@]|$)"  # also names below it, and cutoffs such as "recall@5"
