"""What networks are made of, as text and as tables: of the terminal and of TensorBoard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.run.results import format_bytes

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
    """Return what a network is and what an example costs, such as "BNN; MACs an example: 640 1-bit x 1-bit".

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
        most: layers to show of each: those with weights or multiply-accumulates, and of too many those with most
            bytes, the others as one row. None shows every layer.
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
