"""Sparse files of runs and of models: the run's weights and its predictions, or one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from scripts.export import main
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.export.options import ExportOptions
from trainer.export.plain_model import finished_model
from trainer.export.sparse import codebook_bits, load_sparse, load_sparse_model, write_model, write_sparse
from trainer.inference.compressed_json import compress_json, expand_json
from trainer.inference.container import SPARSE, container_sizes, read_container, write_container
from trainer.inference.sparse_file import NETWORK, read_sparse
from trainer.network import name_variables
from trainer.run.finished import FinishedRun, read_config, restore

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
        variable.assign(
            np.where(random.random(variable.shape) < kept, values, 0) if "kernel" in variable.path else values
        )
    dense = model.get_layer("dense").kernel
    dense.assign(
        np.where(random.random((dense.shape[0], 1)) < 0.4 + kept, dense.numpy(), 0)
    )  # some inputs are not read
    return model


def values_of(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in name_variables(model.weights).items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].tobytes() == values.tobytes(), name


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """Return the directory of a small finished run that pruned its weights."""
    directory = tmp_path_factory.mktemp("sparse") / "run"
    run_small("frozen_mask", "model.units=[48,32]", run_dir=directory)
    return directory


@pytest.fixture(scope="module")
def run(directory: Path) -> FinishedRun:
    return restore(str(directory), read_config(str(directory)))


def state_of(run: FinishedRun) -> dict[str, bytes]:
    network = run.parts.trainer.networks["model"]
    return {name: variable.numpy().tobytes() for name, variable in network.variables.items()}


def test_the_weights_of_a_run_come_back_bit_for_bit_and_the_run_stays_as_it_was(run: FinishedRun, tmp_path: Path):
    before = state_of(run)
    contents = write_sparse(run, "model", tmp_path / FILE, ExportOptions())
    assert state_of(run) == before
    expected = finished_model(run, "model")
    assert_same(read_sparse(tmp_path / FILE), values_of(expected))
    inputs = np.random.default_rng(0).uniform(size=(16, 8, 8, 1)).astype(np.float32)
    np.testing.assert_array_equal(load_sparse(tmp_path / FILE)(inputs), expected(inputs, training=False).numpy())
    assert not contents.lossy
    assert len(contents.notes) == 1


@pytest.mark.parametrize(
    ("values", "bits"), [([-1, 1], 1), ([-0.5, 0, 0.5], 2), ([0, *(s * 2.0**-e for e in range(8) for s in (-1, 1))], 5)]
)
def test_kernels_of_few_values_take_their_bits_without_being_asked(values: list[float], bits: int, tmp_path: Path):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(50, use_bias=False)])
    model.set_weights([np.random.default_rng(0).choice(np.float32(values), (64, 50))])
    contents = write_model(model, tmp_path / FILE, bits=None, huffman=False)
    assert_same(read_sparse(tmp_path / FILE), values_of(model))
    assert not contents.lossy
    assert sizes(tmp_path / FILE)[1] <= bits * 400 + 4 * len(values)


def test_shared_weights_are_the_runs_rounded_and_what_it_came_to_before_is_told(run: FinishedRun, tmp_path: Path):
    before = state_of(run)
    contents = write_sparse(run, "model", tmp_path / FILE, ExportOptions(codebook=3))
    assert state_of(run) == before
    assert contents.lossy
    accuracy = run.parts.test.run(run.step)["metric/accuracy"]
    assert contents.notes[-1] == f"test split, weights as the run has them: accuracy {accuracy:.4f}"
    own = values_of(finished_model(run, "model"))
    for name, values in read_sparse(tmp_path / FILE).items():
        np.testing.assert_array_equal(values == 0, own[name] == 0)
        if name.endswith("kernel"):
            assert len(np.unique(values[values != 0])) <= 8
            assert 0 < np.abs(values - own[name]).max() < 0.2
        else:
            assert values.tobytes() == own[name].tobytes()


@pytest.mark.parametrize("huffman", [True, False])
def test_huffman_codes_can_be_done_without(run: FinishedRun, tmp_path: Path, monkeypatch, huffman: bool):
    monkeypatch.setattr("trainer.export.plain_model._with_shipped", lambda *given, full: pruned_model())
    write_sparse(run, "model", tmp_path / FILE, ExportOptions(codebook=4, huffman=huffman))
    assert huffman == any(name.endswith("_code") for name in read_container(tmp_path / FILE, SPARSE)[1])


def test_convolutions_have_more_shared_values_than_dense_kernels_as_in_the_paper(tmp_path: Path):
    model = pruned_model(kept=1.0)
    for options, dense, conv in (
        (ExportOptions(codebook=2), 4, (54, 54)),
        (ExportOptions(codebook=2, codebook_conv=3), 4, (5, 8)),
        (ExportOptions(codebook=4, codebook_conv=1), 16, (2, 2)),
    ):
        contents = write_model(model, tmp_path / FILE, bits=codebook_bits(options), huffman=True)
        found = read_sparse(tmp_path / FILE)
        assert len(np.unique(found["dense/kernel"])) == dense
        assert conv[0] <= len(np.unique(found["conv/kernel"])) <= conv[1]
        assert contents.lossy


def test_each_stage_takes_less_than_the_one_before_and_the_sums_are_those_of_the_file(tmp_path: Path):
    contents = write_model(pruned_model(), tmp_path / FILE, bits=(4, 4), huffman=True)
    header, data = sizes(tmp_path / FILE)
    assert header + data == (tmp_path / FILE).stat().st_size
    heads = (
        "weight",
        "entries",
        "kept",
        "bits",
        "positions",
        "dense",
        "sparse",
        "shared",
        "huffman",
        "bits/kept",
        "times",
    )
    assert contents.columns == heads
    rows = {row[0]: dict(zip(contents.columns, row, strict=True)) for row in contents.rows}
    numbers = {name: [int(row[stage].replace(",", "")) for stage in heads[5:9]] for name, row in rows.items()}
    for dense, sparse, shared, coded in numbers.values():
        assert dense >= sparse >= shared >= coded
    total = numbers.pop("total")
    assert total == [sum(each[stage] for each in numbers.values()) for stage in range(4)]
    assert total[0] == 4 * sum(np.prod(variable.shape) for variable in pruned_model().weights)
    assert total[3] == data
    kernel = values_of(pruned_model())["dense/kernel"]
    assert rows["dense/kernel"]["entries"] == f"{kernel.size:,}"
    assert rows["dense/kernel"]["kept"] == f"{np.count_nonzero(kernel):,}"
    assert rows["dense/kernel"]["bits"] == "4"
    assert rows["norm/gamma"]["bits"] == "32"
    assert f"data {data:,} bytes, header {header:,} bytes" in contents.notes[0]
    write_model(pruned_model(), tmp_path / FILE, bits=None, huffman=False)
    assert sizes(tmp_path / FILE)[1] == total[1]
    write_model(pruned_model(), tmp_path / FILE, bits=(4, 4), huffman=False)
    assert data < sizes(tmp_path / FILE)[1] == total[2]


def layers_of_many_kinds() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((12, 12, 2))
    hidden = layers.Rescaling(2.0, -1.0)(inputs)
    hidden = layers.SeparableConv2D(4, 3, padding="same")(hidden)
    hidden = layers.DepthwiseConv2D(3)(layers.RandomFlip(seed=1)(hidden))
    hidden = layers.Add()([hidden, layers.Conv2D(4, 1)(hidden)])
    hidden = layers.GRU(5)(layers.Reshape((10, 40))(hidden))
    hidden = layers.LayerNormalization()(hidden)
    shared = layers.Dense(5, activation="relu", kernel_regularizer="l2")
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(shared(shared(hidden))))


@pytest.mark.parametrize(
    "make", [layers_of_many_kinds, lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])]
)
def test_models_of_many_layers_come_back(make, tmp_path: Path):
    model = make()
    write_model(model, tmp_path / FILE, bits=None, huffman=True)
    found = load_sparse_model(tmp_path / FILE)
    for mine, own in zip(found.weights, model.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), own.numpy())
    inputs = np.random.default_rng(0).normal(size=(4, *model.input_shape[1:])).astype(np.float32)
    np.testing.assert_array_equal(found(inputs).numpy(), model(inputs).numpy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ExportOptions(codebook=0), "Invalid codebook: 0. Expected 1 to 8 bits"),
        (ExportOptions(codebook=9), "Invalid codebook: 9. Expected 1 to 8 bits"),
        (ExportOptions(codebook=5, codebook_conv=-1), "Invalid codebook_conv: -1. Expected 1 to 8 bits"),
        (ExportOptions(codebook_conv=5), "codebook_conv=5 received without codebook"),
    ],
)
def test_bits_that_no_codebook_has_are_refused(options: ExportOptions, message: str):
    with pytest.raises(UserError, match=message):
        codebook_bits(options)


def test_no_codebook_is_the_default_and_convolutions_have_eight_bits():
    assert codebook_bits(ExportOptions()) is None
    assert codebook_bits(ExportOptions(codebook=5)) == (5, 8)


def test_weights_that_are_no_numbers_are_kept_but_not_shared(tmp_path: Path):
    model = pruned_model()
    kernel = model.get_layer("dense").kernel
    kernel.assign(np.where(kernel.numpy() > 1, np.float32(np.nan), kernel.numpy()))
    write_model(model, tmp_path / FILE, bits=None, huffman=True)
    assert_same(read_sparse(tmp_path / FILE), values_of(model))
    with pytest.raises(UserError, match="dense/kernel holds NaN or infinity"):
        write_model(model, tmp_path / FILE, bits=(5, 8), huffman=True)


def test_weights_of_another_type_are_refused(tmp_path: Path):
    model = keras.Sequential([keras.Input((3,), dtype="float64"), keras.layers.Dense(2, dtype="float64")])
    with pytest.raises(UserError, match="float64. Expected float32 for format=sparse, or format=keras"):
        write_model(model, tmp_path / FILE, bits=None, huffman=True)
    assert not list(tmp_path.iterdir())


def test_a_network_of_two_inputs_is_refused(run: FinishedRun, tmp_path: Path, monkeypatch):
    first, second = keras.Input((3,)), keras.Input((3,))
    model = keras.Model([first, second], keras.layers.Add()([first, second]))
    monkeypatch.setattr("trainer.export.plain_model._with_shipped", lambda *given, full: model)
    with pytest.raises(UserError, match="2 inputs and 1 outputs"):
        write_sparse(run, "model", tmp_path / FILE, ExportOptions())


def sizes(path: Path) -> tuple[int, int]:
    """Return the bytes that say what the weights are, the network's config among them, and those of the weights."""
    header, data = container_sizes(path)
    network = read_container(path, SPARSE)[1][NETWORK].nbytes
    return header + network, data - network


