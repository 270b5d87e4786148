"""Sparse files of runs and models: they restore weights and predictions, or are refused in one clear line."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hookline.deploy.formats import FORMATS, Contents, ExportOptions
from hookline.deploy.inference.container import (
    SPARSE,
    compress_json,
    container_sizes,
    expand_json,
    read_container,
    write_container,
)
from hookline.deploy.inference.sparse_file import NETWORK, from_json, read_sparse_network, to_dense
from hookline.deploy.plain_model import finished_model
from hookline.deploy.sparse import Stored, load_sparse, share_weights, store, write_model, write_sparse
from hookline.trainer.errors import UserError
from hookline.trainer.network import name_variables
from tests.support.batches import assert_same_bits
from tests.support.finished import Halve, finished_run
from tests.support.toy import FEATURES, toy_arrays

FILE = "model.sparse.safetensors"


def pruned_model(*, kept: float = 0.2, seed: int = 0) -> keras.Model:
    inputs = keras.Input((8, 8, 1), name="image")
    outputs = keras.layers.Conv2D(6, 3, name="conv")(inputs)
    outputs = keras.layers.BatchNormalization(name="norm")(outputs)
    outputs = keras.layers.Dropout(0.5)(keras.layers.ReLU()(outputs))
    outputs = keras.layers.Dense(120, name="dense")(keras.layers.Flatten()(outputs))
    model = keras.Model(inputs, keras.layers.Dense(10, name="logits")(outputs), name="small")
    random = np.random.default_rng(seed)
    for variable in model.weights:
        values = random.normal(size=variable.shape).astype(np.float32)
        zeros = (random.random(variable.shape) >= kept) & ("kernel" in variable.path)
        variable.assign(np.where(zeros, np.float32(0), values))
    dense = model.get_layer("dense").kernel
    read = random.random((dense.shape[0], 1)) < 0.4 + kept  # some inputs are not read
    dense.assign(np.where(read, dense.numpy(), 0))
    return model


def values_of(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in name_variables(model.weights).items()}


def write(model: keras.Model, path: Path, **options: Any) -> Contents:
    return write_model(model, path, ExportOptions(**options), {})


def read(path: Path) -> dict[str, np.ndarray]:
    return read_sparse_network(path)[1]


def test_weights_of_pruned_run_round_trip_bit_for_bit(tmp_path: Path):
    run = finished_run(Halve("halve"))
    run.data = SimpleNamespace(input_shape=(FEATURES,), preparation=None)
    kernel = run.trainer.networks["model"].model.get_layer("hidden").kernel
    kernel.assign(np.where(np.abs(kernel) < 0.3, 0.0, kernel))
    before = values_of(run.trainer.networks["model"].model)
    contents = write_sparse(run, "model", tmp_path / FILE, ExportOptions())
    expected = finished_model(run, "model")
    own = values_of(expected)
    assert_same_bits(read(tmp_path / FILE), own)
    inputs = toy_arrays()[0][:16]
    np.testing.assert_array_equal(load_sparse(tmp_path / FILE)(inputs), expected(inputs, training=False).numpy())
    assert not contents.lossy
    contents = write_sparse(run, "model", tmp_path / FILE, ExportOptions(codebook=3))
    assert contents.lossy
    assert f"{run.held_out['test'].run(run.step)['metric/accuracy']:.4f}" in contents.notes[-1]
    for name, values in read(tmp_path / FILE).items():
        np.testing.assert_array_equal(values == 0, own[name] == 0)
        if name.endswith("kernel"):
            assert len(np.unique(values[values != 0])) <= 8
            assert 0 < np.abs(values - own[name]).max() < 0.2
        else:
            assert values.tobytes() == own[name].tobytes()
    assert_same_bits(values_of(run.trainer.networks["model"].model), before)


def test_each_compression_stage_is_no_larger_than_previous_one(tmp_path: Path):
    contents = write(pruned_model(), tmp_path / FILE, codebook=4, codebook_conv=4)
    header, data = sizes(tmp_path / FILE)
    assert header + data == (tmp_path / FILE).stat().st_size
    rows = {row[0]: dict(zip(contents.columns, row, strict=True)) for row in contents.rows}
    stages = ("dense", "sparse", "shared", "huffman")
    numbers = {name: [int(row[stage].replace(",", "")) for stage in stages] for name, row in rows.items()}
    assert all(each == sorted(each, reverse=True) for each in numbers.values())
    total = numbers.pop("total")
    assert total == [sum(each[stage] for each in numbers.values()) for stage in range(4)]
    assert total[0] == 4 * sum(np.prod(variable.shape) for variable in pruned_model().weights)
    assert total[3] == data
    kernel = values_of(pruned_model())["dense/kernel"]
    found = [rows["dense/kernel"][column] for column in ("entries", "kept", "bits")]
    assert found == [f"{kernel.size:,}", f"{np.count_nonzero(kernel):,}", "4"]
    assert rows["norm/gamma"]["bits"] == "32"
    assert f"data {data:,} bytes, header {header:,} bytes" in contents.notes[0]
    write(pruned_model(), tmp_path / FILE, codebook=2)
    shared = read(tmp_path / FILE)
    assert len(np.unique(shared["dense/kernel"])) == 1 + 4
    assert len(np.unique(shared["conv/kernel"])) > 1 + 4  # 8 bits by default
    write(pruned_model(), tmp_path / FILE, huffman=False)
    assert sizes(tmp_path / FILE)[1] == total[1]
    write(pruned_model(), tmp_path / FILE, codebook=4, codebook_conv=4, huffman=False)
    assert data < sizes(tmp_path / FILE)[1] == total[2]
    assert not any(name.endswith("_code") for name in read_container(tmp_path / FILE, SPARSE)[1])


@pytest.mark.full
def test_models_with_many_layer_types_round_trip_with_metadata(tmp_path: Path):
    layers, about = keras.layers, {"card": {"classes": ["a", "b"]}}
    inputs = keras.Input((12, 12, 2))
    hidden = layers.SeparableConv2D(4, 3, padding="same")(layers.Rescaling(2.0, -1.0)(inputs))
    hidden = layers.DepthwiseConv2D(3)(layers.RandomFlip(seed=1)(hidden))
    hidden = layers.GRU(5)(layers.Reshape((10, 40))(layers.Add()([hidden, layers.Conv2D(4, 1)(hidden)])))
    shared = layers.Dense(5, activation="relu", kernel_regularizer="l2")
    hidden = shared(shared(layers.LayerNormalization()(hidden)))
    many = keras.Model(inputs, layers.Dense(3, activation="softmax")(hidden))
    norm = layers.Normalization()
    norm.adapt(np.arange(12, dtype=np.float32).reshape(4, 3))
    for model in (many, keras.Sequential([keras.Input((3,)), norm, layers.Dense(2)])):
        write_model(model, tmp_path / FILE, ExportOptions(), about)
        assert read_container(tmp_path / FILE, SPARSE)[0]["about"] == about
        found = load_sparse(tmp_path / FILE).model
        np.testing.assert_equal(found.get_weights(), model.get_weights())
        given = np.random.default_rng(0).normal(size=(4, *model.input_shape[1:])).astype(np.float32)
        np.testing.assert_array_equal(found(given).numpy(), model(given).numpy())


def test_nan_weights_round_trip_but_codebook_refuses_nan_and_float64(tmp_path: Path):
    model = pruned_model()
    kernel = model.get_layer("dense").kernel
    kernel.assign(np.where(kernel.numpy() > 1, np.float32(np.nan), kernel.numpy()))
    write(model, tmp_path / FILE)
    assert_same_bits(read(tmp_path / FILE), values_of(model))
    double = keras.Sequential([keras.Input((3,), dtype="float64"), keras.layers.Dense(2, dtype="float64")])
    for refused, words in ((model, "dense/kernel holds NaN or infinity"), (double, "Expected float32 for format=sp")):
        with pytest.raises(UserError, match=words):
            write(refused, tmp_path / FILE, codebook=5)


def sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of the description, including the network's config, and the bytes of the weights."""
    header, data = container_sizes(path)
    network = read_container(path, SPARSE)[1][NETWORK].nbytes
    return header + network, data - network


