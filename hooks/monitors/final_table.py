"""Final table: the results of a run, as text in which no number is truncated on any terminal, and as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline.hooks.monitors.console import AUTO, NONE, PLAIN, QUIET, TextTable, open_console, show
from hookline.trainer.errors import as_typed, check_choice
from hookline.trainer.hook import HostHook, Run
from hookline.trainer.run import results

MOST_ROWS = 16  # maximum number of layers shown per network on the terminal: those with most bytes
REASON_LENGTH = 300
FIRST_SCREEN = "http://localhost:6006/#custom_scalars"  # related curves in one chart


class FinalTable(HostHook):
    """Print metrics of train, validation and test, parameters, sizes, layers, speed, status and the run directory.

    Stopped and failed runs have a table too, with dashes for missing values. No number is truncated: on a narrow
    terminal, the table has fewer columns, or a line for each value.

    Group: monitor

    Cost: Once, at the end.

    Pitfalls:
        tests/hooks/monitors/test_final_table.py: a pipe gets no control characters, and no number is truncated at any
            width.

    Example:
        python train.py recipe=bnn hooks.final_table.mode=plain
    """

    after = ("progress",)  # its bar releases the terminal first
    priority = 100

    def __init__(self, *, mode: str = AUTO) -> None:
        """Set how to print.

        Args:
            mode: "styled" for styled text, "plain" for text without control characters, "quiet" for no text; "auto"
                chooses by the output.
        """
        self._mode = check_choice("mode", mode, (AUTO, "styled", PLAIN, QUIET))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        console = open_console(self._mode)
        console.print()
        title = f"{run.recipe}: {describe_status(summary)}"
        show(console, metric_table(title, summary, {name: each.split.size for name, each in run.held_out.items()}))
        for label, text in result_lines(summary):
            console.print(f"{label:<11}{text}", soft_wrap=not console.is_terminal)  # terminals break within words
        for table in [*network_tables(summary, MOST_ROWS), *layer_tables(summary)]:
            console.print()
            show(console, table)
        console.print(f"{'run':<11}{run.directory}", soft_wrap=True)
        console.print(as_typed(f"tensorboard --logdir {shlex.quote(str(run.directory))}"), soft_wrap=True)
        console.print(f"{'then open':<11}{FIRST_SCREEN}", soft_wrap=True)


def describe_status(summary: Mapping[str, Any]) -> str:
    """Return the status with its reason, such as "stopped (early stopping: ...) after 400 steps"."""
    text = str(summary.get("status", "unknown"))
    if summary.get("stop_reason"):
        reason = str(summary["stop_reason"]).strip().partition("\n")[0]  # a framework's error may fill pages
        reason = reason.partition(". Resume with: ")[0]  # printed at the end
        text += f" ({reason if len(reason) <= REASON_LENGTH else f'{reason[: REASON_LENGTH - 3]}...'})"
    if "steps" in summary:
        text += f" after {_steps(summary['steps'])}"
    return f"{text}, {summary['epochs']:.4g} epochs" if "epochs" in summary else text


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def result_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines below the table as (label, text), without those of missing values."""
    lines = []
    if (best := summary.get("best") or {}).get("values"):
        lines.append(("validation", f"best at step {best['step']}"))
    if weights := (summary.get("test") or {}).get("weights"):
        lines.append(("test", f"with the {weights} weights"))
    if parameters := summary.get("params"):
        lines.append(("parameters", f"{parameters['total']:,} ({parameters['trainable']:,} trainable)"))
    if sizes := summary.get("bytes"):
        lines.append(("size", _describe_size(sizes)))
    lines += _network_lines(summary.get("networks") or {})
    if "seconds" in summary:
        speed = f", {summary['images_per_second']:,.0f} examples/s" if summary.get("images_per_second") else ""
        lines.append(("time", f"{results.format_seconds(summary['seconds'])} ({summary['seconds']:,.1f} s){speed}"))
    lines += _cost_lines(summary)
    found = summary.get("input") or {}
    if found.get("waiting_share") is not None:
        waited = f"{results.format_share(found['waiting_share'])} of the training time spent waiting for batches"
        lines.append(("input", ". ".join(filter(None, (waited, found.get("advice"))))))
    return lines


def _cost_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines on the time to the first step, peak memory, precision and replicas."""
    lines = []
    if start := summary.get("time_to_first_step"):
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in start.items() if name != "seconds")
        lines.append(("first step", f"after {start['seconds']:.1f} s ({parts})"))
    peak = (summary.get("peak_memory_bytes") or {}).items()
    if places := [f"{results.format_bytes(count)} on the {place}" for place, count in peak if count]:
        lines.append(("memory", f"{', '.join(places)} at most"))
    precision = summary.get("precision") or {}
    if precision.get("compute", "float32") != "float32":
        text = str(precision["compute"])
        if precision.get("loss_scale") is not None:
            left_out = f"{_steps(precision['overflow_steps'])} left out for overflow"
            text += f", loss scale {precision['loss_scale']:,.0f}, {left_out}"
        lines.append(("precision", text))
    replicas = summary.get("replicas") or {}
    if replicas.get("count", 1) > 1:
        text = f"{replicas['count']} ({replicas['strategy']}), {replicas['examples']:,} examples each"
        lines.append(("replicas", text))
    return lines


def _network_lines(networks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a line on the kind and the cost of a network; of several networks, equal ones share a line."""
    if len(networks) < 2:
        return [("network", text) for own in networks.values() if (text := describe_network(own))]
    alike: dict[str, list[str]] = {}
    for name, own in networks.items():
        size = f"{own['params']['total']:,} parameters, {_describe_size(own['bytes'])}"
        alike.setdefault("; ".join(filter(None, (size, describe_network(own)))), []).append(name)
    return [
        ("network" if len(names) == 1 else "networks", f"{', '.join(names)}: {'each ' if len(names) > 1 else ''}{text}")
        for text, names in alike.items()
    ]