def layer_of(config: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in config["config"]["layers"] if each["config"]["name"] == name)


def rewritten(path: Path, change: Any) -> None:
    model, tensors = read_container(path, SPARSE)
    changed = {"network": expand_json(tensors[NETWORK], NETWORK)}
    change(changed)
    write_container(path, SPARSE, model, {**tensors, NETWORK: compress_json(changed["network"])})


def last_layer(**values: Any) -> Any:
    return lambda model: layer_of(model["network"], "logits")["config"].update(values)


def other_class(module: str, name: str) -> Any:
    return lambda model: layer_of(model["network"], "dense").update(module=module, class_name=name)


DAMAGE = {
    "a layer of terabytes": (last_layer(units=10**12), "weights that do not fit"),
    "another shape": (last_layer(units=11), "weights that do not fit"),
    "fewer weights": (last_layer(use_bias=False), "weights that do not fit"),
    "no number of units": (last_layer(units="many"), "no network that Keras can build"),
    "units that are negative": (last_layer(units=-3), "no network that Keras can build"),
    "an unknown layer": (other_class("keras.layers", "Denser"), "no network that Keras can build"),
    "a layer of another package": (other_class("os", "system"), "asks for system"),
    "a layer that looks like one of Keras": (other_class("keras_hub.models", "Dense"), "asks for Dense"),
    "a layer that runs code": (other_class("keras.layers", "Lambda"), "no network that Keras can build"),
    "no layers": (lambda model: model["network"]["config"].pop("layers"), "no network that Keras can build"),
    "no model": (lambda model: model.update(network={"class_name": 3}), "no network that Keras can build"),
    "no config": (lambda model: model.update(network={}), "no network that Keras can build"),
    "a layer for a model": (
        lambda model: model.update(network=layer_of(model["network"], "dense")),
        "no network that Keras can build|weights that do not fit",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_no_network_of_keras_with_these_weights_is_refused_in_one_line(name: str, tmp_path: Path):
    write_model(pruned_model(), tmp_path / FILE, bits=None, huffman=True)
    change, message = DAMAGE[name]
    rewritten(tmp_path / FILE, change)
    with pytest.raises(UserError, match=message) as refused:
        load_sparse(tmp_path / FILE)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_models_that_are_built_afterwards_take_no_memory_of_a_refused_one(tmp_path: Path):
    write_model(pruned_model(), tmp_path / FILE, bits=None, huffman=True)
    rewritten(tmp_path / FILE, last_layer(units=10**12))
    with pytest.raises(UserError):
        load_sparse(tmp_path / FILE)
    with keras.StatelessScope():
        keras.layers.Dense(3).build((None, 2))  # at its end the scope makes every variable that waits for its value


def test_facts_about_the_network_stand_in_the_file(tmp_path: Path):
    about = {"card": {"classes": ["a", "b"]}}
    write_model(pruned_model(), tmp_path / FILE, bits=None, huffman=True, about=about)
    assert read_container(tmp_path / FILE, SPARSE)[0]["about"] == about
    assert_same(read_sparse(tmp_path / FILE), values_of(pruned_model()))
    assert json.dumps(load_sparse_model(tmp_path / FILE).get_config())


@pytest.fixture
def command(run: FinishedRun, directory: Path, tmp_path: Path, monkeypatch) -> Callable[..., int]:
    """Return the export command for the run, which is not built once more."""
    monkeypatch.setattr("scripts.export.restore", lambda directory, config, checkpoint: run)
    return lambda *options: main([f"run={directory}", f"output={tmp_path / FILE}", *options])


def test_the_command_writes_the_file_and_prints_its_stages(command, directory: Path, tmp_path: Path, capsys):
    assert command("format=sparse") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["weight", "entries", "kept"]
    assert lines[1].split()[0] == "dense_1/kernel"
    accuracy = json.loads((directory / "summary.json").read_text())["test"]["metric/accuracy"]
    assert any(line.startswith("test split") and line.endswith(f"accuracy {accuracy:.4f}") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_shared_values_that_lose_too_much_are_refused_and_nothing_is_left(command, tmp_path: Path, capsys):
    assert command("format=sparse", "codebook=1", "tolerance=0") == 2
    found = capsys.readouterr()
    assert "Error: The sparse file has metric/accuracy=" in found.err + found.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["format=sparse", "codebook=9"], "Invalid codebook: 9. Expected 1 to 8 bits"),
        (["format=sparse", "codebook=2.5"], "Invalid codebook: 2.5"),
        (["format=keras", "codebook=5"], "Expected format=sparse"),
    ],
)
def test_options_of_the_command_that_make_no_file_are_refused(command, options, message, tmp_path: Path, capsys):
    assert command(*options) == 2
    found = capsys.readouterr()
    assert message in found.err + found.out
    assert not list(tmp_path.iterdir())
