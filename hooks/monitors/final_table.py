"""The table at the end of a run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from hookline.hooks.monitors.console import AUTO, PLAIN, QUIET, describe_close, open_console
from hookline.hooks.options import check_choice
from hookline.trainer.hook import HostHook
from hookline.trainer.run.results import (
    format_bytes,
    format_metric,
    format_seconds,
    format_share,
    format_value,
    metric_rows,
)

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report, Run


DASH = "-"
MOST_ROWS = 16
"""Layers that the terminal shows of a network; those with most bytes."""
COLUMNS = ("layer", "kind", "output", "params", "weight bits", "input bits", "zeros", "MACs", "size")
LEFT = 3  # columns of words and shapes


@dataclass(frozen=True)
class NetworkTable:
    """Hold the layers of networks that are alike.

    Attributes:
        names: of the networks.
        columns: their names; a column in which no layer has anything is left out.
        rows: texts, one for each column.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def describe_network(network: Mapping[str, Any]) -> str:
    """Return the kind of a network and the cost of an example, such as "BNN; MACs an example: 640 1-bit x 1-bit".

    Args:
        network: its part of `summary.json`; empty text where it says nothing of this.
    """
    if "macs" not in network:
        return ""
    macs = network["macs"]
    counts = ", ".join(f"{count:,} {name}" for name, count in macs["by_precision"].items() if count) or "none known"
    text = f"{network['kind']}; MACs an example: {counts}"
    return f"{text}; not counted: {', '.join(macs['uncounted'])}" if macs["uncounted"] else text


def network_tables(
    summary: Mapping[str, Any], *, most: int | None = None, without: Collection[str] = ()
) -> list[NetworkTable]:
    """Return a table for each network of a run; networks that are alike share one.

    Args:
        summary: what `summary.json` holds; any part may be missing.
        most: layers to show of each: those with weights or multiply-accumulates; if there are more, those with most
            bytes, and the others as one row. None shows every layer.
        without: columns to leave out.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, network in (summary.get("networks") or {}).items():
        if layers := network.get("layers"):
            alike.setdefault(_rows(layers if most is None else _compact(layers, most)), []).append(name)
    return [_useful_columns(tuple(names), rows, without) for rows, names in alike.items()]


def as_markdown(tables: Sequence[NetworkTable]) -> str:
    """Return tables as Markdown, each under the names of its networks.

    Args:
        tables: as `network_tables` returned them.
    """
    lines: list[str] = []
    for table in tables:
        marks = ("---" if column in COLUMNS[:LEFT] else "---:" for column in table.columns)
        lines += ["", f"**{', '.join(table.names)}**", "", _line(table.columns), _line(tuple(marks))]
        lines += [_line(row) for row in table.rows]
    return "\n".join(lines[1:])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _compact(layers: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    shown = [layer for layer in layers if layer["params"] or layer["macs"] != 0]
    if len(shown) <= most:
        return shown
    largest = sorted(range(len(shown)), key=lambda index: -shown[index]["bytes"])[: most - 1]
    rest = [layer for index, layer in enumerate(shown) if index not in largest]
    macs = [layer["macs"] for layer in rest]
    others = {
        "layer": f"{len(rest)} more",
        "params": sum(layer["params"] for layer in rest),
        "bytes": sum(layer["bytes"] for layer in rest),
        "macs": None if None in macs else sum(macs),
    }
    return [*(shown[index] for index in sorted(largest)), others]


def _rows(layers: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            layer["layer"],
            layer.get("kind") or DASH,
            _shape(layer.get("output")),
            f"{layer['params']:,}",
            _number(layer.get("weight_bits")),
            _number(layer.get("input_bits")),
            DASH if not layer.get("sparsity") else f"{100 * layer['sparsity']:.1f} %",
            DASH if layer["macs"] is None else f"{layer['macs']:,}",
            format_bytes(layer["bytes"]),
        )
        for layer in layers
    )


def _shape(shape: Sequence[int | None] | None) -> str:
    return DASH if shape is None else "x".join("?" if size is None else str(size) for size in shape) or "1"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.4g}"


def _useful_columns(
    names: tuple[str, ...], rows: tuple[tuple[str, ...], ...], without: Collection[str]
) -> NetworkTable:
    kept = [
        index
        for index, column in enumerate(COLUMNS)
        if column not in without and any(row[index] != DASH for row in rows)
    ]
    return NetworkTable(
        names, tuple(COLUMNS[index] for index in kept), tuple(tuple(row[index] for index in kept) for row in rows)
    )


REASON_LENGTH = 300
MODES = (AUTO, "styled", PLAIN, QUIET)
PADDING = 2
LEFT_OUT_FIRST = ("kind", "output", "input bits", "MACs", "zeros", "weight bits", "params")
"""Columns of networks that a narrow terminal has no room for."""
HELD_OUT = ("validation", "test")
NARROW = 64
"""Cells below which the table of metrics has short headers."""


class FinalTable(HostHook):
    """Print metrics of train, validation and test, parameters, sizes, layers, speed, status and where the run lies.

    It prints for a run that was stopped or failed, too, with dashes for what is missing.

    Group:
        monitor

    State:
        values: the monitor's value at each evaluation that counted.

    Cost:
        Once, at the end.

    Pitfalls:
        tests/hooks/monitors/test_final_table.py: a pipe gets no control characters, and no path is broken over two
            lines.

    Example:
        python train.py recipe=bnn hooks.final_table.mode=plain
    """

    after = ("progress",)  # its bar releases the terminal first
    priority = 100

    def __init__(self, *, mode: str = AUTO) -> None:
        """Set up the table.

        Args:
            mode: "styled" for a terminal's text, "plain" for text without control characters, "quiet" for none; "auto"
                decides by the output.
        """
        self._mode = check_choice("mode", mode, MODES)
        self._values: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's value at each evaluation that counted; all else comes from the summary."""
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state.get("values", ()))  # older runs have none

    def on_fit_begin(self, run: Run) -> None:
        if not run.step:
            self._values = []  # of an earlier fit

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if report.split == "validation" and report.step >= run.best.since:
            self._values.append(report.values[run.best.monitor])

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        console = open_console(self._mode)
        console.print()
        console.print(f"{run.recipe}: {describe_status(summary)}", style="bold", soft_wrap=True)
        if rows := metric_rows(summary):
            sizes = {name: split.size for name, split in run.held_out.items()}
            console.print(_metric_table(console, summary, rows, sizes))
        for label, text in [*self._close_lines(run), *result_lines(summary)]:
            console.print(f"{label:<11}{text}", soft_wrap=True)
        for network in network_tables(summary, most=MOST_ROWS, without=_told_by_hooks(summary)):
            console.print()
            console.print(", ".join(network.names), style="bold", soft_wrap=True)
            console.print(_network_table(console, network))
        for name, layers in layer_tables(summary):
            console.print()
            console.print(name, style="bold")
            console.print(_layer_table(console, layers))
        console.print(f"{'run':<11}{run.directory}", soft_wrap=True)
        console.print(f"tensorboard --logdir {shlex.quote(str(run.directory))}", soft_wrap=True)

    def _close_lines(self, run: Run) -> list[tuple[str, str]]:
        """Return what the size of the validation split implies for the choice of the best step, if anything."""
        best = run.best
        if best.value is None or "validation" not in run.held_out:
            return []
        text = describe_close(best.monitor, self._values, best.value, run.held_out["validation"].size)
        return [("validation", text)] if text else []


