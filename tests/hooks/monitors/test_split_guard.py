"""The split guard: examples in two splits are found, named and written to a file; disjoint splits pass."""

import csv

import numpy as np
import pytest
import scipy.fft
import tensorflow as tf

from hookline.hooks.monitors import split_guard
from hookline.hooks.monitors.split_guard import (
    Looks,
    SplitGuard,
    as_looks,
    find_leaks,
    fingerprints,
    near_copies,
    waves,
)
from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from tests.support.refusals import assert_refused

NEAR = [("validation", "row 55", "train", "row 12", "near"), ("test", "row 5", "validation", "row 60", "near")]
EXACT = ("test", "row 3", "train", "row 20", "exact")


def images(seed=0, side=16, count=64):
    """Return different smooth images, float32 [count, side, side, 1] in 0 .. 255."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (count, 6, 6, 1))
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


def test_copies_are_found_in_every_pair_of_splits_and_named_by_row():
    assert leaks(leaking()) == [NEAR[0], EXACT, NEAR[1]]
    assert leaks(leaking(), nearer=0.0) == [EXACT]
    assert find_leaks(splits_of(leaking(), "photos/{}.jpg".format), nearer=0.0)[0].example == "photos/3.jpg"
    inputs = images()
    inputs[3] = inputs[53] = inputs[21] = inputs[20]  # in three splits: copies of the first
    assert leaks(inputs) == [("validation", "row 53", "train", "row 20", "exact"), EXACT]


def test_different_images_and_copies_within_one_split_are_no_leaks():
    inputs = images()
    assert leaks(images(1)) == leaks(inputs) == []
    inputs[13], inputs[1], inputs[53] = inputs[12], inputs[0], 0.9 * inputs[52]
    assert leaks(inputs) == []


def test_vectors_and_tiny_images_are_compared_by_their_bits():
    for inputs in (np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32), images(side=7)):
        inputs[3], inputs[4] = inputs[20], 1.001 * inputs[21]
        assert leaks(inputs) == [EXACT]


class Darken(Augment):
    """Make every image black."""

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


def test_leaks_are_in_the_warning_the_table_and_the_summary(make_run):
    with pytest.warns(UserWarning, match="1 exact test in train, .*test row 3 and train row 20"):
        summary, path = begun(make_run, leaking())
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["split", "example", "original_split", "original", "kind", "correlation"]
    assert [tuple(row[:5]) for row in rows] == [NEAR[0], EXACT, NEAR[1]]
    assert (rows[1][5], 0.99 < float(rows[2][5]) < 1.0) == ("1.0000", True)
    assert (summary["exact"], summary["examples"]) == ({"test in train": 1}, 64)
    assert summary["near"] == {"validation in train": 1, "test in validation": 1}


def test_leak_can_stop_the_run_and_clean_splits_give_no_warning(make_run):
    summary, path = begun(make_run, images(), on_leak="stop")  # a warning would be an error
    assert summary["exact"] == summary["near"] == {}
    assert not path.exists()
    assert_refused(r"1 exact test in train.*on_leak=warn", begun, make_run, leaking(), on_leak="stop", near=0)


# Fingerprints: a digest of every bit, and what an image looks like.


def split_of(inputs, rows=None, transform=lambda batch: batch):
    source = ArraySource({"inputs": inputs, "targets": np.zeros(len(inputs), np.int64)}, transform)
    return Split("test", source, np.arange(len(inputs)) if rows is None else np.array(rows))


def test_waves_are_the_lowest_dct_coefficients_of_the_grey_image():
    inputs = np.random.default_rng(0).normal(size=(3, 20, 24, 3)).astype(np.float32)
    expected = scipy.fft.dctn(inputs.mean(axis=-1), axes=(1, 2), norm="ortho")[:, :16, :16]
    np.testing.assert_allclose(waves(tf.constant(inputs)), expected, atol=1e-4)


def test_flat_and_nonfinite_images_have_no_waves():
    inputs = images(count=4)
    inputs[1], inputs[2, 3, 3] = 77.7, np.nan
    inputs[3] = 1e-4 * inputs[3] + 100.0
    waves_of = as_looks(waves(tf.constant(inputs)).numpy()).waves
    assert np.isfinite(waves_of).all()
    assert (np.abs(waves_of).sum(axis=1) > 0).tolist() == [True, False, False, False]


def test_digest_covers_every_bit_of_the_transformed_inputs():
    inputs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    inputs[3] = inputs[1]
    inputs[4] = np.nextafter(inputs[0], 9)
    digests, looks = fingerprints(split_of(inputs), with_looks=True)
    assert looks is None
    assert digests[3] == digests[1]
    assert len(set(digests)) == 4
    rounded, _ = fingerprints(
        split_of(inputs, transform=lambda batch: {"inputs": tf.round(batch["inputs"])}), with_looks=False
    )
    assert rounded[4] == rounded[0]


WIDTH = 255


def looks_at(vectors, codes=0):
    """Return looks of length 1 in given directions; by default all share one code."""
    vectors = np.asarray(vectors, float)
    waves = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return Looks(waves.astype(np.float16), np.zeros(len(waves), np.uint64) + np.asarray(codes, np.uint64))


def turned(vector, correlation, rng):
    """Return a vector with a given correlation to another."""
    vector = vector / np.linalg.norm(vector)
    other = rng.normal(size=vector.shape)
    other -= (other @ vector) * vector
    return correlation * vector + np.sqrt(1 - correlation**2) * other / np.linalg.norm(other)


def found(looks, start, stop=None, nearer=0.35):
    copies, originals, correlations = near_copies(looks, start, stop or len(looks.codes), nearer=nearer)
    return dict(zip(copies.tolist(), originals.tolist(), strict=True)), correlations


def test_near_copy_among_different_images_is_found_with_its_original(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, WIDTH))
    vectors[50], vectors[57] = turned(vectors[13], 0.97, rng), turned(vectors[2], 0.95, rng)
    vectors[58] = turned(vectors[3], 0.85, rng)  # too weak to be sure
    vectors[20] = turned(vectors[55], 0.97, rng)
    pairs, correlations = found(looks_at(vectors), 50)
    assert pairs == {50: 13, 55: 20, 57: 2}
    np.testing.assert_allclose(correlations, [0.97, 0.97, 0.95], atol=1e-3)
    assert found(looks_at(vectors), 50, 56)[0] == {50: 13, 55: 20}  # the rest is not searched
    monkeypatch.setattr(split_guard, "PAIRS", 3 * len(vectors))  # compared in parts
    assert found(looks_at(vectors), 50)[0] == pairs
    codes = np.zeros(60, np.uint64)
    codes[[50, 57]] = 0x0101010101010101, 0x0101010101010103
    assert found(looks_at(vectors, codes), 50)[0] == {50: 13, 55: 20}  # codes that differ in more than 8 bits


def test_similar_images_are_no_copies_but_a_copy_among_them_is_found():
    rng = np.random.default_rng(0)
    common = rng.normal(size=WIDTH)
    vectors = np.stack([turned(common, np.sqrt(0.96), rng) for _ in range(80)])  # any two have a correlation of 0.96
    assert found(looks_at(vectors), 60)[0] == {}
    vectors[70] = turned(vectors[5], 0.9975, rng)  # distance 0.07; the others' is 0.28
    assert found(looks_at(vectors), 60)[0] == {70: 5}
    vectors[70] = turned(vectors[5], 0.99, rng)
    assert found(looks_at(vectors), 60)[0] == {}
    assert found(looks_at(vectors), 60, nearer=0.6)[0] == {70: 5}
