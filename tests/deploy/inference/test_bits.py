import importlib
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.deploy.inference import bits as sign_sums
from hookline.deploy.inference.bits import (
    as_words,
    pack_last,
    pack_stream,
    stream_bytes,
    unpack_last,
    unpack_stream,
)
from hookline.deploy.inference.engine import NUMBA, NUMPY, find_backend
from hookline.trainer.errors import UserError


@given(bits=st.integers(1, 8), numbers=st.lists(st.integers(0, 255), max_size=40))
def test_stream_stores_numbers_lowest_bit_first(bits, numbers):
    values = np.array([number % 2**bits for number in numbers], np.uint8)
    stream = pack_stream(values, bits)
    assert (stream.dtype, stream.shape) == (np.uint8, (stream_bytes(len(values), bits),))
    whole = sum(int(value) << bits * place for place, value in enumerate(values))
    assert int.from_bytes(stream.tobytes(), "little") == whole  # so the padding after the last number is zero
    np.testing.assert_array_equal(unpack_stream(stream, len(values), bits), values)


@given(last=st.integers(1, 80), rows=st.integers(0, 3), seed=st.integers(0, 99))
def test_last_axis_is_packed_into_whole_bytes(last, rows, seed):
    bits = np.random.default_rng(seed).integers(0, 2, (rows, 2, last), np.uint8)
    packed = pack_last(bits)
    assert packed.shape == (rows, 2, -(-last // 8))
    np.testing.assert_array_equal(unpack_last(packed, last), bits)
    assert np.unpackbits(packed).sum() == bits.sum()  # no other bit is set
    np.testing.assert_array_equal(packed[..., 0] & 1, bits[..., 0])


SIGN_SUMS_KERNELS = [NUMPY, NUMBA]


def make(kernels: str) -> Callable:
    if kernels == NUMBA:
        pytest.importorskip("numba")
    return find_backend(kernels).sums


def signs(shape: tuple[int, int], seed: int) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(shape) < 0.5, -1, 1)


def packed(values: np.ndarray) -> np.ndarray:
    return as_words(pack_last(values > 0))


@pytest.mark.parametrize("kernels", SIGN_SUMS_KERNELS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 70), units=st.integers(1, 40), count=st.integers(1, 300), block=st.sampled_from([1, 99, 2**16])
)
def test_sign_sums_match_integer_matrix_product(kernels, rows, units, count, block):
    made = make(kernels)
    inputs, kernel = signs((rows, count), 1), signs((units, count), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sign_sums, "BLOCK", block)
        patch.setattr(sign_sums, "DEEPEST", 3)
        found = made(packed(kernel), count)(packed(inputs))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, inputs @ kernel.T)


@pytest.mark.parametrize("kernels", SIGN_SUMS_KERNELS)
def test_largest_sums_do_not_overflow(kernels, monkeypatch):
    for count, block in ((64 * sign_sums.DEEPEST + 65, 64), (200_000, sign_sums.BLOCK)):
        monkeypatch.setattr(sign_sums, "BLOCK", block)
        inputs, kernel = np.ones((2, count)), np.ones((3, count))
        inputs[1] = -1
        found = make(kernels)(packed(kernel), count)(packed(inputs))
        np.testing.assert_array_equal(found, [[count] * 3, [-count] * 3])


def test_missing_numba_is_reported_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "hookline.deploy.inference.compiled", raising=False)
    with pytest.raises(UserError, match=r"kernels=numba needs the package numba.*pip install .*\[fast\]"):
        importlib.import_module("hookline.deploy.inference.compiled")
    monkeypatch.undo()
