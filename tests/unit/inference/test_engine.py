from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.packed_graphs import GraphBuilder, random_cnn, random_mlp
from tests.support.packed_oracle import evaluate
from trainer.errors import UserError
from trainer.inference import patches
from trainer.inference.container import PACKED, write_container
from trainer.inference.engine import CHUNK, Model, find_backend, load_model
from trainer.inference.graph import graph_to_json
from trainer.inference.shapes import BINARY, INTEGER

MIB = 2**20


def images(shape: tuple[int, ...], batch: int, seed: int = 0) -> np.ndarray:
    """Return inputs; some of them are 0 and -0."""
    random = np.random.default_rng(seed)
    made = random.uniform(-1, 1, (batch, *shape)).astype(np.float32)
    return np.where(random.random(made.shape) < 0.1, random.choice(np.float32([0, -0.0]), made.shape), made)


def check(builder: GraphBuilder, batch: int = 3, kernels: str = "numpy") -> None:
    """Compare every value with the oracle: integers and signs exactly, floats closely."""
    graph = builder.graph()
    model = Model(graph, builder.tensors, find_backend(kernels))
    inputs = images(graph.input_shape, batch)
    outputs, kept = model.run(inputs, keep=list(model.values))
    expected = evaluate(graph, builder.tensors, inputs)
    for name, value in model.values.items():
        assert kept[name].dtype == {BINARY: np.int8, INTEGER: np.int32}.get(value.kind, np.float32)
        if value.kind in (BINARY, INTEGER):
            np.testing.assert_array_equal(kept[name], expected[name], err_msg=name)
        else:
            np.testing.assert_allclose(kept[name], expected[name], rtol=2e-5, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(outputs, expected[graph.output], rtol=2e-5, atol=2e-5)
    assert outputs.dtype == np.float32


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("builder", [random_mlp(), random_cnn(), random_mlp((3, 200, 9)), random_cnn((3, 5, 9))])
def test_whole_networks_give_what_the_oracle_gives(builder, kernels):
    if kernels == "numba":
        pytest.importorskip("numba")
    check(builder, kernels=kernels)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_binary_convolution_is_exact_whatever_its_window(data):
    draw = data.draw
    size = draw(st.tuples(st.integers(3, 7), st.integers(3, 7)))
    channels, filters = draw(st.integers(1, 20)), draw(st.integers(1, 9))
    window = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    strides, dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3))), (1, 1)
    if strides == (1, 1):
        dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.sampled_from(["same", "valid"]))
    if any((window[i] - 1) * dilation[i] + 1 > size[i] for i in (0, 1)):
        padding = "same"
    builder = GraphBuilder((*size, channels), draw(st.integers(0, 99)))
    builder.add("sign")
    builder.add(
        "conv2d",
        kernel=builder.signs((*window, channels, filters), scaled=draw(st.booleans())),
        bias=builder.floats((filters,)) if draw(st.booleans()) else None,
        strides=strides,
        dilation=dilation,
        padding=padding,
    )
    check(builder, batch=draw(st.integers(1, 3)))


