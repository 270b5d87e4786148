"""What networks are made of, as tables: which rows and columns, and how they read."""

from __future__ import annotations

from typing import Any

from hooks.monitors.network_table import as_markdown, describe_network, network_tables
from hooks.monitors.tensorboard import TensorBoard


def layer(name: str, **fields: Any) -> dict[str, Any]:
    base = {"layer": name, "kind": "Dense", "output": [4], "params": 12, "weight_bits": 32.0, "input_bits": 32}
    return {**base, "bytes": 48.0, "sparsity": 0.0, "macs": 12, "macs_by_precision": {"float32": 12}, **fields}


def summary(*layers: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"networks": {"model": {"layers": list(layers)}, **others}}


def test_shapes_bits_and_sizes_read_as_texts():
    row = layer("a", output=[5, None, 3], weight_bits=1.0625, input_bits=1, sparsity=0.5, macs=1234, bytes=2048.0)
    (table,) = network_tables(summary(row))
    assert table.rows == (("a", "Dense", "5x?x3", "12", "1.062", "1", "50.0 %", "1,234", "2.00 KiB"),)


def test_what_is_not_known_is_a_dash_and_a_column_of_dashes_is_left_out():
    open_row = layer("a", output=None, macs=None, weight_bits=None, input_bits=None, sparsity=None)
    (table,) = network_tables(summary(open_row, layer("b", output=None, input_bits=None)))
    assert table.columns == ("layer", "kind", "params", "weight bits", "MACs", "size")
    assert table.rows[0] == ("a", "Dense", "12", "-", "-", "48 B")


def test_the_terminal_shows_layers_with_weights_or_products_and_those_that_are_not_known():
    layers = [layer("idle", params=0, macs=0), layer("dense"), layer("lstm", params=0, macs=None)]
    (short,) = network_tables(summary(*layers), most=5)
    assert [row[0] for row in short.rows] == ["dense", "lstm"]
    (whole,) = network_tables(summary(*layers))
    assert [row[0] for row in whole.rows] == ["idle", "dense", "lstm"]


def test_of_many_layers_the_largest_are_shown_in_order_and_the_others_added_up():
    layers = [layer(f"l{number}", bytes=float(size)) for number, size in enumerate([5, 50, 7, 60, 1])]
    (table,) = network_tables(summary(*layers), most=3)
    assert [row[0] for row in table.rows] == ["l1", "l3", "3 more"]
    assert table.rows[2][-2:] == ("36", "13 B")
    unknown = [*layers[:4], layer("l4", bytes=1.0, macs=None)]
    assert network_tables(summary(*unknown), most=3)[0].rows[2][-2:] == ("-", "13 B")


def test_networks_that_are_alike_share_a_table():
    tables = network_tables(summary(layer("a"), other={"layers": [layer("a")]}, third={"layers": [layer("b")]}))
    assert [table.names for table in tables] == [("model", "other"), ("third",)]


def test_a_summary_of_before_has_no_table():
    assert network_tables({"networks": {"model": {"params": {}, "bytes": {}}}}) == []
    assert network_tables({}) == []
    assert describe_network({"params": {}}) == ""


def test_a_network_is_described_with_its_products_by_precision():
    macs = {"total": 640, "by_precision": {"1-bit x 1-bit": 600, "float32": 40}, "uncounted": []}
    assert describe_network({"kind": "BNN", "macs": macs}) == "BNN; MACs an example: 600 1-bit x 1-bit, 40 float32"
    unknown = {"total": 0, "by_precision": {}, "uncounted": ["lstm", "dot"]}
    assert describe_network({"kind": "full precision", "macs": unknown}) == (
        "full precision; MACs an example: none known; not counted: lstm, dot"
    )


def test_markdown_has_a_table_for_each_network():
    text = as_markdown(network_tables(summary(layer("a"), other={"layers": [layer("b"), layer("c")]})))
    assert text.splitlines() == [
        "**model**",
        "",
        "| layer | kind | output | params | weight bits | input bits | MACs | size |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
        "| a | Dense | 4 | 12 | 32 | 32 | 12 | 48 B |",
        "",
        "**other**",
        "",
        "| layer | kind | output | params | weight bits | input bits | MACs | size |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
        "| b | Dense | 4 | 12 | 32 | 32 | 12 | 48 B |",
        "| c | Dense | 4 | 12 | 32 | 32 | 12 | 48 B |",
    ]
    assert as_markdown([]) == ""


def test_tensorboard_shows_every_layer_as_text(make_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, hook = make_run(), TensorBoard()
    hook.on_fit_begin(run)
    hook.on_fit_end(run, {"status": "completed", **summary(layer("a"), layer("idle", params=0, macs=0))})
    events = EventAccumulator(str(run.directory / "tensorboard" / "train"), size_guidance={"tensors": 0})
    events.Reload()
    (event,) = events.Tensors("run/networks")
    assert b"| idle | Dense |" in event.tensor_proto.string_val[0]
