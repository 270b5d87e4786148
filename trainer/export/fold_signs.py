"""Integer thresholds in the place of what stands between a binary layer's sum and a sign."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainer.export.kernel_codes import sign_scale
from trainer.export.node import Call, Node, consumers
from trainer.export.sign_values import POOLS, SHAPERS, binary_values, is_integer_sum, merge_equal_signs
from trainer.export.thresholds import Thresholds, find_thresholds
from trainer.inference.bits import pack_stream
from trainer.inference.graph import Op

Evaluate = Callable[[Sequence[Call], tuple[int, ...]], Callable[[np.ndarray], np.ndarray]]
"""What calls, one after another, make of tensors [batch, *shape]: float32 [count, channels] to the same."""

BY_CHANNEL = "scale_shift"
RISING = {
    *("relu", "relu6", "hard_tanh", "tanh", "sigmoid", "hard_sigmoid", "softplus", "softsign", "selu", "exponential"),
    *("leaky_relu", "elu"),
}
"""Activations that never fall; the last two where their slope is not negative."""


@dataclass(frozen=True)
class _Chain:
    """Hold what lies between a sum and a sign.

    Attributes:
        source: the layer that makes the sum.
        between: operations, each of one value that nothing else uses.
        sign: the last one.
    """

    source: Node
    between: list[Node]
    sign: Node

    @property
    def last_by_channel(self) -> int:
        """Return the place of the last operation that treats channels differently, -1 without one."""
        places = [place for place, node in enumerate(self.between) if node.kind == BY_CHANNEL]
        return places[-1] if places else -1

    @property
    def movers(self) -> list[bool]:
        """Return for every operation whether it moves or chooses entries instead of computing new ones."""
        return [node.kind in POOLS | SHAPERS for node in self.between]


def fold_signs(
    nodes: Sequence[Node], output: str, shapes: Mapping[str, tuple[int, ...]], evaluate: Evaluate
) -> list[Node]:
    """Return operations in which thresholds of integers stand where they give the same signs.

    Scale and bias of the layer, batch norm and activations between its sum and a sign go into the thresholds, as long
    as each channel's sign changes once at most from the lowest to the highest sum. Everything else stays as it is.

    Args:
        nodes: of a network.
        output: name of its output.
        shapes: of the values for one example, by name.
        evaluate: computes what Keras does between sum and sign.
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
    while True:
        name = node.op.inputs[0]
        before = made_by.get(name)
        if before is None or counts[name] != 1:
            return None
        if is_integer_sum(before, binary):
            return _Chain(before, between, sign)
        if before.call is None and before.kind not in POOLS | SHAPERS:
            return None
        between.insert(0, before)
        node = before


def _may_change_places(chain: _Chain, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether pooling and reshaping may stand before or behind all that the thresholds take the place of.

    A maximum may change places with a function that never falls; a reshaping with one that treats all entries alike,
    or that has the same channels before and after it.
    """
    channels = shapes[chain.source.op.output][-1]
    for place, node in enumerate(chain.between):
        if node.kind not in POOLS | SHAPERS:
            continue
        behind = place > chain.last_by_channel
        crossed = chain.between[place + 1 :] if behind else chain.between[:place]
        functions = [each for each in crossed if each.kind not in POOLS | SHAPERS]
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
    functions = [node for node in chain.between if node.kind not in POOLS | SHAPERS]
    at = chain.between[chain.last_by_channel] if chain.last_by_channel >= 0 else chain.sign
    calls = [node.call for node in [*functions, chain.sign] if node.call is not None]
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
    last = chain.last_by_channel
    before = [node for node in chain.between[: last + 1] if node.kind in POOLS | SHAPERS]
    behind = [node for node in chain.between[last + 1 :] if node.kind in POOLS | SHAPERS]
    kernel = np.where(np.signbit(chain.source.arrays["kernel"]), np.float32(-1), np.float32(1))
    source = replace(chain.source, arrays={"kernel": kernel})
    new: list[Node] = []
    value = source.op.output
    for node in before:
        new.append(_moved(node, value, node.op.output))
        value = node.op.output
    names = [f"{chain.sign.op.output}/{node.kind}:{place}" for place, node in enumerate(behind)]
    outputs = [*names, chain.sign.op.output]
    new.append(_threshold_node(chain, thresholds, value, outputs[0]))
    for node, given, output in zip(behind, outputs[:-1], outputs[1:], strict=True):
        new.append(_moved(node, given, output))
    gone = {id(node) for node in (*chain.between, chain.sign)}
    found: list[Node] = []
    for node in nodes:
        if node is chain.sign:
            found += new
        if id(node) not in gone:
            found.append(source if node is chain.source else node)
    return found


def _moved(node: Node, given: str, output: str) -> Node:
    return replace(node, op=replace(node.op, inputs=(given,), output=output))


def _threshold_node(chain: _Chain, thresholds: Thresholds, value: str, output: str) -> Node:
    arrays = {"thresholds": thresholds.values}
    if thresholds.descending.any():
        arrays["descending"] = pack_stream(thresholds.descending, 1)
    folded = [node.op.name for node in chain.between if node.kind not in POOLS | SHAPERS]
    return Node(Op("threshold", folded[0] if folded else chain.sign.op.name, (value,), output), arrays)