def describe_status(summary: Mapping[str, Any]) -> str:
    """Return the status with its reason, such as "stopped (early stopping: ...) after 400 steps".

    Args:
        summary: what `summary.json` holds; any part may be missing.
    """
    reason = f" ({shorten_reason(str(summary['stop_reason']))})" if summary.get("stop_reason") else ""
    steps = f" after {summary['steps']:,} step{'' if summary['steps'] == 1 else 's'}" if "steps" in summary else ""
    epochs = f", {summary['epochs']:.4g} epochs" if "epochs" in summary else ""
    return f"{summary.get('status', 'unknown')}{reason}{steps}{epochs}"


def shorten_reason(reason: str) -> str:
    """Return the first line of a reason, cut to a readable length: a framework's error may fill pages."""
    first_line = reason.strip().partition("\n")[0]
    return first_line if len(first_line) <= REASON_LENGTH else f"{first_line[: REASON_LENGTH - 3]}..."


def result_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines below the table, as label and text.

    Args:
        summary: what `summary.json` holds; what is missing is left out.
    """
    lines = []
    if parameters := summary.get("params"):
        lines.append(("parameters", f"{parameters['total']:,} ({parameters['trainable']:,} trainable)"))
    if sizes := summary.get("bytes"):
        lines.append(("size", _describe_size(sizes["float32"], sizes["deployed"])))
    lines += _network_lines(summary.get("networks") or {})
    if "seconds" in summary:
        speed = f", {summary['images_per_second']:,.0f} images/s" if summary.get("images_per_second") else ""
        lines.append(("time", f"{format_seconds(summary['seconds'])} ({summary['seconds']:,.1f} s){speed}"))
    lines += _cost_lines(summary)
    verdict = summary.get("input") or {}
    if verdict.get("waiting_share") is not None:
        waited = f"{format_share(verdict['waiting_share'])} of the training time spent waiting for batches"
        lines.append(("input", " ".join([f"{waited}.", verdict["advice"]] if verdict.get("advice") else [waited])))
    return lines


def _cost_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the run's time to its first step, its memory, its precision, and where it computed."""
    lines = []
    if start := summary.get("time_to_first_step"):
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in start.items() if name != "seconds")
        lines.append(("first step", f"after {start['seconds']:.1f} s ({parts})"))
    if peak := {place: count for place, count in (summary.get("peak_memory_bytes") or {}).items() if count}:
        lines.append(
            ("memory", ", ".join(f"{format_bytes(peak[place])} on the {place}" for place in peak) + " at most")
        )
    precision = summary.get("precision") or {}
    if precision.get("compute", "float32") != "float32":
        text = str(precision["compute"])
        if precision.get("loss_scale") is not None:
            steps = precision["overflow_steps"]
            left_out = f"{steps:,} step{'' if steps == 1 else 's'} left out for overflow"
            text += f", loss scale {precision['loss_scale']:,.0f}, {left_out}"
        lines.append(("precision", text))
    replicas = summary.get("replicas") or {}
    if replicas.get("count", 1) > 1:
        lines.append(
            ("replicas", f"{replicas['count']} ({replicas['strategy']}), {replicas['examples']:,} examples each")
        )
    return lines


