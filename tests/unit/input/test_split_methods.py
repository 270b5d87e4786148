"""Every way to split: counts, whole groups, and a hash that a growing set does not disturb."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches, TrainingBatches
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.input.split import split_indices

HELD_OUT = {"validation": 0.1, "test": 0.2}
LARGE = {"validation": 0.3, "test": 0.3}  # no part of a small set is empty by chance


def method(name, size, rng):
    """Return what `split_indices` is given for a way to split."""
    return {
        "random": {},
        "stratified": {"labels": rng.integers(0, 4, size)},
        "group": {"groups": rng.integers(0, max(3, size // 4), size)},
        "stratified group": {"groups": rng.integers(0, max(3, size // 4), size), "labels": rng.integers(0, 4, size)},
        "hash": {"keys": np.array([f"{rng.integers(10**9)}.jpg" for _ in range(size)])},
    }[name]


METHODS = ("random", "stratified", "group", "stratified group", "hash")


@pytest.mark.parametrize("name", METHODS)
@settings(deadline=None, max_examples=12)
@given(size=st.integers(60, 200), batch=st.integers(3, 30), seed=st.integers(0, 2**32), by_count=st.booleans())
def test_no_index_of_three_epochs_is_held_out(name, size, batch, seed, by_count):
    rng = np.random.default_rng(seed)
    held_out = {"validation": 7, "test": 0.2} if by_count and name != "hash" else LARGE
    parts = split_indices(size, held_out, seed, **method(name, size, rng))
    source = ArraySource({"inputs": np.zeros((size, 1), np.uint8), "targets": np.arange(size)}, dict)
    splits = {part: Split(part, source, rows) for part, rows in parts.items()}
    data = Data("tiny", **splits, input_shape=(1,), classes=size)
    training = TrainingBatches(data.train, batch_size=min(batch, data.train.size), seed=seed)
    steps = tf.range(training.epoch_end(3), dtype=tf.int64)
    trained = np.concatenate([training.indices(step) for step in steps])
    epochs = trained[: 3 * data.train.size].reshape(3, -1)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(parts["train"], (3, 1)))
    held = []
    for split in (data.validation, data.test):
        batches = EvaluationBatches(split, batch_size=batch)
        found = [batches.batch(i) for i in tf.range(batches.count, dtype=tf.int64)]
        held += [np.concatenate([each["index"] for each in found])]
    assert not np.intersect1d(trained, np.concatenate(held)).size
    assert not np.intersect1d(*held).size
    np.testing.assert_array_equal(np.unique(np.concatenate([trained, *held])), np.arange(size))


@settings(deadline=None)
@given(
    size=st.integers(5, 300),
    validation=st.integers(1, 2),
    test=st.integers(1, 2),
    seed=st.integers(0, 2**32),
    classes=st.integers(0, 4),
)
def test_a_number_of_examples_is_met_exactly(size, validation, test, seed, classes):
    labels = np.random.default_rng(seed).integers(0, classes, size) if classes else None
    parts = split_indices(size, {"validation": validation, "test": test}, seed, labels)
    assert [part.size for part in parts.values()] == [size - validation - test, validation, test]


def test_a_number_of_examples_and_its_share_are_one_split():
    for labels in (None, np.arange(500) % 7):
        by_share, by_count = (
            split_indices(500, held, 3, labels) for held in (HELD_OUT, {"validation": 50, "test": 100})
        )
        for name in by_share:
            np.testing.assert_array_equal(by_share[name], by_count[name])


@settings(deadline=None)
@given(size=st.integers(3, 300), groups=st.integers(3, 60), seed=st.integers(0, 2**32), skew=st.floats(0, 3))
def test_a_group_is_in_one_part_and_no_part_is_empty_while_there_are_groups_enough(size, groups, seed, skew):
    rng = np.random.default_rng(seed)
    share = np.arange(1, groups + 1) ** -skew
    group_of = rng.choice(groups, size, p=share / share.sum())
    group_of[:3] = 0, 1, 2
    parts = split_indices(size, HELD_OUT, seed, groups=group_of)
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(size))
    for name, rows in parts.items():
        others = np.concatenate([part for other, part in parts.items() if other != name])
        assert not np.intersect1d(group_of[rows], group_of[others]).size
        assert rows.dtype == np.int64
        assert np.all(np.diff(rows) > 0)


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_groups_are_as_large_as_asked_for_to_within_a_group(seed):
    group_of = np.random.default_rng(seed).integers(0, 150, 3000).astype(str)
    largest = np.unique(group_of, return_counts=True)[1].max()
    for held_out in (HELD_OUT, {"validation": 300, "test": 600}):
        parts = split_indices(3000, held_out, seed, groups=group_of)
        for name, wanted in {"validation": 300, "test": 600}.items():
            assert abs(parts[name].size - wanted) <= largest / 2
    other = split_indices(3000, HELD_OUT, seed + 100, groups=group_of)
    assert not np.array_equal(other["test"], split_indices(3000, HELD_OUT, seed, groups=group_of)["test"])


def test_groups_are_drawn_whatever_their_size():
    sizes = np.repeat([2, 20], [500, 50])
    group_of = np.repeat(np.arange(550), sizes)
    shares = []
    for seed in range(8):
        test = split_indices(len(group_of), {"test": 0.2}, seed, groups=group_of)["test"]
        shares.append(np.mean(sizes[group_of[test]] == 20))
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)  # half of all examples are in large groups


def test_groups_of_one_class_each_are_stratified():
    rng = np.random.default_rng(0)
    group_of = rng.integers(0, 400, 4000)
    labels = rng.choice(5, 400, p=[0.4, 0.3, 0.15, 0.1, 0.05])[group_of]
    counts = np.bincount(labels)
    stratified = split_indices(4000, HELD_OUT, 0, labels, groups=group_of)
    for name, share in HELD_OUT.items():
        assert np.all(np.abs(np.bincount(labels[stratified[name]], minlength=5) - share * counts) <= 15)


def test_groups_of_one_example_are_stratified_as_examples_are():
    labels = np.random.default_rng(0).integers(0, 5, 1000)
    parts = split_indices(1000, HELD_OUT, 0, labels, groups=np.arange(1000))
    for name, share in HELD_OUT.items():
        assert abs(parts[name].size - share * 1000) <= 1
        assert np.all(np.abs(np.bincount(labels[parts[name]]) - share * np.bincount(labels)) <= 2)


@settings(deadline=None)
@given(first=st.integers(50, 200), more=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_an_example_never_changes_its_part_when_more_arrive(first, more, seed):
    rng = np.random.default_rng(seed)
    names = np.array([f"class/{number}.jpg" for number in rng.permutation(first + more)])
    order = rng.permutation(first + more)  # what arrives may sort in between
    parts = [split_indices(len(keys), LARGE, seed, keys=keys) for keys in (names[:first], names[order])]
    was, now = (
        {key: name for name, rows in part.items() for key in keys[rows]}
        for part, keys in zip(parts, (names[:first], names[order]), strict=True)
    )
    assert all(now[key] == part for key, part in was.items())
    assert len(now) == first + more


def test_a_hash_gives_shares_to_within_chance_and_depends_on_the_seed():
    keys = np.arange(20_000)
    parts = split_indices(20_000, HELD_OUT, 0, keys=keys)
    for name, share in HELD_OUT.items():
        assert abs(parts[name].size - share * 20_000) < 4 * np.sqrt(20_000 * share * (1 - share))
    other = split_indices(20_000, HELD_OUT, 1, keys=keys)
    assert np.isin(other["test"], parts["test"]).mean() == pytest.approx(0.2, abs=0.03)


def test_a_hash_never_changes_between_versions_and_knows_keys_by_their_text():
    parts = split_indices(20, {"validation": 0.2, "test": 0.2}, 1, keys=np.arange(20))
    assert parts["validation"].tolist() == [7, 8, 9]
    assert parts["test"].tolist() == [0, 5, 11, 13, 16]
    for keys in (np.arange(20).astype("U5"), np.arange(20).astype("S9"), np.array([str(i) for i in range(20)], object)):
        again = split_indices(20, {"validation": 0.2, "test": 0.2}, 1, keys=keys)
        assert all(np.array_equal(again[name], parts[name]) for name in parts)


def test_equal_keys_go_together():
    keys = np.repeat(np.arange(60), 3)
    for rows in split_indices(180, HELD_OUT, 0, keys=keys).values():
        assert np.all(np.unique(keys[rows], return_counts=True)[1] == 3)


ZEROS = np.zeros(100, np.int64)


@pytest.mark.parametrize(
    ("held_out", "given", "message"),
    [
        ({"test": 0}, {}, "test fraction 0; expected a number above 0 and below 1, or a whole number of examples"),
        ({"test": -3}, {}, "test fraction -3"),
        ({"test": 100}, {}, "test: 100 for 100 examples; expected fewer in all, to leave some to train on"),
        ({"validation": 0.5, "test": 50}, {}, "validation: 0.5, test: 50 for 100 examples; expected fewer in all"),
        ({"test": 10}, {"keys": ZEROS}, r"a number of examples with keys \(test: 10\); expected shares"),
        ({"test": 0.1}, {"keys": ZEROS, "labels": ZEROS}, "keys with labels or groups; expected keys alone"),
        ({"test": 0.1}, {"keys": ZEROS, "groups": ZEROS}, "keys with labels or groups"),
        ({"test": 0.1}, {"keys": ZEROS[1:]}, r"keys of shape \[99\] for 100 examples; expected \[100\]"),
        ({"test": 0.1}, {"groups": ZEROS[:, None]}, r"groups of shape \[100, 1\]"),
        ({"test": 0.1}, {"keys": ZEROS + 0.5}, "Received key 0.5; expected texts, bytes or integers"),
        ({"test": 0.1}, {"keys": ZEROS > 0}, "Received key False"),
        ({"test": 0.1}, {"groups": ZEROS}, "'test' of 100 examples is empty.*or more groups"),
        ({"test": 0.1}, {"keys": ZEROS}, "of 100 examples is empty"),
    ],
)
def test_what_cannot_be_split_is_refused(held_out, given, message):
    with pytest.raises(UserError, match=message):
        split_indices(100, held_out, 0, **given)
