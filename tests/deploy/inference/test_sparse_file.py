"""Sparse files: the dense arrays come back with NumPy alone; what is damaged or lies about its size is refused."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.deploy.inference.container import SPARSE, compress_json, read_container, write_container
from hookline.deploy.inference.sparse_file import NETWORK, read_sparse, read_sparse_network, tensor_name
from hookline.deploy.sparse import store
from hookline.trainer.errors import UserError


def sparse_array(shape: tuple[int, ...], kept: float, distinct: int) -> np.ndarray:
    random = np.random.default_rng(0)
    book = random.normal(size=distinct).astype(np.float32)
    values = book[np.minimum(random.geometric(5 / (distinct + 20), shape) - 1, distinct - 1)]  # some come more often
    return np.where(random.random(shape) < kept, values, np.float32(0))


ROWS = np.random.default_rng(1).random((240, 1)) < 0.4
WEIGHTS = {
    "a/kernel": sparse_array((240, 160), 0.1, 20) * ROWS,  # gaps, a codebook; both under Huffman codes
    "a/bias": np.linspace(-1, 1, 30, dtype=np.float32),
    "b/kernel": sparse_array((50, 30), 0.6, 5000),  # a bitmap
    "c/gamma": np.ones(30, np.float32),
    "c/count": np.float32(3.0),
}


def write(path: Path, weights: dict[str, np.ndarray], *, huffman: bool = True) -> Path:
    stored = [store(name, np.asarray(values), huffman=huffman) for name, values in weights.items()]
    tensors = {tensor_name(i, part): array for i, each in enumerate(stored) for part, array in each.parts.items()}
    tensors[NETWORK] = compress_json({"class_name": "Any"})
    write_container(path, SPARSE, {"weights": [each.weight.as_json() for each in stored]}, tensors)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "model.sparse.safetensors", WEIGHTS)


def test_every_array_comes_back_bit_for_bit(file: Path):
    config, found = read_sparse_network(file)
    assert config == {"class_name": "Any"}
    assert list(found) == list(WEIGHTS)
    for name, values in WEIGHTS.items():
        assert found[name].dtype == np.float32
        assert found[name].shape == np.shape(values)
        assert found[name].tobytes() == values.tobytes()
        found[name][...] = 0  # arrays of their own, to be written to
    model, tensors = read_container(file, SPARSE)  # the forms that the other tests damage
    assert [each["positions"] for each in model["weights"]] == ["gaps", "all", "bitmap", "all", "all"]
    assert [each["values"] for each in model["weights"]] == ["codebook", "float32", "float32", "codebook", "float32"]
    assert {"0.gaps", "0.gaps_code", "0.indices", "0.indices_code", "0.codebook", "1.values", "2.bitmap"} <= {*tensors}


def change(field: str, value: Any, index: int = 0) -> Callable[[dict, dict], None]:
    def apply(model: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        model["weights"][index][field] = value

    return apply


def replace(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict, dict], None]:
    def apply(model: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = make(tensors[name].copy())

    return apply


def rename(name: str, to: str) -> Callable[[dict, dict], None]:
    def apply(model: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors[to] = tensors.pop(name)

    return apply


def with_item(array: np.ndarray, place: int, value: float) -> np.ndarray:
    array[place] = value
    return array


def bomb() -> np.ndarray:
    """Return a stream of 64 KB that would take 64 MiB."""
    return np.frombuffer(zlib.compress(b" " * 2**26), np.uint8)


DAMAGE = {
    "a shape of terabytes": (change("shape", [10**9, 1000]), "of memory"),
    "a negative shape": (change("shape", [-240, -160]), "no valid shape"),
    "a name that is none": (change("name", 3), "other fields"),
    "an unknown order": (change("order", "diagonal"), "order='diagonal', expected one of rows, columns"),
    "columns of a vector": (change("order", "columns", 1), "counts that do not fit"),
    "terabytes kept": (change("kept", 10**15), "counts that do not fit"),
    "fewer kept": (change("kept", 3), "expected 3"),
    "a bitmap with another count": (change("kept", 3, 2), "a bitmap has"),
    "negative kept": (change("kept", -1), "count that is not a whole number"),
    "terabytes of gaps": (change("gaps", 10**15), "counts that do not fit"),
    "more gaps": (change("gaps", 12_000), "a stream|lead to"),
    "gaps of many bits": (change("gap_bits", 60), "counts that do not fit"),
    "gap bits of a bitmap": (change("gap_bits", 3, 2), "other fields"),
    "other values": (change("values", "float32"), "no flat array of float32 'values'"),
    "other positions": (change("positions", "bitmap"), "other fields"),
    "a weight twice": (change("name", "a/kernel", 1), "one name"),
    "a further key": (lambda model, tensors: model.update(hook="os.system"), "more or less"),
    "facts that are not a mapping": (lambda model, tensors: model.update(about="a network"), "not a mapping"),
    "no network": (lambda model, tensors: tensors.pop(NETWORK), "more or less"),
    "a network that is not a mapping": (replace(NETWORK, lambda array: compress_json([1])), "not a mapping"),
    "a network that is cut": (replace(NETWORK, lambda array: array[:-3]), "does not end"),
    "a network of terabytes": (replace(NETWORK, lambda array: bomb()), "does not end"),
    "a network that is not a stream": (replace(NETWORK, lambda array: array[::-1].copy()), "cannot be expanded"),
    "a network that is not JSON": (
        replace(NETWORK, lambda array: np.frombuffer(zlib.compress(b"{"), np.uint8)),
        "cannot be read",
    ),
    "a network of numbers": (replace(NETWORK, lambda array: array.astype(np.float32)), "not a stream of bytes"),
    "no list of weights": (lambda model, tensors: model.update(weights={"0": model["weights"][0]}), "not a list"),
    "a stream that ends early": (replace("0.indices", lambda array: array[:-1]), "a stream"),
    "a stream that continues": (replace("0.gaps", lambda array: np.append(array, np.uint8(0))), "a stream"),
    "bits behind the last one": (replace("2.bitmap", lambda array: with_item(array, -1, array[-1] | 1)), "continues"),
    "a code that is none": (replace("0.indices_code", lambda array: with_item(array, 0, 0x11)), "Kraft"),
    "a code of more symbols": (replace("0.gaps_code", lambda array: np.full(128, 0x88, np.uint8)), "Kraft|more than"),
    "a codebook that is too short": (replace("0.codebook", lambda array: array[:-1]), "points behind"),
    "a codebook of too much": (replace("0.codebook", lambda array: np.ones(257, np.float32)), "1 to 256"),
    "a codebook with a zero": (replace("0.codebook", lambda array: with_item(array, 3, 0.0)), "stores a 0"),
    "a zero among the others": (replace("2.values", lambda array: with_item(array, 3, 0.0)), "stores a 0"),
    "values of another type": (replace("1.values", lambda array: array.view(np.uint32)), "no flat array of float32"),
    "values of another shape": (replace("1.values", lambda array: array.reshape(5, 6)), "no flat array of float32"),
    "an array that is missing": (rename("0.codebook", "0.book"), "no flat array of float32 'codebook'"),
    "an array too many": (rename("1.values", "4.bitmap"), "no flat array"),
}


def test_what_cannot_have_been_written_is_refused_without_the_memory(file: Path):
    content = file.read_bytes()
    for name, (damage, message) in DAMAGE.items():
        file.write_bytes(content)
        model, tensors = read_container(file, SPARSE)
        damage(model, tensors)
        write_container(file, SPARSE, model, tensors)  # with a digest that is right
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match=message) as refused:
                read_sparse(file)
            assert tracemalloc.get_traced_memory()[1] < 2**24, name
        finally:
            tracemalloc.stop()
        assert str(file) in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_small_file_may_claim_some_memory_but_not_all(tmp_path: Path):
    weight = {"name": "w", "order": "rows", "positions": "all", "values": "codebook"}
    path = tmp_path / "zeros.sparse.safetensors"
    for size, accepted in ((2**24, True), (2**24 + 1, False)):
        tensors = {"0.codebook": np.zeros(1, np.float32), NETWORK: compress_json({})}
        write_container(path, SPARSE, {"weights": [{**weight, "shape": [size], "kept": size}]}, tensors)
        if accepted:
            assert read_sparse(path)["w"].nbytes == 2**26
        else:
            with pytest.raises(UserError, match="of memory, more than"):
                read_sparse(path)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_streams_of_any_bytes_give_arrays_or_one_line(file: Path, data):
    model, tensors = read_container(file, SPARSE)
    name = data.draw(st.sampled_from(sorted(tensors)))
    raw = bytearray(tensors[name].tobytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    changed = np.frombuffer(bytes(raw), tensors[name].dtype).reshape(tensors[name].shape)
    damaged = file.with_name("damaged.sparse.safetensors")
    write_container(damaged, SPARSE, model, {**tensors, name: changed})
    try:
        found = read_sparse(damaged)
    except UserError:
        return
    assert {name: values.shape for name, values in found.items()} == {n: v.shape for n, v in WEIGHTS.items()}
