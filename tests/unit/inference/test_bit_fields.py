"""Streams of bits: what is written is read again, and a stream of another length is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.deploy.inference.container import DamagedError
from hookline.deploy.inference.huffman import check_end, read_fields, write_fields


@given(st.data(), st.integers(1, 8))
def test_numbers_of_one_width_are_read_again(data, width: int):
    numbers = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), max_size=70)), np.uint8)
    stream = write_fields(numbers, np.full(len(numbers), width))
    assert len(stream) == -(-len(numbers) * width // 8)
    np.testing.assert_array_equal(read_fields(stream, width, len(numbers)), numbers)


@given(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 2**15 - 1)), max_size=60))
def test_a_stream_is_the_binary_digits_of_its_numbers_one_after_another(pairs: list[tuple[int, int]]):
    pairs = [(width, value % 2**width) for width, value in pairs]
    digits = "".join(format(value, f"0{width}b") for width, value in pairs)
    widths, values = (np.array([pair[place] for pair in pairs], np.int64) for place in (0, 1))
    stream = write_fields(values, widths)
    assert "".join(format(byte, "08b") for byte in stream) == digits + "0" * (-len(digits) % 8)


def test_a_stream_of_another_length_than_its_numbers_is_refused():
    assert write_fields(np.array([5, 1]), np.array([3, 2])).tolist() == [0b10101000]  # the highest bits first
    stream = write_fields(np.arange(5, dtype=np.uint8), np.full(5, 5))
    for length, count in ((3, 5), (4, 7), (4, 100)):
        with pytest.raises(DamagedError, match="bits has"):
            read_fields(stream[:length], 5, count)
    stream = write_fields(np.array([3, 3, 3], np.uint8), np.full(3, 3))
    stream[-1] |= 1  # behind the last number
    with pytest.raises(DamagedError, match="continues after"):
        read_fields(stream, 3, 3)
    check_end(np.array([255, 255], np.uint8), 16)
    with pytest.raises(DamagedError):
        check_end(np.array([255, 255], np.uint8), 15)
