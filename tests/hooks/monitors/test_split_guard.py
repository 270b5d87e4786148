"""The split guard: what stands in two splits is found, named and written down; what is right is let through."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.monitors.split_guard import SplitGuard, find_leaks
from hookline.trainer.errors import UserError
from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource

NEAR = [("validation", "row 55", "train", "row 12", "near"), ("test", "row 5", "validation", "row 60", "near")]
EXACT = ("test", "row 3", "train", "row 20", "exact")


def images(seed=0, side=16):
    """Return different smooth images for all splits, float32 [64, side, side, 1] in 0 .. 255."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (64, 6, 6, 1))
    return tf.image.resize(coarse, [side, side], "bicubic").numpy()


def splits_of(inputs, *names):
    """Return splits of one source: test has rows 0 .. 11, train 12 .. 51, so that rows and positions differ."""
    source = ArraySource({"inputs": inputs, "targets": np.zeros(len(inputs), np.int64)}, lambda batch: batch)
    test, train, validation = np.split(np.arange(len(inputs)), [12, 52])
    rows = {"train": train, "validation": validation, "test": test}
    return {name: Split(name, source, rows, *names) for name, rows in rows.items()}


def leaks(inputs, nearer=0.35):
    found = find_leaks(splits_of(inputs), nearer=nearer)
    return [(leak.split, leak.example, leak.original_split, leak.original, leak.kind) for leak in found]


def leaking():
    """Return inputs with an exact and two near copies."""
    inputs = images()
    inputs[3] = inputs[20]
    inputs[55] = 0.8 * inputs[12] + 20.0
    inputs[5] = inputs[60] + np.random.default_rng(0).normal(scale=3, size=inputs[5].shape)
    return inputs


def test_copies_are_found_in_every_pair_of_splits_and_named_by_their_rows():
    assert leaks(leaking()) == [NEAR[0], EXACT, NEAR[1]]
    assert leaks(leaking(), nearer=0.0) == [EXACT]
    assert find_leaks(splits_of(leaking(), "photos/{}.jpg".format), nearer=0.0)[0].example == "photos/3.jpg"
    inputs = images()
    inputs[3] = inputs[53] = inputs[21] = inputs[20]  # of three splits: a copy of the first
    assert leaks(inputs) == [("validation", "row 53", "train", "row 20", "exact"), EXACT]


def test_different_images_and_copies_within_a_split_are_no_leak():
    inputs = images()
    assert leaks(images(1)) == leaks(inputs) == []
    inputs[13], inputs[1], inputs[53] = inputs[12], inputs[0], 0.9 * inputs[52]
    assert leaks(inputs) == []


def test_vectors_and_tiny_images_are_compared_by_their_bits():
    for inputs in (np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32), images(side=7)):
        inputs[3], inputs[4] = inputs[20], 1.001 * inputs[21]
        assert leaks(inputs) == [EXACT]


class Darken(Augment):
    """Leave nothing of an image."""

    name = "darken"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": 0.0 * batch["inputs"]}


def begun(make_run, inputs, **options):
    splits, hook = splits_of(inputs), SplitGuard(**options)
    augmentation = Augmentation([Darken()], classes=1)
    training = TrainingBatches(splits.pop("train"), batch_size=8, seed=0, augmentation=augmentation)
    run, hook.name = make_run(training=training, held_out=splits), "split_guard"
    hook.on_fit_begin(run)
    return hook.summary(), run.directory / "split_guard.csv"


def test_a_warning_names_some_and_a_table_all_and_the_summary_counts(make_run):
    with pytest.warns(UserWarning, match="1 of test is the same as an example of train.*test row 3 and train row 20"):
        summary, path = begun(make_run, leaking())
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["split", "example", "original_split", "original", "kind", "correlation"]
    assert [tuple(row[:5]) for row in rows] == [NEAR[0], EXACT, NEAR[1]]
    assert (rows[1][5], 0.99 < float(rows[2][5]) < 1.0) == ("1.0000", True)
    assert (summary["exact"], summary["examples"]) == ({"test in train": 1}, 64)
    assert summary["near"] == {"validation in train": 1, "test in validation": 1}


def test_a_copy_can_end_the_run_and_without_one_it_says_nothing(make_run):
    summary, path = begun(make_run, images(), on_leak="stop")  # a warning would be an error
    assert summary["exact"] == summary["near"] == {}
    assert not path.exists()
    with pytest.raises(UserError, match=r"1 of test.*on_leak=warn"):
        begun(make_run, leaking(), on_leak="stop", near=0)
