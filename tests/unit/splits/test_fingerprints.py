"""Fingerprints tell examples apart: by every bit, and by what images look like."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import tensorflow as tf

from hookline.hooks.splits import copies as module
from hookline.hooks.splits.copies import as_looks, fingerprints, is_image, waves
from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource


def split_of(inputs, rows=None, transform=lambda batch: batch):
    source = ArraySource({"inputs": inputs, "targets": np.zeros(len(inputs), np.int64)}, transform)
    return Split("test", source, np.arange(len(inputs)) if rows is None else np.array(rows))


def images(count=6, side=16, channels=1, seed=0):
    """Return smooth random images, float32 in 0 .. 255."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (count, 5, 5, channels))
    return tf.image.resize(coarse, [side, side], "bicubic").numpy()


def looks_of(inputs):
    return as_looks(waves(tf.constant(inputs)).numpy())


@pytest.mark.parametrize("shape", [(20, 24, 3), (8, 40, 1)])
def test_waves_are_the_lowest_of_the_cosine_transform_of_the_grey_image(shape):
    inputs = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    expected = scipy.fft.dctn(inputs.mean(axis=-1), axes=(1, 2), norm="ortho")[:, :16, :16]
    np.testing.assert_allclose(waves(tf.constant(inputs)), expected, atol=1e-4)


def test_looks_do_not_change_with_contrast_and_hardly_with_noise():
    inputs = images()
    looks, other = looks_of(inputs), looks_of(0.3 * inputs - 5.0)
    np.testing.assert_array_equal(looks.codes, other.codes)
    np.testing.assert_allclose((looks.waves.astype(float) * other.waves).sum(axis=1), 1.0, atol=2e-3)
    noisy = looks_of(inputs + np.random.default_rng(1).normal(scale=2, size=inputs.shape).astype(np.float32))
    assert np.bitwise_count(looks.codes ^ noisy.codes).max() <= 8
    different = np.bitwise_count(looks.codes[:, None] ^ looks.codes)[~np.eye(len(inputs), dtype=bool)]
    assert different.min() > 8
    assert (np.bitwise_count(looks.codes) == 31).all()  # of 63 waves, those above the median


def test_an_image_without_shape_looks_like_nothing():
    inputs = images(4)
    inputs[1], inputs[2, 3, 3] = 77.7, np.nan
    inputs[3] = 1e-4 * inputs[3] + 100.0
    waves_of = looks_of(inputs).waves
    assert np.isfinite(waves_of).all()
    assert (np.abs(waves_of).sum(axis=1) > 0).tolist() == [True, False, False, False]
    assert not looks_of(np.zeros((2, 8, 8, 1), np.float32)).waves.any()


def test_images_are_told_by_their_form():
    shapes = {(8, 8, 1): True, (8, 7, 1): False, (64, 64, 4): True, (8, 8, 5): False, (64,): False}
    assert {shape: is_image(tf.zeros((1, *shape))) for shape in shapes} == shapes


def test_a_digest_is_of_every_bit_of_the_inputs_as_the_source_gives_them():
    inputs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    inputs[3] = inputs[1]
    inputs[4] = np.nextafter(inputs[0], 9)
    found = fingerprints(split_of(inputs), with_looks=True)
    assert found.looks is None
    assert found.digests[3] == found.digests[1]
    assert len(set(found.digests)) == 4
    rounded = fingerprints(
        split_of(inputs, transform=lambda batch: {"inputs": tf.round(batch["inputs"])}), with_looks=False
    )
    assert rounded.digests[4] == rounded.digests[0]
    for dtype in ("int64", "bool", "bfloat16"):
        numbers = split_of(
            np.array([0, 1, 1]), transform=lambda batch, dtype=dtype: {"inputs": tf.cast(batch["inputs"], dtype)}
        )
        digests = fingerprints(numbers, with_looks=True).digests
        assert digests[0] != digests[1] == digests[2]


@pytest.mark.parametrize("rows", [None, [4, 0, 5]])
def test_all_examples_come_once_in_order_whatever_the_batch(rows, monkeypatch):
    inputs = images(7)
    whole = fingerprints(split_of(inputs, rows), with_looks=True)
    monkeypatch.setattr(module, "BATCH_BYTES", 2 * inputs[0].nbytes)
    parts = fingerprints(split_of(inputs, rows), with_looks=True)
    alone = [fingerprints(split_of(inputs, [row]), with_looks=False).digests[0] for row in rows or range(7)]
    assert whole.digests == parts.digests == alone
    np.testing.assert_array_equal(whole.looks.codes, parts.looks.codes)
    np.testing.assert_array_equal(whole.looks.codes, looks_of(inputs[rows or range(7)]).codes)
    assert len(parts.looks.waves) == len(alone)
