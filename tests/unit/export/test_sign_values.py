"""Signs in a network: which values hold them, and what may be left out before one."""

from __future__ import annotations

from typing import Any

import numpy as np

from hookline.deploy.arrays import Node, binary_values, drop_needless_activations, is_integer_sum
from hookline.deploy.inference.graph import Op


def node(kind: str, inputs: str, output: str, kernel: Any = None, **fields: Any) -> Node:
    arrays = {} if kernel is None else {"kernel": np.array(kernel, np.float32)}
    return Node(Op(kind, f"{kind} {output}", tuple(inputs.split()), output, fields), arrays)


def tanh(inputs: str, output: str) -> Node:
    return node("activation", inputs, output, function="tanh")


def shown(nodes: list[Node]) -> list[str]:
    return [f"{each.kind} {' '.join(each.op.inputs)} > {each.op.output}" for each in nodes]


def test_values_hold_signs_as_long_as_entries_are_moved_or_chosen():
    nodes = [
        node("sign", "x", "a"), node("threshold", "x", "b"), node("concatenate", "a b", "c"),
        node("max_pool2d", "c", "d"), node("upsample2d", "d", "e"), node("flatten", "e", "f"),
        node("concatenate", "a x", "half"), node("average_pool2d", "a", "mean"), node("zero_pad2d", "a", "zeros"),
        node("dense", "f", "sums", np.ones((2, 2))), node("ternary", "x", "three"),
    ]  # fmt: skip
    assert binary_values(nodes) == set("abcdef")


def test_a_layer_adds_up_signs_where_input_and_kernel_hold_them():
    dense = [[0.5, -2.0], [-0.5, 2.0]]
    for kind, kernel, value, expected in (
        ("dense", dense, "a", True),
        ("conv2d", [[dense]], "a", True),
        ("depthwise_conv2d", [[dense]], "a", False),
        ("dense", dense, "x", False),
        ("dense", [[0.5, -2.0], [-0.25, 2.0]], "a", False),
    ):
        assert is_integer_sum(node(kind, value, "sum", kernel), {"a"}) == expected


def test_an_activation_stays_where_its_values_count_or_signs_change():
    for follow, output in (
        ([node("sign", "a", "b"), node("add", "a b", "c")], "c"),  # something else takes it, too
        ([node("flatten", "a", "b"), node("sign", "b", "c")], "b"),  # it is what the network gives
        ([node("sign", "a", "b")], "a"),
        ([node("average_pool2d", "a", "b"), node("sign", "b", "c")], "c"),  # a mean of other numbers
        ([], "a"),
    ):
        nodes = [tanh("x", "a"), *follow]
        assert shown(drop_needless_activations(nodes, output)) == shown(nodes)
    for function in ("relu", "leaky_relu", "softmax", "sigmoid"):
        nodes = [node("activation", "x", "a", function=function), node("sign", "a", "b")]
        assert drop_needless_activations(nodes, "b") == nodes
