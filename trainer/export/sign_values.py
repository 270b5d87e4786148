"""Which values of a network hold signs, and which operations before and behind a sign it can do without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainer.export.kernel_codes import sign_scale
from trainer.export.node import Node, consumers

SUMS = {"dense", "conv2d"}
POOLS = {"max_pool2d", "global_max_pool2d"}
SHAPERS = {"flatten", "reshape", "upsample2d"}
BINARY_KEEPERS = POOLS | SHAPERS | {"concatenate"}
SIGN_KEEPING = {"hard_tanh", "tanh"}


def merge_equal_signs(nodes: Sequence[Node]) -> list[Node]:
    """Return operations in which every value has one sign at most; several layers may have asked for one each.

    Args:
        nodes: of a network.
    """
    kept: list[Node] = []
    first: dict[str, str] = {}
    stands_for: dict[str, str] = {}
    for node in nodes:
        inputs = tuple(stands_for.get(name, name) for name in node.op.inputs)
        node = replace(node, op=replace(node.op, inputs=inputs))
        if node.kind == "sign":
            if inputs[0] in first:
                stands_for[node.op.output] = first[inputs[0]]
                continue
            first[inputs[0]] = node.op.output
        kept.append(node)
    return kept


def binary_values(nodes: Sequence[Node]) -> set[str]:
    """Return the names of the values that hold -1 and +1 alone.

    Args:
        nodes: of a network, each after those that it takes values of.
    """
    found: set[str] = set()
    for node in nodes:
        keeps = node.kind in BINARY_KEEPERS and all(name in found for name in node.op.inputs)
        if node.kind in ("sign", "threshold") or keeps:
            found.add(node.op.output)
    return found


def drop_needless_activations(nodes: Sequence[Node], output: str) -> list[Node]:
    """Return operations without the activations that only a sign follows, and that change no sign.

    Args:
        nodes: of a network.
        output: name of its output.
    """
    nodes = list(nodes)
    for node in [each for each in nodes if each.op.fields.get("function") in SIGN_KEEPING]:
        value, counts = node.op.output, consumers(nodes, output)
        follows = [each for each in nodes if value in each.op.inputs]
        while counts[value] == 1 and follows and follows[0].kind in POOLS | SHAPERS:
            value = follows[0].op.output
            follows = [each for each in nodes if value in each.op.inputs]
        if follows and all(each.kind == "sign" for each in follows) and value != output:
            (given,) = node.op.inputs
            nodes = [_rewired(each, node.op.output, given) for each in nodes if each is not node]
    return nodes


def _rewired(node: Node, value: str, other: str) -> Node:
    inputs = tuple(other if name == value else name for name in node.op.inputs)
    return node if inputs == node.op.inputs else replace(node, op=replace(node.op, inputs=inputs))


def is_integer_sum(node: Node, binary: set[str]) -> bool:
    """Return whether a layer adds up signs: a whole number, times the scale of its channel where there is one.

    Args:
        node: any operation.
        binary: names of the values that hold -1 and +1 alone.
    """
    return node.kind in SUMS and node.op.inputs[0] in binary and sign_scale(node.arrays["kernel"]) is not None
