from __future__ import annotations

import importlib
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.deploy.inference import bits as sign_sums
from hookline.deploy.inference.bits import as_words, pack_last
from hookline.deploy.inference.engine import NUMBA, NUMPY, find_backend
from hookline.trainer.errors import UserError

KERNELS = [NUMPY, NUMBA]


def make(kernels: str) -> Callable:
    if kernels == NUMBA:
        pytest.importorskip("numba")
    return find_backend(kernels).sums


def signs(shape: tuple[int, int], seed: int) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(shape) < 0.5, -1, 1)


def packed(values: np.ndarray) -> np.ndarray:
    return as_words(pack_last(values > 0, values.shape[-1]))


@pytest.mark.parametrize("kernels", KERNELS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 70),
    units=st.integers(1, 40),
    count=st.integers(1, 300),
    block=st.sampled_from([1, 99, 2**16]),
)
def test_sums_are_those_of_integers(kernels, rows, units, count, block):
    made = make(kernels)
    inputs, kernel = signs((rows, count), 1), signs((units, count), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sign_sums, "BLOCK", block)
        patch.setattr(sign_sums, "DEEPEST", 3)
        found = made(packed(kernel), count)(packed(inputs))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, inputs @ kernel.T)


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_largest_sums_do_not_overflow_and_intermediate_results_stay_small(kernels, monkeypatch):
    for count, block in ((64 * sign_sums.DEEPEST + 65, 64), (200_000, sign_sums.BLOCK)):
        monkeypatch.setattr(sign_sums, "BLOCK", block)
        inputs, kernel = np.ones((2, count)), np.ones((3, count))
        inputs[1] = -1
        found = make(kernels)(packed(kernel), count)(packed(inputs))
        np.testing.assert_array_equal(found, [[count] * 3, [-count] * 3])
    monkeypatch.undo()
    for rows, units, count in ((1000, 8, 64), (2, 4096, 4096), (3, 5, 10**6)):
        words = np.zeros((rows, -(-count // 64)), np.uint64)
        sums = make(kernels)(np.zeros((units, words.shape[1]), np.uint64), count)
        sums(words)
        tracemalloc.start()
        found = sums(words)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * found.nbytes + 2 * 2**20


def test_without_numba_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "hookline.deploy.inference.compiled", raising=False)
    with pytest.raises(UserError, match=r"kernels=numba needs Numba. Expected it installed: python -m pip .*\[fast\]"):
        importlib.import_module("hookline.deploy.inference.compiled")
    monkeypatch.undo()


@pytest.mark.parametrize("kernels", KERNELS)
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(0, 3), units=st.integers(1, 9), count=st.integers(1, 70))
def test_products_of_floats_with_signs_are_those_of_float64(kernels, rows, units, count):
    make(kernels)
    inputs = np.random.default_rng(0).normal(size=(count, rows)).astype(np.float32).T
    kernel = signs((count, units), 2)
    found = find_backend(kernels).products(kernel.astype(np.float32))(inputs)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, inputs.astype(np.float64) @ kernel, atol=1e-5)
