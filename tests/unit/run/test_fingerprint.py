"""Digests: equal for equal contents, different wherever something differs."""

from __future__ import annotations

import hashlib
import weakref

import ml_dtypes
import numpy as np
import pytest

from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.run.checkpoint_tensors import tensors_digest
from trainer.run.fingerprint import SAMPLES, data_fingerprint


def split(name: str = "train", size: int = 10, rows: list[int] | None = None, change: tuple | None = None) -> Split:
    inputs = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
    targets = np.arange(size) % 4
    if change is not None:
        inputs[change] += 1.0
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    return Split(name, source, np.array(range(size) if rows is None else rows, np.int64))


@pytest.mark.parametrize(
    "other",
    [
        split(change=(4, 2)),
        split(rows=[1, 0, 2, 3, 4, 5, 6, 7, 8, 9]),
        split(rows=[0, 1, 2, 3, 4, 5, 6, 7, 8]),
        split(size=11, rows=list(range(10))),
        split("validation"),
    ],
    ids=["another value", "another order", "a row fewer", "a larger set", "another split"],
)
def test_other_data_has_another_fingerprint(other: Split) -> None:
    assert data_fingerprint([split()]) == data_fingerprint([split()])
    assert data_fingerprint([split()]) != data_fingerprint([other])


def test_a_large_split_is_sampled_to_both_ends() -> None:
    size = 100 * SAMPLES
    whole = data_fingerprint([split(size=size)])
    assert data_fingerprint([split(size=size, change=(0, 0))]) != whole
    assert data_fingerprint([split(size=size, change=(size - 1, 2))]) != whole


def test_a_digest_tells_names_dtypes_shapes_and_bits_apart() -> None:
    base = {"a": np.array([1.0, 2.0], np.float32), "b": np.array(3)}
    assert tensors_digest(base) == tensors_digest(dict(reversed(base.items())))
    others = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].astype(np.float64), "b": base["b"]},
        {"a": base["a"][None], "b": base["b"]},
        {"a": np.nextafter(base["a"], np.float32(9)), "b": base["b"]},
        {"a": np.array([-0.0, 2.0], np.float32), "b": base["b"]},
    ]
    assert len({tensors_digest(each) for each in [base, *others]}) == len(others) + 1


def test_a_digest_holds_one_array_at_a_time_and_hashes_its_bytes() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "b": np.array(True),
        "c": np.zeros((0, 2), np.int64),
        "d": np.ones(3, ml_dtypes.bfloat16),
    }
    made: list[weakref.ref] = []

    class Reading(dict):
        def __getitem__(self, key):
            assert all(each() is None for each in made)
            array = np.array(super().__getitem__(key), order="K")
            made.append(weakref.ref(array))
            return array

    expected = hashlib.sha256()
    for key, array in arrays.items():
        plain = np.ascontiguousarray(array)
        expected.update(f"{key} {plain.dtype} {plain.shape}".encode() + plain.tobytes())
    assert tensors_digest(Reading(arrays)) == expected.hexdigest()
    assert len(made) == 4
