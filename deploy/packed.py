"""Packed files: one bit per weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from hookline.deploy.arrays import Node, drop_needless_activations, encode_nodes
from hookline.deploy.fold_signs import Evaluate, evaluated_layers, fold_signs
from hookline.deploy.formats import Contents, ExportOptions
from hookline.deploy.inference.card import CARD
from hookline.deploy.inference.container import PACKED, container_sizes, write_container
from hookline.deploy.inference.engine import Model
from hookline.deploy.inference.graph import Graph, graph_to_json, parse_graph
from hookline.deploy.keras_graph import keras_graph
from hookline.deploy.plain_model import assigned, card_of, is_mixed, rebuilt
from hookline.trainer.errors import UserError
from hookline.trainer.final_activation import put_back
from hookline.trainer.run.results import format_bytes
from hookline.trainer.run.state import shipped_weights, stored_bits
from hookline.trainer.run.summary import measure_size

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

COLUMNS = ("layer", "array", "numbers", "stored as", "bits", "bytes")


def write_packed(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a packed file, as `Format.write` describes it."""
    batch = run.held_out["test"].batch(tf.constant(0, tf.int64))
    evaluate = evaluated_layers(run.trainer, network, batch_size=int(batch["weights"].shape[0]), step=run.step)
    with _as_shipped(run, network) as shipped:
        input_name, nodes, output = packed_nodes(shipped, evaluate)
    ops, tensors, stored = encode_nodes(nodes, half=options.float16)
    own, card = run.trainer.networks[network], card_of(run, network)
    deployed = measure_size([own], stored_bits(run.trainer, run.step))["bytes"]["deployed"]
    data = sum(each.nbytes for each in tensors.values())
    about = {CARD: card.as_json(), "data_bytes": data, "deployed_bytes": deployed}
    shape = own.model.inputs[0].shape[1:]
    graph = Graph(own.model.name, input_name, shape, output, ops, card.classes or None, about)
    write_container(path, PACKED, graph_to_json(graph), tensors)
    total = ("total", "", sum(each[2] for each in stored), "", "", data)
    rows = [
        (layer, what, f"{numbers:,}", encoding, str(bits), f"{size:,}")
        for layer, what, numbers, encoding, bits, size in (*stored, total)
    ]
    notes = (
        f"data {data:,} bytes ({format_bytes(data)}), header {container_sizes(path)[0]:,} bytes",
        f"deployed size in the run's summary: {deployed:,} bytes ({format_bytes(deployed)}), with two floats per "
        "channel of batch norm, where a threshold takes less, without the values of codebooks, and with pruned "
        "weights in their sparse form, which format=sparse has",
    )
    return Contents(COLUMNS, tuple(rows), notes, lossy=options.float16)


def packed_nodes(model: keras.Model, evaluate: Evaluate) -> tuple[str, list[Node], str]:
    """Return the name of a model's input, its operations as a file holds them, and the name of its output."""
    input_name, nodes, output = keras_graph(model)
    nodes = fold_signs(nodes, output, _shapes(model, input_name, nodes, output), evaluate)
    return input_name, drop_needless_activations(nodes, output), output


@contextmanager
def _as_shipped(run: Run, network: str) -> Iterator[keras.Model]:
    """Give a model that ends as the user's, in float32; where it is so already, the very layers that hooks know."""
    own = run.trainer.networks[network]
    shipped = shipped_weights(run.trainer, run.step)[network]
    with assigned(own, shipped), put_back(own.model, own.final_activations) as model:
        yield rebuilt(model, full=True) if is_mixed(model) else model


def _shapes(model: keras.Model, input_name: str, nodes: Sequence[Node], output: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every value for one example, by name."""
    if not nodes:
        raise UserError(f"'{model.name}' computes nothing. Expected a network with a layer for format=packed.")
    ops, tensors, _ = encode_nodes(nodes, half=False)
    graph = Graph(model.name, input_name, model.inputs[0].shape[1:], output, ops)
    return {name: value.shape for name, value in Model(parse_graph(graph_to_json(graph)), tensors).values.items()}
