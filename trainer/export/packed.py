"""A network as a packed file: one bit a binary weight, integer thresholds, nothing that needs Keras to be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.export.arrays import Stored, encode_nodes
from trainer.export.assigned import assigned
from trainer.export.card import card_of
from trainer.export.contents import Contents
from trainer.export.evaluated_layers import EvaluatedLayers
from trainer.export.fold_signs import Evaluate, fold_signs
from trainer.export.full_precision import is_mixed, with_values
from trainer.export.keras_graph import keras_graph
from trainer.export.node import Node
from trainer.export.options import ExportOptions
from trainer.export.rounding import differ_by_rounding
from trainer.export.sign_values import drop_needless_activations
from trainer.final_activation import put_back
from trainer.inference.card import CARD
from trainer.inference.container import PACKED, container_sizes, write_container
from trainer.inference.engine import Model
from trainer.inference.graph import Graph, graph_to_json, parse_graph
from trainer.inference.shapes import infer
from trainer.network import Network
from trainer.run.finished import FinishedRun
from trainer.run.results import format_bytes
from trainer.run.shipped import shipped_weights, stored_bits
from trainer.run.size import measure_size

COLUMNS = ("layer", "array", "numbers", "stored as", "bits", "bytes")


def write_packed(run: FinishedRun, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a packed file, as `Format.write` describes it.

    Args:
        run: restored.
        network: name of the network.
        path: of the file.
        options: `float16` counts here.

    Raises:
        UserError: the network has a layer that the format cannot hold, or not one input and one output.
    """
    input_name, nodes, output = _nodes(run, network)
    ops, tensors, stored = encode_nodes(nodes, half=options.float16)
    deployed = _deployed_bytes(run, network)
    model = run.parts.trainer.networks[network].model
    card = card_of(run, network)
    graph = Graph(
        name=model.name,
        input_name=input_name,
        input_shape=tuple(int(each) for each in model.inputs[0].shape[1:]),
        output=output,
        ops=ops,
        classes=card.classes or None,
        about={
            CARD: card.as_json(),
            "data_bytes": sum(each.nbytes for each in tensors.values()),
            "deployed_bytes": deployed,
        },
    )
    write_container(path, PACKED, graph_to_json(graph), tensors)
    header, data = container_sizes(path)
    return Contents(COLUMNS, _rows(stored), _notes(header, data, deployed, stored), lossy=options.float16)


def _nodes(run: FinishedRun, network: str) -> tuple[str, list[Node], str]:
    """Return the name of the input, the operations of the finished network, and the name of the output."""
    trainer = run.parts.trainer
    shipped = shipped_weights(trainer, run.step)[network]
    batch = run.parts.test.batch(tf.constant(0, tf.int64))
    evaluate = EvaluatedLayers(trainer, network, batch_size=int(batch["weights"].shape[0]), step=run.step)
    with assigned(trainer.networks[network], shipped), _as_shipped(trainer.networks[network]) as model:
        return packed_nodes(model, evaluate)


def predictions_differ_by_rounding(run: FinishedRun, network: str, packed: Model, inputs: np.ndarray) -> bool:
    """Return whether a packed file predicts something else than its run by rounding alone, for every one of examples.

    Args:
        run: restored.
        network: name of the network.
        packed: read from the file, which was written without rounding its weights.
        inputs: float32 [batch, ...], the examples for which predictions differ.
    """
    own = run.parts.trainer.networks[network]
    shipped = shipped_weights(run.parts.trainer, run.step)[network]
    with assigned(own, shipped), _as_shipped(own) as model:
        return bool(differ_by_rounding(model, packed, inputs).all())


def packed_nodes(model: keras.Model, evaluate: Evaluate) -> tuple[str, list[Node], str]:
    """Return the name of a model's input, its operations as a file holds them, and the name of its output.

    Args:
        model: with the values in its variables that the file shall hold.
        evaluate: computes layers that treat every channel apart.

    Raises:
        UserError: the network has a layer that the format cannot hold, or not one input and one output.
    """
    input_name, nodes, output = keras_graph(model)
    nodes = fold_signs(nodes, output, _shapes(model, input_name, nodes, output), evaluate)
    return input_name, drop_needless_activations(nodes, output), output


@contextmanager
def _as_shipped(network: Network) -> Iterator[keras.Model]:
    """Give a model that ends as the user's, in float32; where it is so already, the very layers that hooks know."""
    with put_back(network.model, network.final_activations) as model:
        yield with_values(model, model, full=True) if is_mixed(model) else model


def _shapes(model: keras.Model, input_name: str, nodes: Sequence[Node], output: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every value for one example, by name.

    Raises:
        UserError: the format cannot hold the network.
    """
    if not nodes:
        raise UserError(f"'{model.name}' computes nothing. Expected a network with a layer for format=packed.")
    ops, tensors, _ = encode_nodes(nodes, half=False)
    shape = tuple(int(each) for each in model.inputs[0].shape[1:])
    graph = Graph(model.name, input_name, shape, output, ops)
    return {name: value.shape for name, value in infer(parse_graph(graph_to_json(graph)), tensors).items()}


def _deployed_bytes(run: FinishedRun, network: str) -> int:
    trainer = run.parts.trainer
    return measure_size([trainer.networks[network]], stored_bits(trainer, run.step)).deployed_bytes


def _rows(stored: Sequence[Stored]) -> tuple[tuple[str, ...], ...]:
    rows: list[tuple[Any, ...]] = [
        (each.layer, each.what, f"{each.numbers:,}", each.encoding, str(each.bits), f"{each.bytes:,}")
        for each in stored
    ]
    total = sum(each.bytes for each in stored)
    return (*rows, ("total", "", f"{sum(each.numbers for each in stored):,}", "", "", f"{total:,}"))


def _notes(header: int, data: int, deployed: int, stored: Sequence[Stored]) -> tuple[str, ...]:
    lines = [
        f"data {data:,} bytes ({format_bytes(data)}), header {header:,} bytes",
        f"deployed size in the run's summary: {deployed:,} bytes ({format_bytes(deployed)}), with two floats a channel "
        "of batch norm, where a threshold takes less, and without the values of codebooks",
    ]
    if data - sum(each.value_bytes for each in stored) > deployed:
        lines.append("that size counts pruned weights in their sparse form, which format=sparse has")
    return tuple(lines)
