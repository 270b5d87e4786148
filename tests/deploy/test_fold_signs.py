"""Thresholds replace the layers between a binary layer and a sign, and never change a sign."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.deploy import packed as thresholds
from hookline.deploy.arrays import Node, encode_nodes
from hookline.deploy.inference.engine import Model
from hookline.deploy.inference.graph import ACTIVATIONS, Graph, Op, find_activation, graph_to_json, parse_graph
from hookline.deploy.packed import Thresholds, find_thresholds, fold_signs

IMAGE = (4, 6, 3)
CHANNELS = 4
Part = tuple[str, dict[str, Any]]


def evaluate(calls: Sequence[Callable], _: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that applies NumPy functions to the values at one place."""

    def compute(values: np.ndarray) -> np.ndarray:
        for call in calls:
            values = call(values)
        return values

    return compute


def quarters(random: np.random.Generator, count: int) -> np.ndarray:
    """Return numbers that float32 adds and multiplies without rounding, so that the order of sums does not matter."""
    return (random.integers(-8, 9, count) / 4).astype(np.float32)


def middle(random: np.random.Generator, kind: str, fields: dict[str, Any], channels: int) -> Node:
    """Return a node between the layer and the sign, whose values have no names yet."""
    if kind == "scale_shift":
        scale, shift = quarters(random, channels), quarters(random, channels)
        return Node(Op(kind, kind, (), "", {}), {"scale": scale, "shift": shift}, lambda x: x * scale + shift)
    calls = {
        "rescale": lambda x: x * np.float32(fields["scale"]) + np.float32(fields["offset"]),
        "activation": lambda x: find_activation(fields["function"], fields.get("slope"))(x),
    }
    return Node(Op(kind, kind, (), "", fields), {}, calls.get(kind))


