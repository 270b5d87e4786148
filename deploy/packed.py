"""Packed files: one bit per weight, batch norm and sign folded into integer thresholds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from hookline.deploy.arrays import Call, Node, encode_nodes, sign_scale
from hookline.deploy.formats import Contents, ExportOptions
from hookline.deploy.inference.bits import pack_stream
from hookline.deploy.inference.card import CARD
from hookline.deploy.inference.container import PACKED, container_sizes, write_container
from hookline.deploy.inference.engine import Model
from hookline.deploy.inference.graph import Graph, Op, graph_to_json, parse_graph
from hookline.deploy.keras_graph import keras_graph
from hookline.deploy.plain_model import assigned, card_of, mixed_dtypes, rebuilt
from hookline.trainer.errors import UserError
from hookline.trainer.final_activation import put_back
from hookline.trainer.run.results import format_bytes
from hookline.trainer.run.state import shipped_bits, shipped_weights
from hookline.trainer.run.summary import measure_size
from hookline.trainer.step.stage import in_stage
from hookline.trainer.step.trainer import Trainer

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

COLUMNS = ("layer", "array", "numbers", "stored as", "bits", "bytes")


def write_packed(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a packed file, as `Format.write` describes it."""
    batch = run.held_out["test"].batch(tf.constant(0, tf.int64))
    evaluate = evaluated_layers(run.trainer, network, batch_size=int(batch["weights"].shape[0]), step=run.step)
    own, card = run.trainer.networks[network], card_of(run, network)
    shipped = shipped_weights(run.trainer, run.step)[network]
    with assigned(own, shipped), put_back(own.model, own.final_activations) as model:
        # In float32; a model that computes in float32 keeps its own layer objects, which hooks refer to.
        plain = rebuilt(model, full=True) if mixed_dtypes(model) else model
        input_name, nodes, output = packed_nodes(plain, evaluate)
    ops, tensors, stored = encode_nodes(nodes, half=options.float16)
    deployed = measure_size([own], shipped_bits(run.trainer, {network: shipped}))["bytes"]["deployed"]
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
        f"the run's summary counts {deployed:,} bytes ({format_bytes(deployed)}): batch norm as two floats a channel "
        "(thresholds take less), pruned weights as compressed sparse rows (here every entry is stored), the values of "
        "codebooks with weight_clustering alone, and a shared layer once (here once for each call)",
    )
    return Contents(COLUMNS, tuple(rows), notes, lossy=options.float16)


def packed_nodes(model: keras.Model, evaluate: Evaluate) -> tuple[str, list[Node], str]:
    """Return the name of a model's input, its operations as stored in a file, and the name of its output."""
    input_name, nodes, output = keras_graph(model)
    nodes = fold_signs(nodes, output, _shapes(model, input_name, nodes, output), evaluate)
    return input_name, drop_needless_activations(nodes, output), output


