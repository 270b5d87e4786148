"""The contenders of `what=inference` predict with the same architecture, on one thread each."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.benchmarks.contender import TENSORFLOW, Settings
from scripts.benchmarks.inference import CONTENDERS, networks, others
from scripts.benchmarks.inference.networks import CNN, IMAGES, MLP, keras_network, packed_cnn, packed_mlp
from scripts.benchmarks.process import THREADS, Worker
from trainer.errors import UserError
from trainer.inference.engine import Model
from trainer.inference.shapes import BINARY

NEEDS = {"numba": "numba", "onnx": "tf2onnx", "litert": "ai_edge_litert"}


@pytest.fixture(autouse=True)
def few_units(monkeypatch) -> None:
    monkeypatch.setattr(networks, "UNITS", (24, 16, 8))
    monkeypatch.setattr(others, "CALIBRATION", 2)


@pytest.mark.parametrize(("name", "make"), [(MLP, packed_mlp), (CNN, packed_cnn)])
def test_the_packed_network_has_the_layers_of_the_one_in_keras(name: str, make) -> None:
    packed, model = make(), keras_network(name)
    graph = packed.graph(name)
    kernels = [op.fields["kernel"].shape for op in graph.ops if "kernel" in op.fields]
    expected = [tuple(layer.kernel.shape) for layer in model.layers if hasattr(layer, "kernel")]
    assert kernels == expected
    engine = Model(graph, packed.tensors)
    places = [engine.values[op.inputs[0]] for op in graph.ops if "kernel" in op.fields]
    assert [value.kind for value in places[1:]] == [BINARY] * (len(places) - 1)
    assert [value.shape for value in places] == [
        tuple(layer.input.shape[1:]) for layer in model.layers if hasattr(layer, "kernel")
    ]
    assert engine(networks.images(3)).shape == (3, 10) == (3, *model.outputs[0].shape[1:])


def test_the_cnn_of_the_benchmark_takes_13_kib() -> None:
    packed = packed_cnn()
    assert 11 * 1024 < sum(array.nbytes for array in packed.tensors.values()) < 13.2 * 1024


@pytest.mark.parametrize("contender", [each for each in CONTENDERS if each.case == CNN], ids=lambda each: each.name)
def test_every_contender_predicts(contender) -> None:
    for part, module in NEEDS.items():
        if part in contender.name:
            pytest.importorskip(module)
    work = contender.prepare(Settings(batch_size=2))
    work(2)
    low, high = (5_000, 20_000) if "hookline" in contender.name else (90_000, 500_000)
    assert low < work.facts["bytes"] < high


def test_there_is_one_baseline_a_case_and_only_the_others_import_tensorflow() -> None:
    for case in (MLP, CNN):
        own = [each for each in CONTENDERS if each.case == case]
        assert [each.name for each in own if each.baseline] == ["tensorflow float32"]
        assert {each.imports for each in own if "hookline" in each.name} == {""}
        assert {each.imports for each in own if "hookline" not in each.name} == {TENSORFLOW}
        assert {(each.threads, each.batch_size) for each in own} == {(1, 1)}


def test_what_is_not_installed_is_one_line() -> None:
    with pytest.raises(UserError, match="nothing_like_it is not installed"):
        others._import("nothing_like_it.interpreter")


def test_a_worker_of_one_thread_says_so_to_every_library(tmp_path) -> None:
    one = Worker(CONTENDERS[0], tmp_path, Settings(threads=1), 1.0)
    assert one._threads() == dict.fromkeys(THREADS, "1")
    assert Worker(CONTENDERS[0], tmp_path, Settings(), 1.0)._threads() == {}


def test_inputs_are_the_same_for_all() -> None:
    found = networks.images(4)
    assert (found.dtype, found.shape) == (np.float32, (4, *IMAGES))
    assert abs(found).max() <= 1
    np.testing.assert_array_equal(found, networks.images(4))
