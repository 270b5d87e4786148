"""The split guard: what stands in two splits is found, named and written down; what is right is let through."""

from __future__ import annotations

import csv
import warnings

import numpy as np
import pytest
import tensorflow as tf

from hooks.monitors.split_guard import SplitGuard, find_leaks
from trainer.errors import UserError
from trainer.input.augment import Augment, Augmentation
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource

SIZES = {"train": 40, "validation": 12, "test": 12}
HEADER = ["split", "example", "original_split", "original", "kind", "correlation"]


def images(seed=0, side=16):
    """Return different smooth images for all splits, float32 [64, side, side, 1] in 0 .. 255."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (sum(SIZES.values()), 6, 6, 1))
    return tf.image.resize(coarse, [side, side], "bicubic").numpy()


def source_of(inputs):
    return ArraySource({"inputs": inputs, "targets": np.zeros(len(inputs), np.int64)}, lambda batch: batch)


def splits_of(inputs):
    """Return splits of one source: test first, so that rows and positions differ."""
    source, stops = source_of(inputs), np.cumsum([SIZES["test"], SIZES["train"], SIZES["validation"]])
    test, train, validation = np.split(np.arange(len(inputs)), stops[:-1])
    rows = {"train": train, "validation": validation, "test": test}
    return {name: Split(name, source, rows) for name, rows in rows.items()}


def leaks(inputs, nearer=0.35):
    found = find_leaks(splits_of(inputs), nearer=nearer)
    return [(leak.split, leak.example, leak.original_split, leak.original, leak.kind) for leak in found]


def leaking():
    """Return inputs with an exact and two near copies; rows of test are 0 .. 11, of train 12 .. 51."""
    inputs = images()
    inputs[3] = inputs[20]
    inputs[55] = 0.8 * inputs[12] + 20.0
    inputs[5] = inputs[60] + np.random.default_rng(0).normal(scale=3, size=inputs[5].shape)
    return inputs


NEAR = [
    ("validation", "row 55", "train", "row 12", "near"),
    ("test", "row 5", "validation", "row 60", "near"),
]
EXACT = ("test", "row 3", "train", "row 20", "exact")


def test_copies_are_found_in_every_pair_of_splits_and_named_by_their_rows():
    assert leaks(leaking()) == [NEAR[0], EXACT, NEAR[1]]
    assert leaks(leaking(), nearer=0.0) == [EXACT]


def test_different_images_share_nothing():
    for seed in range(3):
        assert leaks(images(seed)) == []


def test_copies_within_a_split_are_no_leak():
    inputs = images()
    inputs[13], inputs[1], inputs[53] = inputs[12], inputs[0], 0.9 * inputs[52]
    assert leaks(inputs) == []


def test_an_example_of_three_splits_is_a_copy_of_the_first():
    inputs = images()
    inputs[3] = inputs[53] = inputs[21] = inputs[20]
    assert leaks(inputs) == [("validation", "row 53", "train", "row 20", "exact"), EXACT]


def test_vectors_and_tiny_images_are_compared_by_their_bits():
    vectors = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    vectors[3] = vectors[20]
    vectors[4] = 1.001 * vectors[21]
    assert leaks(vectors) == [EXACT]
    tiny = images(side=7)
    tiny[3] = tiny[20]
    assert leaks(tiny) == [EXACT]


def test_splits_of_several_sources_and_shapes_are_compared_by_what_they_hold():
    inputs = leaking()
    rows = {"train": inputs[12:52], "test": inputs[:12]}
    splits = {name: Split(name, source_of(part), np.arange(len(part))) for name, part in rows.items()}
    (leak,) = find_leaks(splits, nearer=0.35)
    assert (leak.example, leak.original, leak.correlation) == ("row 3", "row 8", 1.0)
    small = source_of(images(1, side=12)[:12])
    assert len(find_leaks({**splits, "other": Split("other", small, np.arange(12))}, nearer=0.35)) == 1


def test_rows_that_have_names_are_named():
    splits = splits_of(leaking())
    named = {
        name: Split(name, split.source, split.indices, lambda row: f"photos/{row}.jpg")
        for name, split in splits.items()
    }
    assert find_leaks(named, nearer=0.0)[0].example == "photos/3.jpg"


class Darken(Augment):
    """Leave nothing of an image."""

    name = "darken"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": 0.0 * batch["inputs"]}


def run_of(make_run, inputs):
    splits = splits_of(inputs)
    augmentation = Augmentation([Darken()], classes=1)
    training = TrainingBatches(splits.pop("train"), batch_size=8, seed=0, augmentation=augmentation)
    return make_run(training=training, held_out=splits)


def guard(**options):
    hook = SplitGuard(**options)
    hook.name = "split_guard"
    return hook


def test_a_warning_names_some_and_a_table_all_and_the_summary_says_the_cost(make_run):
    run, hook = run_of(make_run, leaking()), guard()
    with pytest.warns(UserWarning, match="share examples") as caught:
        hook.on_fit_begin(run)
    path = run.directory / "split_guard.csv"
    assert str(caught[0].message) == (
        "Splits share examples: 1 of test is the same as an example of train, 1 of validation is a near copy of an "
        "example of train, 1 of test is a near copy of an example of validation; such as validation row 55 and train "
        f"row 12, test row 3 and train row 20, test row 5 and validation row 60. All of them: {path}."
    )
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == HEADER
    assert [tuple(row[:5]) for row in rows] == [NEAR[0], EXACT, NEAR[1]]
    assert rows[1][5] == "1.0000"
    assert 0.99 < float(rows[2][5]) < 1.0
    summary = hook.summary()
    assert summary["exact"] == {"test in train": 1}
    assert summary["near"] == {"validation in train": 1, "test in validation": 1}
    assert summary["examples"] == 64
    assert 0.0 < summary["seconds"] < 60.0


def test_a_copy_can_end_the_run(make_run):
    with pytest.raises(UserError, match=r"share examples: 1 of test.*or set hooks.split_guard.on_leak=warn\.$"):
        guard(on_leak="stop", near=0).on_fit_begin(run_of(make_run, leaking()))


def test_without_a_copy_it_says_nothing(make_run):
    run, hook = run_of(make_run, images()), guard(on_leak="stop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hook.on_fit_begin(run)
        guard().on_fit_begin(make_run())
    assert hook.summary()["exact"] == hook.summary()["near"] == {}
    assert not (run.directory / "split_guard.csv").exists()
    assert hook.state_dict() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_leak": "halt"}, "Unknown on_leak 'halt'. Expected one of: stop, warn"),
        ({"near": 1.0}, "Invalid near: 1.0. Expected a number of at least 0, below 1, such as 0.35"),
        ({"near": -0.1}, "Invalid near: -0.1"),
        ({"near": True}, "Invalid near: True"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        SplitGuard(**options)
