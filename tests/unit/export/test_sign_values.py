"""Signs in a network: which values hold them, and what may be left out before one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainer.export.node import Node
from trainer.export.sign_values import binary_values, drop_needless_activations, is_integer_sum, merge_equal_signs
from trainer.inference.graph import Op


def node(kind: str, inputs: str, output: str, kernel: Any = None, **fields: Any) -> Node:
    arrays = {} if kernel is None else {"kernel": np.array(kernel, np.float32)}
    return Node(Op(kind, f"{kind} {output}", tuple(inputs.split()), output, fields), arrays)


def tanh(inputs: str, output: str) -> Node:
    return node("activation", inputs, output, function="tanh")


def shown(nodes: list[Node]) -> list[str]:
    return [f"{each.kind} {' '.join(each.op.inputs)} > {each.op.output}" for each in nodes]


def test_equal_signs_are_one_and_what_used_the_others_uses_it():
    nodes = [
        node("sign", "x", "a"), node("sign", "x", "b"), node("sign", "y", "c"), node("add", "b c", "d"),
        node("sign", "b", "e"), node("sign", "a", "f"), node("add", "e f", "g"),
    ]  # fmt: skip
    assert shown(merge_equal_signs(nodes)) == [
        "sign x > a", "sign y > c", "add a c > d", "sign a > e", "add e e > g",
    ]  # fmt: skip


def test_values_hold_signs_as_long_as_entries_are_moved_or_chosen():
    nodes = [
        node("sign", "x", "a"), node("threshold", "x", "b"), node("concatenate", "a b", "c"),
        node("max_pool2d", "c", "d"), node("upsample2d", "d", "e"), node("flatten", "e", "f"),
        node("global_max_pool2d", "a", "g"), node("reshape", "g", "h"),
        node("concatenate", "a x", "half"), node("average_pool2d", "a", "mean"), node("zero_pad2d", "a", "zeros"),
        node("flatten", "mean", "flat"), node("dense", "h", "sums", np.ones((2, 2))), node("ternary", "x", "three"),
    ]  # fmt: skip
    assert binary_values(nodes) == set("abcdefgh")


DENSE = [[0.5, -2.0], [-0.5, 2.0]]


@pytest.mark.parametrize(
    ("kind", "kernel", "value", "expected"),
    [
        ("dense", DENSE, "a", True),
        ("conv2d", [[DENSE]], "a", True),
        ("depthwise_conv2d", [[DENSE]], "a", False),
        ("dense", DENSE, "x", False),
        ("dense", [[0.5, -2.0], [-0.25, 2.0]], "a", False),
    ],
)
def test_a_layer_adds_up_signs_where_input_and_kernel_hold_them(kind, kernel, value, expected):
    assert is_integer_sum(node(kind, value, "sum", kernel), {"a"}) == expected


def test_an_activation_that_changes_no_sign_goes_where_only_signs_follow():
    nodes = [
        tanh("x", "a"), node("max_pool2d", "a", "b"), node("flatten", "b", "c"), node("sign", "c", "d"),
        node("activation", "d", "e", function="hard_tanh"), node("sign", "e", "f"),
    ]  # fmt: skip
    assert shown(drop_needless_activations(nodes, "f")) == [
        "max_pool2d x > b", "flatten b > c", "sign c > d", "sign d > f",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("follow", "output"),
    [
        ([node("sign", "a", "b"), node("add", "a b", "c")], "c"),  # something else takes it, too
        ([node("flatten", "a", "b"), node("sign", "b", "c"), node("add", "b c", "d")], "d"),
        ([node("flatten", "a", "b"), node("sign", "b", "c")], "b"),  # it is what the network gives
        ([node("sign", "a", "b")], "a"),
        ([node("average_pool2d", "a", "b"), node("sign", "b", "c")], "c"),  # a mean of other numbers has another sign
        ([node("flatten", "a", "b")], "b"),
        ([], "a"),
    ],
)
def test_an_activation_stays_where_its_values_count(follow: list[Node], output: str):
    nodes = [tanh("x", "a"), *follow]
    assert shown(drop_needless_activations(nodes, output)) == shown(nodes)


@pytest.mark.parametrize("function", ["relu", "leaky_relu", "softmax", "sigmoid"])
def test_no_other_activation_is_dropped(function: str):
    nodes = [node("activation", "x", "a", function=function), node("sign", "a", "b")]
    assert drop_needless_activations(nodes, "b") == nodes