def _shapes(model: keras.Model, input_name: str, nodes: Sequence[Node], output: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every value for one example, by name."""
    if not nodes:
        raise UserError(f"'{model.name}' computes nothing. Expected a network with a layer for format=packed.")
    ops, tensors, _ = encode_nodes(nodes, half=False)
    graph = Graph(model.name, input_name, model.inputs[0].shape[1:], output, ops)
    return {name: value.shape for name, value in Model(parse_graph(graph_to_json(graph)), tensors).values.items()}


Signs = Callable[[np.ndarray], np.ndarray]
"""Takes integers, int64 [count]; returns their sign in each channel: bool [count, channels], True for +1."""

CHUNK = 2**22  # signs at a time


@dataclass(frozen=True)
class Thresholds:
    """Describe the integers for which each channel gives +1: from its threshold up or, if descending, up to it."""

    values: np.ndarray  # [channels], in the smallest integer type that holds them
    descending: np.ndarray  # bool [channels]


def find_thresholds(signs: Signs, largest: int, channels: int) -> Thresholds | None:
    """Return thresholds that give the signs of every integer from -largest to largest, or None.

    None if the sign of a channel changes more than once. For a channel of constant sign, every integer or none reaches
    the threshold.
    """
    step = max(1, CHUNK // channels)
    first = before = np.zeros(channels, bool)
    changes = place = np.zeros(channels, np.int64)
    for start in range(-largest, largest + 1, step):
        integers = np.arange(start, min(start + step, largest + 1))
        found = signs(integers)
        if start == -largest:
            first = before = found[0]
        changed = found != np.concatenate([before[None], found[:-1]])
        changes = changes + changed.sum(0)
        place = np.where(changed.any(0), integers[changed.argmax(0)], place)
        before = found[-1]
        if (changes > 1).any():
            return None
    descending = (changes == 1) & first
    never_changed = np.where(first, -largest, largest + 1)
    # `place` is the first integer with the other sign: descending ones give +1 up to the integer before it.
    values = np.where(changes == 0, never_changed, place - descending)
    dtype = next(each for each in (np.int8, np.int16, np.int32) if (values.astype(each) == values).all())
    return Thresholds(values.astype(dtype), descending)


Evaluate = Callable[[Sequence[Call], tuple[int, ...]], Callable[[np.ndarray], np.ndarray]]
"""Takes calls and `shape`; returns a function of float32 [count, channels] that applies them to [batch, *shape]."""


def evaluated_layers(trainer: Trainer, network: str, *, batch_size: int, step: int) -> Evaluate:
    """Return an `Evaluate` that calls layers in the hooks' `around_forward` contexts, at the evaluation's batch size.

    Results are thus bit-identical to the evaluation even if a hook replaces a layer's computation for large tensors.
    """

    def call(calls: Sequence[Call], tensor: tf.Tensor) -> tf.Tensor:
        current = trainer.forward(tf.constant(step, tf.int64), {}, objective="", training=False).passes[network]
        with ExitStack() as stack:
            for hook in current.hooks:
                with in_stage(hook, "around_forward"):
                    stack.enter_context(hook.around_forward(current.context))
            for each in calls:
                tensor = each(tensor)
        return tensor

    def evaluate(calls: Sequence[Call], shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
        full = (batch_size, *shape)
        rows = math.prod(full[:-1])
        traced = tf.function(lambda tensor: call(calls, tensor), autograph=False)
        concrete = traced.get_concrete_function(tf.TensorSpec(full, tf.float32))

        def compute(values: np.ndarray) -> np.ndarray:
            found = []
            for start in range(0, len(values), rows):
                part = values[start : start + rows]
                filled = np.concatenate([part, np.repeat(part[-1:], rows - len(part), axis=0)])
                results = concrete(tf.constant(filled.reshape(full), tf.float32)).numpy()
                found.append(results.reshape(rows, -1)[: len(part)])
            return np.concatenate(found)

        return compute

    return evaluate


SUMS = {"dense", "conv2d"}
POOLS = {"max_pool2d", "global_max_pool2d"}
MOVING = POOLS | {"flatten", "reshape", "upsample2d"}
SIGN_KEEPING = {"hard_tanh", "tanh"}
RISING = {
    *("relu", "relu6", "hard_tanh", "tanh", "sigmoid", "hard_sigmoid", "softplus", "softsign", "selu", "exponential"),
    *("leaky_relu", "elu"),
}
"""Non-decreasing activations; the last two only if their slope is not negative."""


@dataclass(frozen=True)
class _Chain:
    """Hold the operations between a sum and a sign."""

    source: Node  # the layer that sums signs: an integer, times the scale of its channel if there is one
    between: list[Node]  # each takes one value that nothing else uses
    sign: Node

    @property
    def last_by_channel(self) -> int:
        """Return the index of the last operation that treats channels differently, -1 if there is none."""
        return max((place for place, node in enumerate(self.between) if node.kind == "scale_shift"), default=-1)

    @property
    def functions(self) -> list[Node]:
        """Return the operations that the thresholds replace."""
        return [node for node in self.between if node.kind not in MOVING]


def fold_signs(
    nodes: Sequence[Node], output: str, shapes: Mapping[str, tuple[int, ...]], evaluate: Evaluate
) -> list[Node]:
    """Return the operations with integer thresholds wherever these give the same signs.

    Thresholds replace the scale and bias of a layer, batch norm and activations between its sum and a sign if the sign
    of each channel changes at most once from the lowest to the highest sum.
    """
    nodes = merge_equal_signs(nodes)
    for sign in [node for node in nodes if node.kind == "sign"]:
        chain = _find_chain(nodes, output, sign)
        if chain is not None and _may_change_places(chain, shapes):
            thresholds = _thresholds(chain, shapes, evaluate)
            if thresholds is not None:
                nodes = _replaced(nodes, chain, thresholds)
    return nodes


def _find_chain(nodes: Sequence[Node], output: str, sign: Node) -> _Chain | None:
    made_by = {node.op.output: node for node in nodes}
    counts, binary = consumers(nodes, output), binary_values(nodes)
    between: list[Node] = []
    node = sign
    while counts[name := node.op.inputs[0]] == 1 and name in made_by:
        node = made_by[name]
        if node.kind in SUMS and node.op.inputs[0] in binary and sign_scale(node.arrays["kernel"]) is not None:
            return _Chain(node, between, sign)
        if node.call is None and node.kind not in MOVING:
            return None
        between.insert(0, node)
    return None


def _may_change_places(chain: _Chain, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether pooling and reshaping commute with everything that the thresholds replace.

    A maximum commutes with a non-decreasing function; a reshape with one that treats all entries alike, or if it keeps
    the channels.
    """
    channels = shapes[chain.source.op.output][-1]
    for place, node in enumerate(chain.between):
        if node.kind not in MOVING:
            continue
        behind = place > chain.last_by_channel
        crossed = chain.between[place + 1 :] if behind else chain.between[:place]
        functions = [each for each in crossed if each.kind not in MOVING]
        if not behind and shapes[node.op.output][-1] != channels:
            return False
        if node.kind in POOLS and not all(_never_falls(each) for each in functions):
            return False
    return True


def _never_falls(node: Node) -> bool:
    if node.kind == "rescale":
        return bool(node.op.fields["scale"] >= 0)
    return node.op.fields.get("function") in RISING and node.op.fields.get("slope", 0.0) >= 0


def _thresholds(chain: _Chain, shapes: Mapping[str, tuple[int, ...]], evaluate: Evaluate) -> Thresholds | None:
    kernel = chain.source.arrays["kernel"]
    at = chain.between[chain.last_by_channel] if chain.last_by_channel >= 0 else chain.sign
    calls = [node.call for node in [*chain.functions, chain.sign] if node.call is not None]
    scale, bias = sign_scale(kernel), chain.source.arrays.get("bias")
    assert scale is not None
    channels = kernel.shape[-1]
    shape = (*shapes[at.op.inputs[0]][:-1], channels)

    compute = evaluate(calls, shape)

    def signs(integers: np.ndarray) -> np.ndarray:
        values = np.repeat(integers.astype(np.float32)[:, None], channels, axis=1) * scale
        if bias is not None:
            values = values + bias
        return compute(values) > 0

    return find_thresholds(signs, kernel.size // channels, channels)


def _replaced(nodes: Sequence[Node], chain: _Chain, thresholds: Thresholds) -> list[Node]:
    """Return the operations with the thresholds instead of a chain's functions and sign."""
    last = chain.last_by_channel
    before = [node for node in chain.between[: last + 1] if node.kind in MOVING]
    behind = [node for node in chain.between[last + 1 :] if node.kind in MOVING]
    kernel = np.where(np.signbit(chain.source.arrays["kernel"]), np.float32(-1), np.float32(1))
    arrays = {"thresholds": thresholds.values}
    if thresholds.descending.any():
        arrays["descending"] = pack_stream(thresholds.descending, 1)
    name, value = (chain.functions or [chain.sign])[0].op.name, chain.source.op.output
    threshold = Node(Op("threshold", name, (), ""), arrays)
    moved = [*before, threshold, *behind]
    names = [f"{chain.sign.op.output}/{node.kind}:{place}" for place, node in enumerate(behind)]
    outputs = [*(node.op.output for node in before), *names, chain.sign.op.output]
    new: list[Node] = []
    for node, output in zip(moved, outputs, strict=True):
        new.append(replace(node, op=replace(node.op, inputs=(value,), output=output)))
        value = output
    gone = {id(node) for node in (*chain.between, chain.sign)}
    found: list[Node] = []
    for node in nodes:
        if node is chain.sign:
            found += new
        elif id(node) not in gone:
            found.append(replace(node, arrays={"kernel": kernel}) if node is chain.source else node)
    return found


def consumers(nodes: Sequence[Node], output: str) -> Counter[str]:
    """Return how often each value is used, by name."""
    return Counter([output, *(name for node in nodes for name in node.op.inputs)])


def merge_equal_signs(nodes: Sequence[Node]) -> list[Node]:
    """Return the operations with at most one sign op for every value; several layers may each have added one."""
    kept: list[Node] = []
    first: dict[str, str] = {}
    stands_for: dict[str, str] = {}
    for node in nodes:
        node = _rewired(node, stands_for)
        if node.kind == "sign" and (same := first.setdefault(node.op.inputs[0], node.op.output)) != node.op.output:
            stands_for[node.op.output] = same
        else:
            kept.append(node)
    return kept


def binary_values(nodes: Sequence[Node]) -> set[str]:
    """Return the names of the values that hold only -1 and +1."""
    found: set[str] = set()
    for node in nodes:
        keeps = node.kind in MOVING | {"concatenate"} and all(name in found for name in node.op.inputs)
        if node.kind in ("sign", "threshold") or keeps:
            found.add(node.op.output)
    return found


def drop_needless_activations(nodes: Sequence[Node], output: str) -> list[Node]:
    """Return the operations without sign-preserving activations that are followed only by signs."""
    nodes = list(nodes)
    for node in [each for each in nodes if each.op.fields.get("function") in SIGN_KEEPING]:
        value, counts = node.op.output, consumers(nodes, output)
        follows = [each for each in nodes if value in each.op.inputs]
        while counts[value] == 1 and follows and follows[0].kind in MOVING:
            value = follows[0].op.output
            follows = [each for each in nodes if value in each.op.inputs]
        if follows and all(each.kind == "sign" for each in follows) and value != output:
            stands_for = {node.op.output: node.op.inputs[0]}
            nodes = [_rewired(each, stands_for) for each in nodes if each is not node]
    return nodes


def _rewired(node: Node, stands_for: Mapping[str, str]) -> Node:
    inputs = tuple(stands_for.get(name, name) for name in node.op.inputs)
    return node if inputs == node.op.inputs else replace(node, op=replace(node.op, inputs=inputs))
