"""Tables of a finished run: as text in which no number is cut, however narrow the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from hookline.trainer.errors import printable
from hookline.trainer.run.results import format_bytes, format_metric, format_value, metric_rows

DASH = "-"
GAP = 2
FEWEST = 3
"""Columns of a hook's table that stay, however narrow the terminal."""


@dataclass(frozen=True)
class TextTable:
    """Hold the cells of a table."""

    title: str  # above it
    columns: Sequence[str]  # their names
    rows: Sequence[Sequence[str]]  # texts, one for each column
    left_out_first: Sequence[str] = ()  # columns that go, in this order, until the others fit


def show(console: Console, table: TextTable) -> None:
    """Print a table in as many columns as fit; if too few would, each value on a line of its own."""
    columns = {name: [printable(row[index]) for row in table.rows] for index, name in enumerate(table.columns)}
    for name in table.left_out_first:
        if _width(columns) > console.width:
            columns.pop(name, None)
    console.print(table.title, style="bold", soft_wrap=True)
    if not table.rows:
        return
    if _width(columns) <= console.width:
        text = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        for name in columns:
            text.add_column(name, justify="left" if _is_text(name, table) else "right", no_wrap=True)
        for row in zip(*columns.values(), strict=True):
            text.add_row(*row)
        console.print(text)
    else:
        for first, *others in zip(*columns.values(), strict=True):
            console.print(first, soft_wrap=True)
            for name, cell in zip(list(columns)[1:], others, strict=True):
                console.print(f"  {name} {cell}", soft_wrap=True)
    if missing := [name for name in table.columns if name not in columns]:
        console.print(f"Not shown for lack of room: {', '.join(missing)}.", style="dim", soft_wrap=True)


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(map(cell_len, (name, *cells))) + GAP for name, cells in columns.items()) - GAP


def _is_text(column: str, table: TextTable) -> bool:
    return column in (table.columns[0], "kind", "output")


def as_markdown(tables: Sequence[TextTable]) -> str:
    """Return tables as Markdown, each under its title."""
    lines: list[str] = []
    for table in tables:
        marks = ["---" if _is_text(column, table) else "---:" for column in table.columns]
        lines += ["", f"**{table.title}**", ""]
        lines += [f"| {' | '.join(cells)} |" for cells in (table.columns, marks, *table.rows)]
    return "\n".join(lines[1:])


HELD_OUT = ("validation", "test")


def metric_table(title: str, summary: Mapping[str, Any], sizes: Mapping[str, int]) -> TextTable:
    """Return metrics and losses by split; shares of a split have no more decimals than its size supports."""
    rows = []
    for name, train, *held_out in metric_rows(summary):
        is_loss = name == "loss" or name.endswith("/loss")
        texts = [
            format_value(value) if is_loss or split not in sizes else format_metric(value, sizes[split])
            for split, value in zip(HELD_OUT, held_out, strict=True)
        ]
        rows.append([name, format_value(train), *texts])
    return TextTable(title, ("", "train", *HELD_OUT), rows)


def layer_tables(summary: Mapping[str, Any]) -> list[TextTable]:
    """Return what hooks report on each layer: a table for each whose summary has rows under "layers"."""
    tables = []
    for name, values in (summary.get("hooks") or {}).items():
        layers = values.get("layers")
        if isinstance(layers, list) and layers and all(isinstance(row, dict) for row in layers):
            keys = list(dict.fromkeys(key for row in layers for key in row))
            columns = [key.replace("_", " ") for key in keys]
            rows = [[_cell(row.get(key)) for key in keys] for row in layers]
            tables.append(TextTable(name, columns, rows, columns[: FEWEST - 1 : -1]))
    return tables


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return format_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return DASH if value is None else str(value)


Layer = Mapping[str, Any]
COLUMNS: dict[str, Callable[[Layer], str]] = {
    "layer": lambda layer: str(layer["layer"]),
    "kind": lambda layer: layer.get("kind") or DASH,
    "output": lambda layer: _shape(layer.get("output")),
    "params": lambda layer: f"{layer['params']:,}",
    "weight bits": lambda layer: _bits(layer.get("weight_bits")),
    "input bits": lambda layer: _bits(layer.get("input_bits")),
    "zeros": lambda layer: f"{100 * layer['sparsity']:.1f} %" if layer.get("sparsity") else DASH,
    "MACs": lambda layer: DASH if layer["macs"] is None else f"{layer['macs']:,}",
    "size": lambda layer: format_bytes(layer["bytes"]),
}
"""Columns of a network's table, with the text of a layer of `summary.json`."""
LEFT_OUT_FIRST = ("kind", "output", "input bits", "MACs", "zeros", "weight bits", "params")


def network_tables(summary: Mapping[str, Any], most: int | None = None) -> list[TextTable]:
    """Return a table for each network of a run; those that are alike share one. Columns without values are left out.

    At `most`, layers with neither weights nor multiply-accumulates are left out, and those with fewest bytes share a
    row.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, network in (summary.get("networks") or {}).items():
        if layers := network.get("layers"):
            shown = layers if most is None else _largest(layers, most)
            columns = tuple((key, *map(text, shown)) for key, text in COLUMNS.items())
            alike.setdefault(tuple(each for each in columns if {*each[1:]} != {DASH}), []).append(name)
    tables = []
    for found, names in alike.items():
        keys, *rows = zip(*found, strict=True)
        tables.append(TextTable(", ".join(names), keys, rows, LEFT_OUT_FIRST))
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
    return DASH if shape is None else "x".join("?" if size is None else str(size) for size in shape) or "1"


def _bits(value: float | None) -> str:
    return DASH if value is None else f"{value:.4g}"