def network(parts: Sequence[Part], seed: int, *, bias: bool = False) -> tuple[list[Node], dict[str, tuple[int, ...]]]:
    """Return a sign, a convolution, the parts that fit, and a sign; and the shapes of the values."""
    random = np.random.default_rng(seed)
    kernel = random.choice(np.float32([-1, 1]), (2, 2, IMAGE[-1], CHANNELS)) * random.choice(np.float32([0.5, 2.0]), 4)
    more = {"bias": quarters(random, CHANNELS)} if bias else {}
    nodes = [
        Node(Op("sign", "first", ("x",), "signs", {}), {}, np.sign),
        Node(Op("conv2d", "conv", ("signs",), "sum", {"padding": "same"}), {"kernel": kernel, **more}),
    ]
    shape, last, shapes = (4, 6, CHANNELS), "sum", {"x": IMAGE, "signs": IMAGE, "sum": (4, 6, CHANNELS)}
    for place, (kind, fields) in enumerate(parts):
        if kind in ("max_pool2d", "upsample2d", "global_max_pool2d") and (len(shape) != 3 or min(shape) < 2):
            continue
        node = middle(random, kind, fields, shape[-1])
        shape = {
            "max_pool2d": lambda s: (s[0] // 2, s[1] // 2, s[2]), "upsample2d": lambda s: (s[0] * 2, s[1], s[2]),
            "global_max_pool2d": lambda s: s[-1:], "flatten": lambda s: (int(np.prod(s)),),
            "reshape": lambda s: (int(np.prod(s[:-1])), 1, s[-1]),
        }.get(kind, lambda s: s)(shape)  # fmt: skip
        name = f"v{place}"
        nodes.append(Node(Op(kind, f"{kind}_{place}", (last,), name, node.op.fields), node.arrays, node.call))
        last, shapes[name] = name, shape
    nodes.append(Node(Op("sign", "last", (last,), "out", {}), {}, lambda x: np.where(x >= 0, 1.0, -1.0)))
    return nodes, {**shapes, "out": shape}


def run(nodes: Sequence[Node], inputs: np.ndarray) -> np.ndarray:
    ops, tensors, _ = encode_nodes(nodes, half=False)
    graph = parse_graph(graph_to_json(Graph("net", "x", IMAGE, "out", ops)))
    return Model(graph, tensors)(inputs)


def folded(parts: Sequence[Part], seed: int = 0, *, bias: bool = False) -> list[str]:
    """Return the operations after folding, after checking that they give the same signs."""
    nodes, shapes = network(parts, seed, bias=bias)
    inputs = np.random.default_rng(seed).normal(size=(6, *IMAGE)).astype(np.float32)
    found = fold_signs(nodes, "out", shapes, evaluate)
    np.testing.assert_array_equal(run(found, inputs), run(nodes, inputs))
    return [node.kind for node in found]


def activation(function: str, slope: float | None = None) -> Part:
    return "activation", {"function": function, **({} if slope is None else {"slope": slope})}


def rescale(scale: float, offset: float = 0.25) -> Part:
    return "rescale", {"scale": scale, "offset": offset}


NORM: Part = ("scale_shift", {})
POOL: Part = ("max_pool2d", {"pool_size": (2, 2), "strides": (2, 2), "padding": "valid"})
LARGEST: Part = ("global_max_pool2d", {})
FLAT: Part = ("flatten", {})
TALLER: Part = ("upsample2d", {"size": (2, 1)})
SHAPE: Part = ("reshape", {"shape": (24, 1, CHANNELS)})
PARTS = st.sampled_from(
    [
        NORM, NORM, POOL, POOL, LARGEST, FLAT, TALLER, activation("relu"), activation("hard_tanh"),
        activation("leaky_relu", 0.5), activation("leaky_relu", -0.5), rescale(0.5), rescale(-1.0), rescale(0.0, -0.25),
    ]
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(PARTS, max_size=5), st.integers(0, 99), st.booleans())
def test_folding_changes_no_sign(parts: list[Part], seed: int, bias: bool):
    folded(parts, seed, bias=bias)


T = "threshold"


def test_pooling_and_reshaping_move_before_or_after_threshold():
    for parts, expected in (
        ([], [T]),
        ([NORM, NORM, rescale(-1.0)], [T]),
        ([POOL, NORM], ["max_pool2d", T]),  # the pool sees the sums
        ([NORM, POOL], [T, "max_pool2d"]),  # the pool sees the signs
        ([TALLER, NORM, POOL], ["upsample2d", T, "max_pool2d"]),
        ([NORM, FLAT, activation("relu"), rescale(-1.0)], [T, "flatten"]),
        ([NORM, LARGEST, activation("leaky_relu", 0.5)], [T, "global_max_pool2d"]),
        ([SHAPE], [T, "reshape"]),
        ([activation("hard_tanh"), POOL, NORM], ["max_pool2d", T]),
    ):
        assert folded(parts) == ["sign", "conv2d", *expected]


def test_nodes_that_cannot_be_reordered_are_not_folded():
    for parts in (
        [NORM, POOL, NORM],  # a channel may be decreasing
        [rescale(-1.0), POOL, NORM],
        [NORM, POOL, rescale(-1.0)],
        [activation("leaky_relu", -0.5), POOL, NORM],
        [NORM, LARGEST, activation("leaky_relu", -0.5), rescale(1.0, -1.0)],
        [FLAT, NORM],  # numbers per place, but thresholds are per channel
        [("average_pool2d", POOL[1]), NORM],
    ):
        nodes, shapes = network(parts, 3)
        assert fold_signs(nodes, "out", shapes, evaluate) == nodes
    nodes, shapes = network([NORM], 2)  # sums that are also outputs, or are used twice
    assert fold_signs(nodes, "sum", shapes, evaluate) == nodes
    assert fold_signs(nodes, "v0", shapes, evaluate) == nodes
    again = [*nodes, Node(Op("add", "again", ("sum", "out"), "both", {}))]
    assert fold_signs(again, "both", {**shapes, "both": shapes["sum"]}, evaluate) == again


def test_pool_moves_after_threshold_only_if_activation_never_decreases():
    for function in ACTIVATIONS.keys() - {"linear", "softmax", "log_softmax"}:
        rises = (np.diff(find_activation(function, None)(np.linspace(-9, 9, 999, dtype=np.float32))) >= 0).all()
        nodes, shapes = network([POOL, activation(function), rescale(1.0, -0.5)], 1)
        found = [node.kind for node in fold_signs(nodes, "out", shapes, evaluate)]
        assert (found[2:] == [T, "max_pool2d"]) == rises, function


def test_layers_are_evaluated_at_their_size_in_network():
    """A hook may compute large tensors differently from small ones."""
    for parts, shape in (([NORM, POOL], (4, 6)), ([POOL, NORM], (2, 3)), ([TALLER, NORM, POOL], (8, 6)),
                         ([LARGEST, NORM], ())):  # fmt: skip
        seen: list[tuple[int, ...]] = []
        nodes, shapes = network(parts, 1)
        fold_signs(nodes, "out", shapes, lambda calls, at, seen=seen: seen.append(at) or evaluate(calls, at))
        assert seen == [(*shape, CHANNELS)]


def batch_norm(gamma, beta, mean, variance, *, epsilon: float = 1e-3):
    """Return a function that gives the signs of batch norm with given statistics, computed in float32 as by Keras."""
    gamma, beta, mean, variance = (np.asarray(each, np.float32) for each in (gamma, beta, mean, variance))

    def signs(integers: np.ndarray) -> np.ndarray:
        scale = gamma / np.sqrt(variance + np.float32(epsilon))
        return integers.astype(np.float32)[:, None] * scale + (beta - mean * scale) >= 0

    return signs


def check(signs, largest: int) -> Thresholds:
    found = find_thresholds(signs, largest, signs(np.arange(1)).shape[1])
    integers = np.arange(-largest, largest + 1)
    assert found is not None
    rising, falling = integers[:, None] >= found.values, integers[:, None] <= found.values
    np.testing.assert_array_equal(np.where(found.descending, falling, rising), signs(integers))
    return found


numbers = st.floats(-3, 3, width=32)
channel = st.tuples(
    numbers | st.just(0.0),  # gamma, of both signs and zero
    numbers | st.just(0.0),
    st.integers(-20, 20) | numbers,  # a mean that is an integer makes ties
    st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 400.0]),
)


@given(st.lists(channel, min_size=1, max_size=9), st.integers(1, 20))
def test_thresholds_give_signs_of_batch_norm(channels, largest):
    check(batch_norm(*zip(*channels, strict=True)), largest)


@pytest.mark.parametrize("rising", [True, False])
def test_every_integer_is_tried_once_across_chunks(monkeypatch, rising: bool):
    monkeypatch.setattr(thresholds, "CHUNK", 14)  # 7 integers at a time for two channels
    for change in (-499, -498, 0, 77, 500):
        asked: list[int] = []

        def signs(integers: np.ndarray, asked=asked, change=change) -> np.ndarray:
            asked.extend(integers.tolist())
            first = (integers >= change) if rising else (integers < change)
            return np.stack([first, integers >= 0], axis=1)

        found = find_thresholds(signs, 500, 2)
        assert sorted(asked) == list(range(-500, 501))
        assert found.values.tolist() == [change if rising else change - 1, 0]
        assert found.descending.tolist() == [not rising, False]