def layer_of(config: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in config["config"]["layers"] if each["config"]["name"] == name)


def rewritten(path: Path, change: Any) -> None:
    model, tensors = read_container(path, SPARSE)
    changed = {"network": expand_json(tensors[NETWORK])}
    change(changed)
    write_container(path, SPARSE, model, {**tensors, NETWORK: compress_json(changed["network"])})


def last_layer(**values: Any) -> Any:
    return lambda model: layer_of(model["network"], "logits")["config"].update(values)


def other_class(module: str, name: str) -> Any:
    return lambda model: layer_of(model["network"], "dense").update(module=module, class_name=name)


UNFIT, NONE = "weights that do not fit", "cannot be loaded as format=sparse"
DAMAGE = {
    "a layer of terabytes": (last_layer(units=10**12), UNFIT),
    "units that are negative": (last_layer(units=-3), NONE),
    "a layer of another package": (other_class("os", "system"), "refers to system"),
    "a layer that looks like one of Keras": (other_class("keras_hub.models", "Dense"), "refers to Dense"),
    "a layer that runs code": (other_class("keras.layers", "Lambda"), NONE),
    "no layers": (lambda model: model["network"]["config"].pop("layers"), NONE),
    "no model": (lambda model: model.update(network={"class_name": 3}), NONE),
    "a layer for a model": (lambda model: model.update(network=layer_of(model["network"], "dense")), f"{NONE}|{UNFIT}"),
}


