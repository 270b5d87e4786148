"""Huffman codes: no code is better, every stream is read again, and what is not a code or a stream is refused."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.deploy.inference.huffman import (
    BLOCK,
    MAX_BITS,
    MAX_LENGTH,
    canonical_codes,
    code_lengths,
    decode,
    encode,
    from_gaps,
    read_lengths,
    to_gaps,
    write_lengths,
)
from hookline.trainer.errors import UserError

symbols_of = st.integers(1, 8).flatmap(lambda bits: st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=400))


def huffman_bits(counts: np.ndarray) -> int:
    """Return the bits of the best code of any length: two least counts are joined again and again."""
    heap = [int(count) for count in counts if count]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        total += joined
        heapq.heappush(heap, joined)
    return total


@given(symbols_of)
def test_symbols_are_read_again_and_take_as_few_bits_as_huffmans_code(symbols: list[int]):
    numbers = np.array(symbols, np.uint8)
    counts = np.bincount(numbers)
    lengths = code_lengths(counts)
    stream = encode(numbers, lengths)
    bits = int(counts @ lengths.astype(np.int64)) if len(set(symbols)) > 1 else 0
    assert bits == huffman_bits(counts)
    assert len(stream) == -(-bits // 8)
    np.testing.assert_array_equal(decode(stream, read_lengths(write_lengths(lengths), 256), len(symbols)), numbers)


def test_codes_are_those_of_the_deflate_standard():
    lengths = np.array([3, 3, 3, 3, 3, 2, 4, 4], np.uint8)  # RFC 1951, section 3.2.2
    codes = canonical_codes(lengths)
    written = [format(code, f"0{length}b") for code, length in zip(codes, lengths, strict=True)]
    assert written == ["010", "011", "100", "101", "110", "00", "1110", "1111"]


def test_streams_of_many_blocks_are_read_again():
    random = np.random.default_rng(0)
    symbols = np.minimum(random.geometric(0.2, 500_000) - 1, 255).astype(np.uint8)
    lengths = code_lengths(np.bincount(symbols))
    assert lengths.max() == MAX_LENGTH
    stream = encode(symbols, lengths)
    assert len(stream) > 2 * BLOCK
    np.testing.assert_array_equal(decode(stream, lengths, len(symbols)), symbols)


def test_lengths_that_make_no_code_are_refused():
    for lengths in ([1, 1, 1], [1, 2], [2], [15, 15], [0, 0], []):
        padded = [*lengths, *[0] * (len(lengths) % 2)]
        stream = np.array([high << 4 | low for high, low in zip(padded[::2], padded[1::2], strict=True)], np.uint8)
        with pytest.raises(UserError, match="Kraft"):
            read_lengths(stream, 256)
    stream = write_lengths(code_lengths(np.array([3, 2, 1])))
    assert read_lengths(stream, 3).tolist() == [1, 2, 2]
    with pytest.raises(UserError, match="more than 2 symbols"):
        read_lengths(stream, 2)
    with pytest.raises(UserError):
        read_lengths(np.zeros(10**6, np.uint8), 256)


@given(symbols_of, st.integers(1, 3))
def test_a_stream_that_ends_early_or_late_is_refused(symbols: list[int], bytes_less: int):
    numbers = np.array([*symbols, 0, 255], np.uint8)
    lengths = code_lengths(np.bincount(numbers))
    stream = encode(numbers, lengths)
    with pytest.raises(UserError):
        decode(stream[:-bytes_less], lengths, len(numbers))
    with pytest.raises(UserError):
        decode(np.append(stream, np.zeros(bytes_less, np.uint8)), lengths, len(numbers))
    with pytest.raises(UserError):
        decode(stream, lengths, len(numbers) + 8 * len(stream))
    with pytest.raises(UserError, match="too short"):
        decode(stream, lengths, 10**15)  # before memory is taken


positions = st.sets(st.integers(0, 3000), max_size=60).map(lambda found: np.array(sorted(found), np.int64))


@given(positions, st.integers(1, MAX_BITS))
def test_positions_come_back(places: np.ndarray, bits: int):
    size = int(places[-1]) + 1 if len(places) else 0
    numbers = to_gaps(places, bits)
    assert numbers.size == 0 or numbers.max() < 2**bits
    np.testing.assert_array_equal(from_gaps(numbers, bits, len(places), size), places)


@pytest.mark.parametrize(
    ("places", "bits", "numbers"),
    [
        ([0, 1, 2], 3, [0, 0, 0]),
        ([7], 3, [7, 0]),  # the filler is 7: seven places on, without an entry
        ([13, 14], 3, [7, 6, 0]),
        ([2, 5], 1, [1, 1, 0, 1, 1, 0]),
        ([254, 510], 8, [254, 255, 0]),
    ],
)
def test_a_number_counts_the_places_before_an_entry(places, bits, numbers):
    assert to_gaps(np.array(places, np.int64), bits).tolist() == numbers
    assert from_gaps(np.array(numbers, np.uint8), bits, len(places), 600).tolist() == places


def test_gaps_that_lead_elsewhere_are_refused():
    for numbers, kept, size in (
        ([3, 0], 3, 20),  # too few entries
        ([3, 0], 1, 20),  # too many
        ([3, 0], 2, 4),  # the last one lies at 4
        ([3, 7], 1, 20),  # a filler at the end leads nowhere
    ):
        with pytest.raises(UserError):
            from_gaps(np.array(numbers, np.uint8), 3, kept, size)