def describe_network(network: Mapping[str, Any]) -> str:
    """Return a network's kind and its cost per example, such as "BNN; MACs per example: 640 1-bit x 1-bit"."""
    if "macs" not in network:
        return ""
    macs = network["macs"]
    counts = ", ".join(f"{count:,} {name}" for name, count in macs["by_precision"].items() if count) or "none known"
    text = f"{network['kind']}; MACs per example: {counts}"
    return f"{text}; not counted: {', '.join(macs['uncounted'])}" if macs["uncounted"] else text


def _describe_size(sizes: Mapping[str, int]) -> str:
    text, deployed = f"{results.format_bytes(sizes['float32'])} as float32", sizes["deployed"]
    if deployed and deployed != sizes["float32"]:
        text += f", {results.format_bytes(deployed)} deployed, {sizes['float32'] / deployed:.1f} times smaller"
    return text


FEWEST = 3  # columns of a hook's table that are kept even on a narrow terminal
TEXTS = ("kind", "output")
"""Text columns besides the first; the others hold numbers."""


def as_markdown(tables: Sequence[TextTable]) -> str:
    """Return tables as Markdown, each under its title."""
    lines: list[str] = []
    for table in tables:
        marks = ["---" if table.is_text(column) else "---:" for column in table.columns]
        lines += ["", f"**{table.title}**", ""]
        lines += [f"| {' | '.join(cells)} |" for cells in (table.columns, marks, *table.rows)]
    return "\n".join(lines[1:])


HELD_OUT = ("validation", "test")


def metric_table(title: str, summary: Mapping[str, Any], sizes: Mapping[str, int]) -> TextTable:
    """Return metrics and losses by split; fractions of a split have no more decimals than its size supports."""
    rows = []
    for name, train, *held_out in results.metric_rows(summary):
        is_loss = name == "loss" or name.endswith("/loss")
        texts = [
            results.format_value(value) if is_loss or split not in sizes else results.format_metric(value, sizes[split])
            for split, value in zip(HELD_OUT, held_out, strict=True)
        ]
        rows.append([name, results.format_value(train), *texts])
    return TextTable(title, ("", "train", *HELD_OUT), rows)


def layer_tables(summary: Mapping[str, Any]) -> list[TextTable]:
    """Return a table for each hook whose summary has rows under "layers"."""
    tables = []
    for name, values in (summary.get("hooks") or {}).items():
        layers = values.get("layers")
        if isinstance(layers, list) and layers and all(isinstance(row, dict) for row in layers):
            keys = list(dict.fromkeys(key for row in layers for key in row))
            columns = [key.replace("_", " ") for key in keys]
            rows = [[_cell(row.get(key)) for key in keys] for row in layers]
            tables.append(TextTable(name, columns, rows, columns[: FEWEST - 1 : -1], TEXTS))
    return tables


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return results.format_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return NONE if value is None else str(value)


Layer = Mapping[str, Any]
COLUMNS: dict[str, Callable[[Layer], str]] = {
    "layer": lambda layer: str(layer["layer"]),
    "kind": lambda layer: layer.get("kind") or NONE,
    "output": lambda layer: _shape(layer.get("output")),
    "params": lambda layer: f"{layer['params']:,}",
    "weight bits": lambda layer: _bits(layer.get("weight_bits")),
    "input bits": lambda layer: _bits(layer.get("input_bits")),
    "zeros": lambda layer: f"{100 * layer['sparsity']:.1f} %" if layer.get("sparsity") else NONE,
    "MACs": lambda layer: NONE if layer["macs"] is None else f"{layer['macs']:,}",
    "size": lambda layer: results.format_bytes(layer["bytes"]),
}
"""Columns of a network's table, with functions that format a layer of `summary.json`."""
LEFT_OUT_FIRST = ("kind", "output", "input bits", "MACs", "zeros", "weight bits", "params")


def network_tables(summary: Mapping[str, Any], most: int | None = None) -> list[TextTable]:
    """Return a table for each network of a run, with at most `most` rows; equal networks share one."""
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, network in (summary.get("networks") or {}).items():
        if layers := network.get("layers"):
            shown = layers if most is None else _largest(layers, most)
            columns = tuple((key, *map(text, shown)) for key, text in COLUMNS.items())
            alike.setdefault(tuple(each for each in columns if {*each[1:]} != {NONE}), []).append(name)
    tables = []
    for found, names in alike.items():
        keys, *rows = zip(*found, strict=True)
        tables.append(TextTable(", ".join(names), keys, rows, LEFT_OUT_FIRST, TEXTS))
    return tables


def _largest(layers: Sequence[Layer], most: int) -> list[Layer]:
    shown = [layer for layer in layers if layer["params"] or layer["macs"] != 0]
    if len(shown) <= most:
        return shown
    largest = sorted(range(len(shown)), key=lambda index: -shown[index]["bytes"])[: most - 1]
    rest = [layer for index, layer in enumerate(shown) if index not in largest]
    macs = [layer["macs"] for layer in rest]
    totals = {key: sum(layer[key] for layer in rest) for key in ("params", "bytes")}
    others = {"layer": f"{len(rest)} more", **totals, "macs": None if None in macs else sum(macs)}
    return [*(shown[index] for index in sorted(largest)), others]


def _shape(shape: Sequence[int | None] | None) -> str:
    return NONE if shape is None else "x".join("?" if size is None else str(size) for size in shape) or "1"


def _bits(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"
