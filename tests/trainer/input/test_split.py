"""Every way to split: disjoint, complete, stratified, reproducible, and by groups or hashes if requested."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer.input.split import split_indices
from tests.support.refusals import assert_refused

FRACTIONS = {"validation": 0.1, "test": 0.2}
LARGE = {"validation": 0.3, "test": 0.3}  # no part of a small set is empty by chance


@given(
    size=st.integers(20, 500),
    validation=st.one_of(st.floats(0.05, 0.45), st.integers(1, 5)),
    test=st.floats(0.05, 0.45),
    seed=st.integers(0, 2**32),
    classes=st.integers(0, 12),
)
def test_parts_are_disjoint_and_complete(size, validation, test, seed, classes):
    labels = np.random.default_rng(seed).integers(0, classes, size) if classes else None
    parts = split_indices(size, {"validation": validation, "test": test}, seed, labels)
    assert list(parts) == ["train", "validation", "test"]
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(size))
    assert parts["validation"].size == (validation if isinstance(validation, int) else round(validation * size))
    assert parts["test"].size == round(test * size)
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts.values())


@given(size=st.integers(100, 1000), seed=st.integers(0, 2**32), skew=st.floats(0.1, 5))
def test_parts_are_stratified_by_class(size, seed, skew):
    share = np.arange(1, 8) ** skew
    labels = np.random.default_rng(seed).choice(7, size, p=share / share.sum())
    parts = split_indices(size, FRACTIONS, seed, labels)
    for name, fraction in FRACTIONS.items():
        counts = np.bincount(labels[parts[name]], minlength=7)
        assert np.all(np.abs(counts - fraction * np.bincount(labels, minlength=7)) <= 2)
    labels = np.array([0] * 95 + [1, 2, 3, 4, 5])  # the only example of a class is trained on
    assert np.isin(np.arange(95, 100), split_indices(100, FRACTIONS, seed, labels)["train"]).all()


def test_split_is_determined_by_seed_and_stable_across_versions():
    for labels in (None, np.arange(200) % 4):
        first, again, other = (split_indices(200, FRACTIONS, seed, labels) for seed in (3, 3, 4))
        for name in first:
            np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first["test"], other["test"])
        counted = split_indices(200, {"validation": 20, "test": 40}, 3, labels)  # a count and its share are equal
        assert all(np.array_equal(counted[name], first[name]) for name in first)
    parts = split_indices(20, {"validation": 0.15, "test": 0.2}, seed=1)
    assert parts["validation"].tolist() == [2, 9, 16]
    assert parts["test"].tolist() == [4, 14, 18, 19]


@given(size=st.integers(60, 300), groups=st.integers(6, 60), seed=st.integers(0, 2**32), labelled=st.booleans())
def test_groups_stay_whole(size, groups, seed, labelled):
    rng = np.random.default_rng(seed)
    group_of = np.concatenate([np.arange(groups), rng.integers(0, groups, size - groups)])
    parts = split_indices(size, LARGE, seed, rng.integers(0, 4, size) if labelled else None, groups=group_of)
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(size))
    for name, rows in parts.items():
        others = np.concatenate([part for other, part in parts.items() if other != name])
        assert not np.intersect1d(group_of[rows], group_of[others]).size


def test_groups_are_drawn_regardless_of_size_and_stratified():
    sizes = np.repeat([2, 20], [500, 50])
    group_of = np.repeat(np.arange(550), sizes)
    tests = [split_indices(len(group_of), {"test": 0.2}, seed, groups=group_of)["test"] for seed in range(8)]
    shares = [np.mean(sizes[group_of[test]] == 20) for test in tests]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)  # half of all examples are in large groups
    rng = np.random.default_rng(0)
    group_of = rng.integers(0, 400, 4000)
    labels = rng.choice(5, 400, p=[0.4, 0.3, 0.15, 0.1, 0.05])[group_of]
    stratified = split_indices(4000, FRACTIONS, 0, labels, groups=group_of)
    for name, share in FRACTIONS.items():
        assert np.all(np.abs(np.bincount(labels[stratified[name]], minlength=5) - share * np.bincount(labels)) <= 15)


@given(first=st.integers(50, 200), more=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_hashed_examples_keep_their_part_when_more_arrive(first, more, seed):
    rng = np.random.default_rng(seed)
    names = np.array([f"class/{number}.jpg" for number in rng.permutation(first + more)])
    order = rng.permutation(first + more)  # new examples may sort in between
    parts = [split_indices(len(keys), LARGE, seed, keys=keys) for keys in (names[:first], names[order])]
    was, now = (
        {key: name for name, rows in part.items() for key in keys[rows]}
        for part, keys in zip(parts, (names[:first], names[order]), strict=True)
    )
    assert all(now[key] == part for key, part in was.items())
    assert len(now) == first + more


def test_hash_split_matches_shares_and_keeps_equal_keys_together():
    keys = np.arange(20_000)
    parts = split_indices(20_000, FRACTIONS, 0, keys=keys)
    for name, share in FRACTIONS.items():
        assert abs(parts[name].size - share * 20_000) < 4 * np.sqrt(20_000 * share * (1 - share))
    other = split_indices(20_000, FRACTIONS, 1, keys=keys)
    assert np.isin(other["test"], parts["test"]).mean() == pytest.approx(0.2, abs=0.03)
    keys = np.repeat(np.arange(60), 3)
    for rows in split_indices(180, FRACTIONS, 0, keys=keys).values():
        assert np.all(np.unique(keys[rows], return_counts=True)[1] == 3)
    numbers = np.arange(20)  # a key is hashed as text, and the hash never changes
    for keys in (numbers, numbers.astype("U5"), numbers.astype("S9"), np.array([str(i) for i in range(20)], object)):
        parts = split_indices(20, {"validation": 0.2, "test": 0.2}, 1, keys=keys)
        assert (parts["validation"].tolist(), parts["test"].tolist()) == ([7, 8, 9], [0, 5, 11, 13, 16])


def test_invalid_split_options_are_refused():
    zeros = np.zeros(100, np.int64)
    for held_out, given_, message in (
        ({"test": float("nan")}, {}, "test fraction nan"),
        ({"validation": 0.5, "test": 0.5}, {}, "some left to train on"),
        (FRACTIONS, {"seed": -1}, "seed=-1"),
        ({"test": 0.001}, {}, "'test' of 100 examples is empty"),
        ({"test": 10}, {"keys": zeros}, "expected shares"),
        ({"test": 0.1}, {"groups": zeros}, "more groups"),
    ):
        assert_refused(message, split_indices, 100, held_out, **{"seed": 0, **given_})
