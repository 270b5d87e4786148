import itertools
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.deploy.inference import layers as patches
from hookline.deploy.inference.container import PACKED, write_container
from hookline.deploy.inference.engine import Model, find_backend, load_model
from hookline.deploy.inference.graph import ACTIVATIONS, BINARY, INTEGER, Encoded, Graph, Op, graph_to_json
from hookline.trainer.ops.estimators import dorefa, ste_sign, ste_tern
from tests.support.packed import inner_value
from tests.support.packed_graphs import GraphBuilder, random_cnn, random_mlp
from tests.support.refusals import assert_refused


def numbers_of(stream: np.ndarray, count: int, width: int) -> np.ndarray:
    """Return the numbers of a stream, lowest bit first."""
    whole = int.from_bytes(stream.tobytes(), "little")
    return np.array([whole >> place * width & 2**width - 1 for place in range(count)])


def decode(encoded: Encoded, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the values of a kernel or a bias."""
    if encoded.encoding in ("float32", "float16"):
        return tensors[encoded.tensor].astype(np.float64)
    *rest, channels = encoded.shape
    flat = numbers_of(tensors[encoded.tensor], math.prod(encoded.shape), encoded.bits or 1)
    indices = np.stack(np.split(flat, channels), axis=-1).reshape(*rest, channels)
    if encoded.encoding == "codebook":
        return tensors[encoded.values][indices].astype(np.float64)
    return (2.0 * indices - 1.0) * (1.0 if encoded.scale is None else tensors[encoded.scale].astype(np.float64))


def evaluate(graph: Graph, tensors: Mapping[str, np.ndarray], inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Return every value of a graph, computed in float64 with TensorFlow's windows; signs are -1 and +1."""
    arrays = {graph.input_name: inputs.astype(np.float64)}
    for op in graph.ops:
        arrays[op.output] = np.asarray(_one(op, tensors, [arrays[name] for name in op.inputs]))
    return arrays


def _one(op: Op, tensors: Mapping[str, np.ndarray], taken: list[np.ndarray]) -> Any:
    x, fields = taken[0], op.fields
    window = {"strides": fields.get("strides"), "padding": str(fields.get("padding")).upper()}
    match op.op:
        case "dense" | "conv2d" | "depthwise_conv2d":
            kernel = decode(fields["kernel"], tensors)
            bias = 0.0 if fields["bias"] is None else decode(fields["bias"], tensors)
            if op.op == "dense":
                return np.tensordot(x, kernel, 1) + bias
            parts = np.split(np.arange(x.shape[-1]), x.shape[-1] if op.op == "depthwise_conv2d" else 1)
            made = [tf.nn.conv2d(x[..., i], kernel[:, :, i], dilations=fields["dilation"], **window) for i in parts]
            return np.concatenate(made, axis=-1) + bias
        case "sign":
            return np.where(x >= 0, 1.0, -1.0)
        case "threshold":
            limits, descending = tensors[fields["thresholds"]], fields["descending"]
            falls = 0 if descending is None else numbers_of(tensors[descending], len(limits), 1)
            return np.where(np.where(falls, x <= limits, x >= limits), 1.0, -1.0)
        case "scale_shift":
            return x * tensors[fields["scale"]].astype(float) + tensors[fields["shift"]].astype(float)
        case "rescale":
            return x * fields["scale"] + fields["offset"]
        case "max_pool2d":
            return tf.nn.max_pool2d(x, fields["pool_size"], **window)
        case "average_pool2d":
            return tf.nn.avg_pool2d(x, fields["pool_size"], **window)
        case "global_max_pool2d" | "global_average_pool2d":
            return (np.max if "max" in op.op else np.mean)(x, axis=(1, 2))
        case "flatten" | "reshape":
            return x.reshape(len(x), *fields.get("shape", (-1,)))
        case "add":
            return sum(taken)
        case "multiply":
            return math.prod(taken)
        case "subtract":
            return taken[0] - taken[1]
        case "concatenate":
            return np.concatenate(taken, fields["axis"])
        case "zero_pad2d":
            return np.pad(x, ((0, 0), *fields["padding"], (0, 0)))
        case "upsample2d":
            return np.kron(x, np.ones((1, *fields["size"], 1)))
    raise AssertionError(op.op)


def images(shape: tuple[int, ...], batch: int, seed: int = 0) -> np.ndarray:
    """Return inputs; some of them are 0 and -0."""
    random = np.random.default_rng(seed)
    made = random.uniform(-1, 1, (batch, *shape)).astype(np.float32)
    return np.where(random.random(made.shape) < 0.1, random.choice(np.float32([0, -0.0]), made.shape), made)


def check(builder: GraphBuilder, batch: int = 3, kernels: str = "numpy") -> None:
    """Compare every value with the oracle: integers and signs exactly, floats closely."""
    graph = builder.graph()
    backend = find_backend(kernels)
    inputs = images(graph.input_shape, batch)
    expected = evaluate(graph, builder.tensors, inputs)
    for name, value in Model(graph, builder.tensors, backend).values.items():
        found = inner_value(name, inputs, graph, builder.tensors, backend)
        assert found.dtype == np.float32
        if value.kind in (BINARY, INTEGER):
            np.testing.assert_array_equal(found, expected[name], err_msg=name)
        else:
            np.testing.assert_allclose(found, expected[name], rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("builder", [random_mlp(), random_cnn(), random_mlp((3, 200, 9)), random_cnn((3, 5, 9))])
def test_networks_match_oracle(builder, kernels):
    if kernels == "numba":
        pytest.importorskip("numba")
    check(builder, kernels=kernels)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.parametrize("exact", [True, False])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_convolutions_and_pooling_match_oracle_for_any_window(exact, data):
    """The exact cases convolve signs with signs."""
    draw = data.draw
    size, channels = draw(st.tuples(st.integers(3, 7), st.integers(3, 7))), draw(st.integers(1, 12))
    builder = GraphBuilder((*size, channels), draw(st.integers(0, 99)))
    kind = "binary" if exact else draw(st.sampled_from(["float", "integer", "binary"]))
    if kind != "float":
        builder.add("sign")
    if kind == "integer":
        builder.add("conv2d", kernel=builder.signs((2, 2, channels, channels)), padding="same")
    other = ["conv2d", "depthwise_conv2d", "max_pool2d", "average_pool2d"]
    op = draw(st.sampled_from(["conv2d", *([] if exact else other)]))
    window, strides, dilation = draw(pairs), draw(pairs), (1, 1)
    if strides == (1, 1) and "conv" in op:
        dilation = draw(pairs)
    fits = all((window[i] - 1) * dilation[i] + 1 <= size[i] for i in (0, 1))
    fields = {"strides": strides, "padding": draw(st.sampled_from(["same", "valid"])) if fits else "same"}
    if "pool" in op:
        builder.add(op, pool_size=window, **fields)
    else:
        shape = (*window, channels, draw(st.integers(1, 9)))
        encoding = draw(st.sampled_from(["sign", "scaled", *([] if exact else ["float32", "float16", "codebook"])]))
        if encoding == "codebook":
            kernel = builder.codebook(shape, draw(st.integers(1, 8)))
        elif encoding in ("sign", "scaled"):
            kernel = builder.signs(shape, scaled=encoding == "scaled")
        else:
            kernel = builder.floats(shape, encoding)
        units = shape[-1] * (channels if op == "depthwise_conv2d" else 1)
        bias = builder.floats((units,)) if draw(st.booleans()) else None
        builder.add(op, kernel=kernel, bias=bias, dilation=dilation, **fields)
    check(builder, batch=2)


@pytest.mark.parametrize("binary", [True, False])
def test_convolution_in_blocks_matches_oracle(binary, monkeypatch):
    for block, dilation in ((1, (1, 1)), (200, (2, 1)), (1000, (1, 2))):
        monkeypatch.setattr(patches, "BLOCK", block)
        builder = GraphBuilder((7, 5, 3))
        if binary:
            builder.add("sign")
        builder.add("conv2d", kernel=builder.signs((3, 3, 3, 4)), padding="same", dilation=dilation)
        check(builder, batch=3)


def test_threshold_out_of_range_makes_channel_constant():
    for dtype in (np.int8, np.int32):
        ends = np.iinfo(dtype)
        builder = GraphBuilder((5,))
        builder.add("sign")
        builder.add("dense", kernel=builder.signs((5, 4)))
        limits = builder.tensor(np.array([ends.min, ends.max, ends.min, ends.max], dtype))
        builder.add("threshold", thresholds=limits, descending=builder.tensor(np.array([0b1100], np.uint8)))
        model = Model(builder.graph(), builder.tensors)
        np.testing.assert_array_equal(model(images((5,), 2)), [[1, -1, -1, 1]] * 2)


def test_merging_padding_and_rescaling_match_oracle():
    builder = GraphBuilder((4, 3, 5))
    signs = builder.add("sign")
    sums = builder.add("conv2d", kernel=builder.signs((1, 1, 5, 5)))
    builder.add("sign", inputs=(sums,))
    added = builder.add("add", inputs=("image", signs, sums))
    builder.add("multiply", inputs=(added, "image"))
    taken = builder.add("subtract", inputs=(builder.last, signs))
    builder.add(
        "concatenate", inputs=(signs, builder.add("zero_pad2d", inputs=(taken,), padding=((0, 0), (0, 0)))), axis=2
    )
    builder.add("rescale", scale=0.5, offset=-2.0)
    builder.add("zero_pad2d", padding=((1, 2), (0, 3)))
    builder.add("dense", kernel=builder.codebook((5, 3), 3), bias=builder.floats((3,)))
    builder.batch_norm(3)
    check(builder)


def test_upsampling_concatenation_and_global_max_pooling_keep_kind():
    for kind in ("float", "integer", "binary"):
        builder = GraphBuilder((2, 3, 5))
        if kind != "float":
            builder.add("sign")
        if kind == "integer":
            builder.add("dense", kernel=builder.signs((5, 6)))
        small = builder.last
        large = builder.add("upsample2d", size=(2, 1))
        joined = builder.add("concatenate", inputs=(large, large), axis=-1)
        both = builder.add("concatenate", inputs=(joined, joined), axis=1)
        mean = builder.add("global_average_pool2d")
        largest = builder.add("global_max_pool2d", inputs=(both,))
        builder.add("add", inputs=(largest, mean))
        values = Model(builder.graph(), builder.tensors).values
        assert {values[name].kind for name in (small, large, joined, both, largest)} == {kind}
        check(builder)


def test_batch_larger_than_chunk_matches_single_examples():
    builder = random_mlp()
    model = Model(builder.graph(), builder.tensors)
    inputs = images((6, 5, 1), 2 * model._examples + 3)
    outputs = model(inputs)
    assert len(outputs) == len(inputs)
    assert model(inputs[:0]).shape == (0, 10)
    some = [0, model._examples - 1, model._examples, len(inputs) - 1]
    alone = np.concatenate([model(inputs[row : row + 1]) for row in some])
    np.testing.assert_allclose(outputs[some], alone, rtol=1e-5, atol=1e-5)


def test_invalid_inputs_kernels_and_files_are_refused(tmp_path):
    builder = random_mlp()
    model = Model(builder.graph(), builder.tensors)
    for inputs in (np.zeros((2, 5, 6, 1)), np.zeros(30), np.float32(1), np.full((1, 6, 5, 1), "a")):
        assert_refused(r"Inputs are .* Expected numbers of shape \[batch, 6, 5, 1\].", model, inputs)
    assert_refused("Unknown kernels 'nunpy'. Did you mean 'numpy'?", load_model, tmp_path / "none", kernels="nunpy")
    write_container(tmp_path / "a", PACKED, {"name": "net"}, {})
    assert_refused("a is not a valid packed file: KeyError", load_model, tmp_path / "a")
    write_container(tmp_path / "b", PACKED, graph_to_json(builder.graph()), builder.tensors)
    assert load_model(tmp_path / "b").graph == builder.graph()


SHAPE = (7, 6, 5)


def spread(shape: tuple[int, ...]) -> np.ndarray:
    """Return random values, among them 0, -0, and some beyond -3 and +3."""
    inputs = np.random.default_rng(1).normal(scale=2, size=(3, *shape)).astype(np.float32)
    inputs.reshape(-1)[:2] = 0.0, -0.0
    return inputs


def compare(layer, inputs: np.ndarray, op: str, **fields) -> None:
    builder = GraphBuilder(inputs.shape[1:])
    builder.add(op, **fields)
    found = Model(builder.graph(), builder.tensors)(inputs)
    np.testing.assert_allclose(found, layer(tf.constant(inputs)), rtol=2e-5, atol=2e-5)


def test_quantizers_and_activations_match_training_ops():
    compare(ste_sign, spread(SHAPE), "sign")
    compare(ste_tern, spread(SHAPE), "ternary", threshold=0.05)
    for bits in (1, 2, 8):
        compare(lambda x, bits=bits: dorefa(x, k_bit=bits), spread(SHAPE), "round", bits=bits)
    for function in ACTIVATIONS:
        layer = keras.activations.get(function)
        for inputs in (spread(SHAPE), np.array([[-80.0, 80.0], [80.0, -80.0]], np.float32)):  # must stay finite
            compare(layer, inputs, "activation", function=function)


OTHER_SHAPES = [
    ((2, 3, 8), (6, 8)), ((2, 3, 8), (3, 16)), ((2, 3, 8), (12, 4)), ((2, 3, 5), (5, 6)), ((2, 3, 5), (6, 5)),
    ((2, 1, 12), (3, 8)), ((1, 2, 9), (18,)), ((4, 2, 24), (12, 16)),
]  # fmt: skip


def test_reshaping_keeps_signs():
    for (shape, other), flat in itertools.product(OTHER_SHAPES, (True, False)):
        builder = GraphBuilder(shape)
        builder.add("sign")
        if flat:
            builder.add("flatten")
        made = builder.add("reshape", shape=other)
        kernel = builder.signs((other[-1], 3))
        builder.add("dense", kernel=kernel)
        model = Model(builder.graph(), builder.tensors)
        expected = np.where(spread(shape) >= 0, 1, -1).reshape(-1, *other)
        found = inner_value(made, spread(shape), builder.graph(), builder.tensors)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(model(spread(shape)), expected @ builder.decoded[kernel.tensor])
        assert [model.values[name].kind for name in (made, model.graph.output)] == [BINARY, INTEGER]