@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("block", [1, 200, 1000])
@pytest.mark.parametrize("binary", [True, False])
def test_a_convolution_in_parts_is_the_same(binary, block, dilation, monkeypatch):
    monkeypatch.setattr(patches, "BLOCK", block)
    builder = GraphBuilder((7, 5, 3))
    if binary:
        builder.add("sign")
    builder.add("conv2d", kernel=builder.signs((3, 3, 3, 4)), padding="same", dilation=dilation)
    check(builder, batch=3)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_other_convolutions_are_close_whatever_their_window(data):
    draw = data.draw
    channels, filters = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    strides = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    builder = GraphBuilder((6, 5, channels), draw(st.integers(0, 99)))
    if draw(st.booleans()):
        builder.add("sign")
    op = draw(st.sampled_from(["conv2d", "depthwise_conv2d"]))
    shape = (3, 2, channels, filters)
    encoding = draw(st.sampled_from(["sign", "float32", "float16", "codebook"]))
    kernel = builder.signs(shape, scaled=True) if encoding == "sign" else None
    kernel = builder.codebook(shape, draw(st.integers(1, 8))) if encoding == "codebook" else kernel
    kernel = kernel or builder.floats(shape, encoding)
    units = filters * (channels if op == "depthwise_conv2d" else 1)
    bias = builder.floats((units,)) if draw(st.booleans()) else None
    padding = draw(st.sampled_from(["same", "valid"]))
    builder.add(op, kernel=kernel, bias=bias, strides=strides, padding=padding)
    check(builder, batch=2)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_pooling_is_right_on_floats_integers_and_signs(data):
    draw = data.draw
    channels = draw(st.integers(1, 11))
    builder = GraphBuilder((6, 5, channels), draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["float", "integer", "binary"]))
    if kind != "float":
        builder.add("sign")
    if kind == "integer":
        builder.add("conv2d", kernel=builder.signs((2, 2, channels, channels)), padding="same")
    if draw(st.booleans()):
        builder.add(draw(st.sampled_from(["global_max_pool2d", "global_average_pool2d"])))
    else:
        builder.add(
            draw(st.sampled_from(["max_pool2d", "average_pool2d"])),
            pool_size=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
            strides=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
            padding=draw(st.sampled_from(["same", "valid"])),
        )
    check(builder)


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_padding_is_not_pooled(kind, strides):
    builder = GraphBuilder((6, 5, 3))
    builder.add(f"{kind}_pool2d", pool_size=(3, 3), strides=strides, padding="same")
    check(builder)


@settings(max_examples=40, deadline=None)
@given(channels=st.integers(1, 20), then=st.sampled_from(["dense", "reshape", "concatenate", "add", "sign"]))
def test_flattened_signs_stay_the_same_signs(channels, then):
    builder = GraphBuilder((2, 3, channels))
    builder.add("sign")
    flat = builder.add("flatten")
    if then == "dense":
        builder.add("dense", kernel=builder.signs((6 * channels, 5)))
    elif then == "reshape":
        builder.add("reshape", shape=(3, channels, 2))
    elif then == "concatenate":
        builder.add("concatenate", inputs=(flat, flat), axis=-1)
        builder.add("dense", kernel=builder.signs((12 * channels, 3)))
    elif then == "add":
        builder.add("add", inputs=(flat, flat))
    else:
        builder.add("sign")
    check(builder)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_thresholds_are_kept_to_the_integer(data):
    width, channels = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 20))
    builder = GraphBuilder((width,), data.draw(st.integers(0, 99)))
    builder.add("sign")
    builder.add("dense", kernel=builder.signs((width, channels)))
    builder.thresholds(channels, spread=width + 1, descending=data.draw(st.booleans()))
    check(builder, batch=8)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_a_threshold_out_of_range_makes_a_channel_constant(dtype):
    ends = np.iinfo(dtype)
    builder = GraphBuilder((5,))
    builder.add("sign")
    builder.add("dense", kernel=builder.signs((5, 4)))
    limits = builder.tensor(np.array([ends.min, ends.max, ends.min, ends.max], dtype))
    last = builder.add("threshold", thresholds=limits, descending=builder.tensor(np.array([0b1100], np.uint8)))
    model = Model(builder.graph(), builder.tensors)
    np.testing.assert_array_equal(model.run(images((5,), 2), keep=[last])[1][last], [[1, -1, -1, 1]] * 2)


def test_the_rest_is_right():
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


@pytest.mark.parametrize("kind", ["float", "integer", "binary"])
def test_upsampling_and_joining_keep_the_kind(kind):
    builder = GraphBuilder((2, 3, 5))
    if kind != "float":
        builder.add("sign")
    if kind == "integer":
        builder.add("dense", kernel=builder.signs((5, 6)))
    small = builder.last
    large = builder.add("upsample2d", size=(2, 1))
    joined = builder.add("concatenate", inputs=(large, large), axis=-1)
    both = builder.add("concatenate", inputs=(joined, joined), axis=1)
    values = Model(builder.graph(), builder.tensors).values
    assert {values[name].kind for name in (small, large, joined, both)} == {kind}
    check(builder)


def test_the_file_gives_the_same_model(tmp_path):
    builder = random_cnn()
    graph, inputs = builder.graph(), images((18, 18, 1), 4)
    write_container(tmp_path / "a", PACKED, graph_to_json(graph), builder.tensors)
    model = load_model(tmp_path / "a")
    np.testing.assert_array_equal(model(inputs), Model(graph, builder.tensors)(inputs))
    assert model.graph == graph


