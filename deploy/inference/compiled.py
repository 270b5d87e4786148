"""Sums of signs compiled by Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from hookline.deploy.inference.bits import Backend, Products, Sums
from hookline.trainer.errors import import_optional

numba, extending = (
    import_optional(module, extra="fast", needed_by="kernels=numba") for module in ("numba", "numba.extending")
)

ROWS = 32  # rows that are combined with the same units while both are in the L1 cache


@extending.intrinsic
def _count_bits(_: Any, value: Any) -> tuple[Any, Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return numba.uint64(value), generate


@numba.njit(nogil=True, cache=True)
def _sums(words: np.ndarray, kernel: np.ndarray, count: int, found: np.ndarray) -> None:
    """Write the dot products of packed signs, int32 [rows, units], of uint64 [rows, words] and [units, words]."""
    rows, deep = words.shape
    units = len(kernel)
    for start in range(0, rows, ROWS):
        stop = min(rows, start + ROWS)
        four = units // 4 * 4 if rows > 1 else 0  # a single row is memory-bound, and one stream is read fastest
        for unit in range(0, four, 4):
            a, b, c, d = kernel[unit], kernel[unit + 1], kernel[unit + 2], kernel[unit + 3]
            for row in range(start, stop):
                these = words[row]
                in_a = in_b = in_c = in_d = np.uint64(0)
                for word in range(deep):
                    bits = these[word]
                    in_a += _count_bits(bits ^ a[word])
                    in_b += _count_bits(bits ^ b[word])
                    in_c += _count_bits(bits ^ c[word])
                    in_d += _count_bits(bits ^ d[word])
                found[row, unit] = count - 2 * np.int64(in_a)
                found[row, unit + 1] = count - 2 * np.int64(in_b)
                found[row, unit + 2] = count - 2 * np.int64(in_c)
                found[row, unit + 3] = count - 2 * np.int64(in_d)
        for row in range(start, stop):
            for unit in range(four, units):
                differing = np.uint64(0)
                for word in range(deep):
                    differing += _count_bits(words[row, word] ^ kernel[unit, word])
                found[row, unit] = count - 2 * np.int64(differing)


@numba.njit(nogil=True, cache=True, fastmath={"reassoc"})
def _products(inputs: np.ndarray, kernel: np.ndarray, found: np.ndarray) -> None:
    """Write the products, float32 [rows, units], of float32 [rows, n] and int8 [units, n]."""
    rows, count = inputs.shape
    units = len(kernel)
    four = units // 4 * 4
    for row in range(rows):
        these = inputs[row]
        for unit in range(0, four, 4):
            a, b, c, d = kernel[unit], kernel[unit + 1], kernel[unit + 2], kernel[unit + 3]
            with_a = with_b = with_c = with_d = np.float32(0)
            for place in range(count):
                value = these[place]
                with_a += value * np.float32(a[place])
                with_b += value * np.float32(b[place])
                with_c += value * np.float32(c[place])
                with_d += value * np.float32(d[place])
            found[row, unit], found[row, unit + 1] = with_a, with_b
            found[row, unit + 2], found[row, unit + 3] = with_c, with_d
        for unit in range(four, units):
            product = np.float32(0)
            for place in range(count):
                product += these[place] * np.float32(kernel[unit, place])
            found[row, unit] = product


def numba_products(kernel: np.ndarray) -> Products:
    """Return the compiled function that multiplies floats by signs, kept as int8 because less memory is read."""
    signs = np.ascontiguousarray(kernel.T.astype(np.int8))

    def products(inputs: np.ndarray) -> np.ndarray:
        found = np.empty((len(inputs), len(signs)), np.float32)
        _products(np.ascontiguousarray(inputs), signs, found)
        return found

    return products


def numba_sums(kernel: np.ndarray, count: int) -> Sums:
    """Return the compiled function that computes dot products with a kernel."""
    kernel = np.ascontiguousarray(kernel)

    def sums(words: np.ndarray) -> np.ndarray:
        found = np.empty((len(words), len(kernel)), np.int32)
        _sums(words, kernel, count, found)
        return found

    return sums


NUMBA_BACKEND = Backend(numba_sums, numba_products)
