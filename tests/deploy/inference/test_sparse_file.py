"""Sparse files: codes and arrays are read with NumPy only; damaged files and false sizes are refused."""

import heapq
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
from hookline.deploy.inference.sparse_file import (
    BLOCK,
    MAX_LENGTH,
    NETWORK,
    canonical_codes,
    code_lengths,
    decode,
    encode,
    from_gaps,
    read_lengths,
    read_sparse_network,
    to_gaps,
    write_lengths,
)
from hookline.deploy.sparse import store
from hookline.trainer.errors import UserError
from tests.support.refusals import assert_refused, refusal


def sparse_array(shape: tuple[int, ...], kept: float, distinct: int) -> np.ndarray:
    random = np.random.default_rng(0)
    book = random.normal(size=distinct).astype(np.float32)
    values = book[np.minimum(random.geometric(5 / (distinct + 20), shape) - 1, distinct - 1)]  # some occur more often
    return np.where(random.random(shape) < kept, values, np.float32(0))


ROWS = np.random.default_rng(1).random((240, 1)) < 0.4
WEIGHTS = {
    "a/kernel": sparse_array((240, 160), 0.1, 20) * ROWS,  # gaps and a codebook, both Huffman-coded
    "a/bias": np.linspace(-1, 1, 30, dtype=np.float32),
    "b/kernel": sparse_array((50, 30), 0.6, 5000),  # a bitmap
    "c/gamma": np.ones(30, np.float32),
    "c/count": np.float32(3.0),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.sparse.safetensors"
    stored = [store(name, np.asarray(values), huffman=True) for name, values in WEIGHTS.items()]
    tensors = {f"{i}.{part}": array for i, each in enumerate(stored) for part, array in each.parts.items()}
    tensors[NETWORK] = compress_json({"class_name": "Any"})
    write_container(path, SPARSE, {"weights": [each.weight.as_json() for each in stored]}, tensors)
    return path


def test_arrays_round_trip_bit_for_bit(file: Path):
    config, found = read_sparse_network(file)
    assert config == {"class_name": "Any"}
    assert list(found) == list(WEIGHTS)
    for name, values in WEIGHTS.items():
        assert found[name].dtype == np.float32
        assert found[name].shape == np.shape(values)
        assert found[name].tobytes() == values.tobytes()
        found[name][...] = 0  # they are writable copies
    model, tensors = read_container(file, SPARSE)  # the encodings that the other tests damage
    assert [each["positions"] for each in model["weights"]] == ["gaps", "all", "bitmap", "all", "all"]
    assert [each["values"] for each in model["weights"]] == ["codebook", "float32", "float32", "codebook", "float32"]
    assert {"0.gaps", "0.gaps_code", "0.indices", "0.indices_code", "0.codebook", "1.values", "2.bitmap"} <= {*tensors}


Damage = Callable[[dict[str, Any], dict[str, np.ndarray]], Any]


def change(field: str, value: Any, index: int = 0) -> Damage:
    return lambda model, tensors: model["weights"][index].update({field: value})


def replace(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Damage:
    return lambda model, tensors: tensors.update({name: make(tensors[name].copy())})


def rename(name: str, to: str) -> Damage:
    return lambda model, tensors: tensors.update({to: tensors.pop(name)})


def bomb() -> np.ndarray:
    """Return a stream of 64 KB that expands to 64 MiB."""
    return np.frombuffer(zlib.compress(b" " * 2**26), np.uint8)


DAMAGE = {
    "a shape of terabytes": (change("shape", [10**9, 1000]), "of memory"),
    "a negative shape": (change("shape", [-240, -160]), "not a valid"),
    "terabytes kept": (change("kept", 10**15), "counts that do not fit"),
    "fewer kept": (change("kept", 3), "expected 3"),
    "a bitmap with another count": (change("kept", 3, 2), "a bitmap has"),
    "negative kept": (change("kept", -1), "counts that do not fit"),
    "terabytes of gaps": (change("gaps", 10**15), "counts that do not fit"),
    "wide gaps": (change("gap_bits", 60), "counts that do not fit"),
    "other values": (change("values", "float32"), "KeyError"),
    "a network that is cut": (replace(NETWORK, lambda array: array[:-3]), "is cut off"),
    "a network of terabytes": (replace(NETWORK, lambda array: bomb()), "has more than"),
    "a network that is not a stream": (replace(NETWORK, lambda array: array[::-1].copy()), "error"),
    "a network that is not JSON": (
        replace(NETWORK, lambda array: np.frombuffer(zlib.compress(b"{"), np.uint8)),
        "JSON",
    ),
    "no list of weights": (lambda model, tensors: model.update(weights={"0": model["weights"][0]}), "not a valid"),
    "a codebook that is too short": (replace("0.codebook", lambda array: array[:-1]), "out of bounds"),
    "a codebook of too much": (replace("0.codebook", lambda array: np.ones(257, np.float32)), "256 at most"),
    "an array that is missing": (rename("0.codebook", "0.book"), "KeyError"),
}


def test_damaged_file_is_refused_without_allocating_what_it_claims(file: Path):
    content = file.read_bytes()
    for name, (damage, message) in DAMAGE.items():
        file.write_bytes(content)
        model, tensors = read_container(file, SPARSE)
        damage(model, tensors)
        write_container(file, SPARSE, model, tensors)  # with a correct digest
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match=message) as refused:
                read_sparse_network(file)
            assert tracemalloc.get_traced_memory()[1] < 2**24, name
        finally:
            tracemalloc.stop()
        assert str(file) in str(refused.value)
        assert "\n" not in str(refused.value)


def test_small_file_may_expand_to_64_mib_but_not_more(tmp_path: Path):
    weight = {"name": "w", "order": "rows", "positions": "all", "values": "codebook"}
    path = tmp_path / "zeros.sparse.safetensors"
    for size, accepted in ((2**24, True), (2**24 + 1, False)):
        tensors = {"0.codebook": np.zeros(1, np.float32), NETWORK: compress_json({})}
        write_container(path, SPARSE, {"weights": [{**weight, "shape": [size], "kept": size}]}, tensors)
        if accepted:
            assert read_sparse_network(path)[1]["w"].nbytes == 2**26
        else:
            assert_refused("of memory, more than", read_sparse_network, path)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_byte_gives_arrays_of_same_shapes_or_a_user_error(file: Path, data):
    model, tensors = read_container(file, SPARSE)
    name = data.draw(st.sampled_from(sorted(tensors)))
    raw = bytearray(tensors[name].tobytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    changed = np.frombuffer(bytes(raw), tensors[name].dtype).reshape(tensors[name].shape)
    damaged = file.with_name("damaged.sparse.safetensors")
    write_container(damaged, SPARSE, model, {**tensors, name: changed})
    try:
        found = read_sparse_network(damaged)[1]
    except UserError:
        return
    assert {name: values.shape for name, values in found.items()} == {n: v.shape for n, v in WEIGHTS.items()}


symbols_of = st.integers(1, 8).flatmap(lambda bits: st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=400))


def huffman_bits(counts: np.ndarray) -> int:
    """Return the bits of an optimal code of any length, by merging the two smallest counts again and again."""
    heap = [int(count) for count in counts if count]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        total += joined
        heapq.heappush(heap, joined)
    return total


@given(symbols_of)
def test_symbols_round_trip_in_as_few_bits_as_huffman_code(symbols: list[int]):
    numbers = np.array(symbols, np.uint8)
    counts = np.bincount(numbers)
    lengths = code_lengths(counts)
    stream = encode(numbers, lengths)
    bits = int(counts @ lengths.astype(np.int64)) if len(set(symbols)) > 1 else 0
    assert bits == huffman_bits(counts)
    assert len(stream) == -(-bits // 8)
    np.testing.assert_array_equal(decode(stream, read_lengths(write_lengths(lengths), 256), len(symbols)), numbers)


def test_canonical_codes_match_deflate_standard():
    lengths = np.array([3, 3, 3, 3, 3, 2, 4, 4], np.uint8)  # RFC 1951, section 3.2.2
    codes = canonical_codes(lengths)
    written = [format(code, f"0{length}b") for code, length in zip(codes, lengths, strict=True)]
    assert written == ["010", "011", "100", "101", "110", "00", "1110", "1111"]


def test_streams_of_many_blocks_round_trip():
    random = np.random.default_rng(0)
    symbols = np.minimum(random.geometric(0.2, 500_000) - 1, 255).astype(np.uint8)
    lengths = code_lengths(np.bincount(symbols))
    assert lengths.max() == MAX_LENGTH
    stream = encode(symbols, lengths)
    assert len(stream) > 2 * BLOCK
    np.testing.assert_array_equal(decode(stream, lengths, len(symbols)), symbols)


def test_invalid_code_lengths_are_refused():
    for lengths in ([1, 1, 1], [1, 2], [2], [15, 15], [0, 0], []):
        padded = [*lengths, *[0] * (len(lengths) % 2)]
        stream = np.array([high << 4 | low for high, low in zip(padded[::2], padded[1::2], strict=True)], np.uint8)
        assert_refused("Kraft", read_lengths, stream, 256)
    stream = write_lengths(code_lengths(np.array([3, 2, 1])))
    assert read_lengths(stream, 3).tolist() == [1, 2, 2]
    assert_refused("more than 2 symbols", read_lengths, stream, 2)
    refusal(read_lengths, np.zeros(10**6, np.uint8), 256)


@given(symbols_of, st.integers(1, 3))
def test_stream_of_wrong_length_is_refused(symbols: list[int], bytes_less: int):
    numbers = np.array([*symbols, 0, 255], np.uint8)
    lengths = code_lengths(np.bincount(numbers))
    stream = encode(numbers, lengths)
    refusal(decode, stream[:-bytes_less], lengths, len(numbers))
    refusal(decode, np.append(stream, np.zeros(bytes_less, np.uint8)), lengths, len(numbers))
    refusal(decode, stream, lengths, len(numbers) + 8 * len(stream))
    assert_refused("too short", decode, stream, lengths, 10**15)  # before memory is allocated


def test_gap_counts_places_before_next_entry():
    for places, bits, numbers in (
        ([0, 1, 2], 3, [0, 0, 0]),
        ([7], 3, [7, 0]),  # 7 is the filler: it skips seven places without an entry
        ([13, 14], 3, [7, 6, 0]),
        ([2, 5], 1, [1, 1, 0, 1, 1, 0]),
        ([254, 510], 8, [254, 255, 0]),
    ):
        assert to_gaps(np.array(places, np.int64), bits).tolist() == numbers
        assert from_gaps(np.array(numbers, np.uint8), bits, len(places), 600).tolist() == places


def test_gaps_that_do_not_fit_count_or_size_are_refused():
    for numbers, kept, size in (
        ([3, 0], 3, 20),  # too few entries
        ([3, 0], 1, 20),  # too many
        ([3, 0], 2, 4),  # the last entry would be at place 4
        ([3, 7], 1, 20),  # no entry follows the filler
    ):
        refusal(from_gaps, np.array(numbers, np.uint8), 3, kept, size)
