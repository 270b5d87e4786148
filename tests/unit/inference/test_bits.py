from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from hookline.deploy.inference.bits import (
    as_words,
    encode_order,
    from_order,
    pack_last,
    pack_stream,
    packed_bytes,
    stream_bytes,
    unpack_last,
    unpack_stream,
)
from tests.support.packed_graphs import pack_signs


@given(bits=st.integers(1, 8), numbers=st.lists(st.integers(0, 255), max_size=40))
def test_a_stream_holds_its_numbers_lowest_bit_first(bits, numbers):
    values = np.array([number % 2**bits for number in numbers], np.uint8)
    stream = pack_stream(values, bits)
    assert (stream.dtype, stream.shape) == (np.uint8, (stream_bytes(len(values), bits),))
    whole = sum(int(value) << bits * place for place, value in enumerate(values))
    assert int.from_bytes(stream.tobytes(), "little") == whole  # so what follows the last number is zero
    np.testing.assert_array_equal(unpack_stream(stream, len(values), bits), values)


KERNELS = npst.arrays(np.float32, npst.array_shapes(max_dims=4, max_side=5), elements=st.sampled_from([-0.5, 2]))


@given(kernel=KERNELS)
def test_signs_stand_channel_by_channel(kernel):
    stream = pack_signs(kernel)
    bits = unpack_stream(stream, kernel.size, 1)
    np.testing.assert_array_equal(from_order(bits, kernel.shape), kernel > 0)
    channels = [kernel[..., channel].ravel() > 0 for channel in range(kernel.shape[-1])]
    np.testing.assert_array_equal(bits, np.concatenate(channels))
    np.testing.assert_array_equal(from_order(encode_order(kernel), kernel.shape), kernel)


@given(groups=st.integers(1, 4), group=st.integers(1, 20), rows=st.integers(0, 3), seed=st.integers(0, 99))
def test_groups_of_the_last_axis_are_packed_into_whole_bytes(groups, group, rows, seed):
    bits = np.random.default_rng(seed).integers(0, 2, (rows, 2, groups * group), np.uint8)
    packed = pack_last(bits, group)
    assert packed.shape == (rows, 2, packed_bytes(group, groups * group))
    np.testing.assert_array_equal(unpack_last(packed, group, groups * group), bits)
    assert np.unpackbits(packed).sum() == bits.sum()  # no other bit is set
    first = packed[..., 0] & 1
    np.testing.assert_array_equal(first, bits[..., 0])


def test_words_hold_the_bytes_and_zeros():
    for length in (1, 7, 8, 9):
        packed = np.random.default_rng(0).integers(0, 256, (3, length), np.uint8)
        words = as_words(packed)
        assert (words.dtype, words.shape) == (np.uint64, (3, -(-length // 8)))
        assert words.tobytes() == np.pad(packed, ((0, 0), (0, -length % 8))).tobytes()
        np.testing.assert_array_equal(as_words(np.asfortranarray(packed)), words)