@pytest.mark.full
def test_damaged_network_config_is_refused_in_one_line(tmp_path: Path):
    write(pruned_model(), tmp_path / FILE)
    content = (tmp_path / FILE).read_bytes()
    for change, message in DAMAGE.values():
        (tmp_path / FILE).write_bytes(content)
        rewritten(tmp_path / FILE, change)
        with pytest.raises(UserError, match=message) as refused:
            FORMATS["sparse"].load(tmp_path / FILE)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 500
        with keras.StatelessScope():
            keras.layers.Dense(3).build((None, 2))  # leaving the scope initializes every deferred variable


SPECIAL = [-0.0, 1e-45, -1e-42, np.nan, np.inf, -np.inf, np.float32(3.4e38), 1.0]
floats = st.sampled_from(SPECIAL) | st.floats(width=32)


def assert_comes_back(stored: Stored, values: np.ndarray) -> None:
    found = to_dense(from_json(stored.weight.as_json()), stored.parts)
    assert found.dtype == np.float32
    assert found.shape == values.shape
    assert found.tobytes() == values.tobytes()


@given(
    arrays(
        np.float32, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6), elements=floats, fill=st.just(0.0)
    ),
    st.booleans(),
    st.booleans(),
)
def test_stored_array_round_trips_bit_for_bit(values: np.ndarray, huffman: bool, codebook: bool):
    assert_comes_back(store("w", values, huffman=huffman, codebook=codebook), values)


kernels = arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(1, 20)), elements=st.floats(-4, 4, width=32))


@given(kernels, st.integers(1, 8))
def test_shared_weights_keep_zeros_and_use_nearest_centroid(values: np.ndarray, bits: int):
    shared = share_weights(values, bits)
    assert shared.dtype == np.float32
    np.testing.assert_array_equal(shared == 0, values == 0)
    book = np.unique(shared[shared != 0]).astype(np.float64)
    assert len(book) <= 2**bits
    if len(np.unique(values[values != 0])) > 2**bits:
        nearest = np.abs(values[..., None].astype(np.float64) - book).min(axis=-1, initial=np.inf)
        distance = np.abs(values.astype(np.float64) - shared)
        np.testing.assert_allclose(distance[values != 0], nearest[values != 0], atol=1e-6)


def test_centroids_are_the_means_of_their_weights():
    for values, bits, expected in (
        ([-3.0, -2.9, -1, -1, -1, -0.4, 0, 2, 2.5], 2, [-2.95, -2.95, -0.85, -0.85, -0.85, -0.85, 0, 2.25, 2.25]),
        ([-0.0, 0.1, 0.2, 0.3, 0.4], 1, [0.0, 0.15, 0.15, 0.35, 0.35]),
    ):
        shared = share_weights(np.float32(values), bits)
        np.testing.assert_allclose(shared, np.float32(expected), rtol=1e-6)
        assert not np.signbit(shared[shared == 0]).any()  # even where a 0 was negative
    around_zero = np.float32([-0.25, 0.25, -10.0, 10.0, 10.5, 11.0, -10.5, -11.0])  # a centroid 0 would mean "pruned"
    assert (share_weights(np.repeat(around_zero, 3), 2) != 0).all()
