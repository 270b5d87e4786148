"""How kernels are written: always exactly, in the smallest form."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from hookline.deploy.arrays import (
    Node,
    binary_values,
    drop_needless_activations,
    encode,
    encode_floats,
    is_integer_sum,
    sign_scale,
)
from hookline.deploy.inference.graph import Op
from hookline.deploy.inference.layers import decode


def stored(kernel: np.ndarray) -> tuple[str, int | None, int]:
    """Return how a kernel is encoded, the bits of an index, and its bytes, once it is certain that it comes back."""
    encoded, tensors = encode("k", kernel)
    np.testing.assert_array_equal(decode(encoded, tensors), kernel)
    return encoded.encoding, encoded.bits, sum(each.nbytes for each in tensors.values())


shapes = array_shapes(min_dims=2, max_dims=4, max_side=6)


@given(shapes, st.integers(0, 2**32 - 1), st.sampled_from(["one", "tensor", "channel"]))
def test_signs_with_one_scale_or_one_a_channel_come_back_exactly(shape, seed, kind):
    rng = np.random.default_rng(seed)
    scale = {"one": 1.0, "tensor": 0.3, "channel": rng.uniform(0.1, 2, shape[-1])}[kind]
    kernel = (rng.choice([-1.0, 1.0], shape) * np.asarray(scale, np.float32)).astype(np.float32)
    found = sign_scale(kernel)
    np.testing.assert_array_equal(np.abs(kernel), np.broadcast_to(found, shape))
    _, _, size = stored(kernel)
    if kind == "one":
        encoded, tensors = encode("k", kernel)
        assert (encoded.encoding, encoded.scale, tensors.keys()) == ("sign", None, {"k"})
        assert size == -(-kernel.size // 8)


def test_the_bits_are_those_that_tell_the_values_apart():
    for count, encoding, bits in ((3, "codebook", 2), (17, "codebook", 5), (256, "codebook", 8), (257, "float32", 32)):
        kernel = np.resize(np.arange(count, dtype=np.float32), (64, 65))
        size = -(-64 * 65 * bits // 8) + (4 * count if encoding == "codebook" else 0)
        assert stored(kernel) == (encoding, bits if encoding == "codebook" else None, size)
    assert stored(np.random.default_rng(0).normal(size=(1, 12)).astype(np.float32))[0] == "float32"  # one a channel
    assert stored(np.eye(20, dtype=np.float32))[:2] == ("codebook", 1)
    stored(np.zeros((3, 4), np.float32))


def test_half_precision_rounds_what_has_no_smaller_exact_form():
    floats = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    encoded, tensors = encode("k", floats, half=True)
    assert encoded.encoding == "float16"
    assert tensors["k"].dtype == np.float16
    np.testing.assert_array_equal(tensors["k"], floats.astype(np.float16))
    assert encode("k", np.sign(floats), half=True)[0].encoding == "sign"
    assert encode_floats("k", floats[0])[1]["k"].dtype == np.float32


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