def test_a_batch_larger_than_a_chunk_gives_what_its_examples_give():
    builder = random_mlp()
    model = Model(builder.graph(), builder.tensors)
    inputs = images((6, 5, 1), 2 * model._examples + 3)
    name = "value_4"
    outputs, kept = model.run(inputs, keep=[name, "image"])
    assert len(outputs) == len(inputs)
    np.testing.assert_array_equal(kept["image"], inputs)
    alone = model.run(inputs[:1], keep=["image", model.graph.output])
    assert not np.shares_memory(alone[1]["image"], inputs)
    assert not np.shares_memory(alone[1][model.graph.output], alone[0])
    some = [0, model._examples - 1, model._examples, len(inputs) - 1]
    alone = [model.run(inputs[row : row + 1], keep=[name]) for row in some]
    np.testing.assert_allclose(outputs[some], np.concatenate([each for each, _ in alone]), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(kept[name][some], np.concatenate([each[name] for _, each in alone]))


@pytest.mark.parametrize("builder", [random_mlp((1024, 1024, 512), (28, 28, 1)), random_cnn((32, 64, 64), 28)])
def test_memory_does_not_grow_with_the_batch(builder):
    model = Model(builder.graph(), builder.tensors)
    inputs = images(builder.shape, 2000)
    model(inputs[:1])
    peaks = []
    for count in (500, 2000):
        tracemalloc.start()
        outputs = model(inputs[:count])
        peaks.append((tracemalloc.get_traced_memory()[1] - 2 * outputs.nbytes) / MIB)
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0]
    assert peaks[1] < (CHUNK + 4 * MIB) / MIB


def test_a_model_serves_several_threads():
    builder = random_cnn()
    model = Model(builder.graph(), builder.tensors)
    inputs = [images((18, 18, 1), 5, seed) for seed in range(4)]
    expected = [model(each) for each in inputs]
    wrong = []

    def work(number: int) -> None:
        wrong.extend(1 for _ in range(20) if not np.array_equal(model(inputs[number]), expected[number]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_numbers_and_no_examples_are_taken_and_left_alone():
    builder = random_mlp()
    model = Model(builder.graph(), builder.tensors)
    inputs = np.arange(60).reshape(2, 6, 5, 1)
    np.testing.assert_array_equal(model(inputs), model(inputs.astype(np.float32)))
    turned = np.asfortranarray(images((6, 5, 1), 3))
    before = turned.copy()
    np.testing.assert_array_equal(model(turned), model(before))
    np.testing.assert_array_equal(turned, before)
    assert model(inputs[:0]).shape == (0, 10)
    cnn = random_cnn((3, 5, 9))
    assert Model(cnn.graph(), cnn.tensors)(np.zeros((0, 18, 18, 1))).shape == (0, 10)


@pytest.mark.parametrize("inputs", [np.zeros((2, 5, 6, 1)), np.zeros(30), np.float32(1), np.full((1, 6, 5, 1), "a")])
def test_other_inputs_are_refused_in_one_line(inputs):
    builder = random_mlp()
    with pytest.raises(UserError, match=r"Inputs are .* Expected numbers of shape \[batch, 6, 5, 1\]."):
        Model(builder.graph(), builder.tensors)(inputs)


def test_unknown_names_are_refused_with_a_suggestion(tmp_path):
    builder = random_mlp()
    with pytest.raises(UserError, match="Unknown value 'valu_1'. Did you mean 'value_1'?"):
        Model(builder.graph(), builder.tensors).run(images((6, 5, 1), 1), keep=["valu_1"])
    with pytest.raises(UserError, match="Unknown kernels 'nunpy'. Did you mean 'numpy'?"):
        load_model(tmp_path / "none", kernels="nunpy")


def test_a_file_with_another_graph_is_refused_with_its_name(tmp_path):
    write_container(tmp_path / "a", PACKED, {"name": "net"}, {})
    with pytest.raises(UserError, match="a holds no valid model: The model has other fields than"):
        load_model(tmp_path / "a")