def _network_lines(networks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a line on the kind and the cost of a network; for several networks, one line for each size."""
    if len(networks) < 2:
        return [("network", text) for own in networks.values() if (text := describe_network(own))]
    alike: dict[str, list[str]] = {}
    for name, own in networks.items():
        size = _describe_size(own["bytes"]["float32"], own["bytes"]["deployed"])
        text = "; ".join(filter(None, (f"{own['params']['total']:,} parameters, {size}", describe_network(own))))
        alike.setdefault(text, []).append(name)
    return [
        ("network" if len(names) == 1 else "networks", f"{', '.join(names)}: {'each ' if len(names) > 1 else ''}{text}")
        for text, names in alike.items()
    ]


def layer_tables(summary: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return what hooks report on each layer: the hook's name and the rows that its summary has under "layers".

    Args:
        summary: what `summary.json` holds.
    """
    hooks = summary.get("hooks") or {}
    return [(name, values["layers"]) for name, values in hooks.items() if _is_layer_list(values.get("layers"))]


def _told_by_hooks(summary: Mapping[str, Any]) -> set[str]:
    """Return the columns of networks that the table of a hook has, too."""
    told = any("sparsity" in row for _, layers in layer_tables(summary) for row in layers)
    return {"zeros"} if told else set()


def _is_layer_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _layer_table(console: Console, layers: list[dict[str, Any]]) -> Table:
    table = _plain_table(console)
    columns = list(dict.fromkeys(key for row in layers for key in row))
    for index, column in enumerate(columns):
        table.add_column(column.replace("_", " "), justify="left" if index == 0 else "right", no_wrap=True)
    for row in layers:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    return table


def _network_table(console: Console, network: NetworkTable) -> Table:
    table = _plain_table(console)
    shown = _columns_that_fit(network, console.width)
    for column in shown:
        table.add_column(column, justify="left" if column in COLUMNS[:LEFT] else "right", no_wrap=True)
    for row in network.rows:
        table.add_row(*(cell for column, cell in zip(network.columns, row, strict=True) if column in shown))
    return table


def _columns_that_fit(network: NetworkTable, width: int) -> list[str]:
    """Return the columns of a network that a terminal has room for; the least informative are left out first."""
    every = zip(network.columns, zip(*network.rows, strict=True), strict=True)
    wide = {column: max(len(cell) for cell in (column, *cells)) + PADDING for column, cells in every}
    for column in LEFT_OUT_FIRST:
        if sum(wide.values()) > width:
            wide.pop(column, None)
    return list(wide)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return format_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _plain_table(console: Console) -> Table:
    return Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        padding=(0, PADDING, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def _describe_size(float32: int, deployed: int) -> str:
    text = f"{format_bytes(float32)} as float32"
    if deployed and deployed != float32:
        text += f", {format_bytes(deployed)} deployed, {float32 / deployed:.1f} times smaller"
    return text


def _metric_table(
    console: Console,
    summary: Mapping[str, Any],
    rows: list[tuple[str, float | None, float | None, float | None]],
    sizes: Mapping[str, int],
) -> Table:
    best = summary.get("best") or {}
    weights = (summary.get("test") or {}).get("weights")
    table = _plain_table(console)
    table.add_column("")
    table.add_column("train", justify="right")
    short = console.width < NARROW
    table.add_column(
        f"validation (best, step {best['step']})" if best.get("values") and not short else "validation", justify="right"
    )
    table.add_column("test" if weights is None or short else f"test ({weights} weights)", justify="right")
    for name, train, *held_out in rows:
        texts = [_metric(name, value, sizes.get(split)) for split, value in zip(HELD_OUT, held_out, strict=True)]
        table.add_row(name, format_value(train), *texts)
    return table


def _metric(name: str, value: float | None, examples: int | None) -> str:
    """Return a value of a split, with as many decimals as its examples support; of a loss, with all."""
    is_loss = name == "loss" or name.endswith("/loss")
    return format_value(value) if is_loss or examples is None else format_metric(value, examples)
