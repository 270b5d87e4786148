"""Fingerprints tell examples apart: by every bit, and by what images look like."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.splits import copies as module
from hookline.hooks.splits.copies import Looks, as_looks, fingerprints, like_codes, near_copies, waves
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


WIDTH = 255


def found_pairs(queries, references):
    parts = list(like_codes(queries, references))
    return [pair for part in parts for pair in zip(*(each.tolist() for each in part), strict=True)]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), bits=st.integers(0, 24), block=st.sampled_from([1, 5, 2**22]))
def test_like_codes_are_all_pairs_within_eight_bits_each_once(seed, bits, block):
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 2**64, 4, np.uint64)
    flips = [sum(1 << int(bit) for bit in rng.choice(64, rng.integers(0, bits + 1), replace=False)) for _ in range(50)]
    codes = rng.choice(base, 50) ^ np.array(flips, np.uint64)
    queries, references = codes[:20], codes[20:]
    counts = np.bitwise_count(queries[:, None] ^ references)
    expected = [(int(q), int(r), int(counts[q, r])) for q, r in zip(*np.nonzero(counts <= 8), strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        assert sorted(found_pairs(queries, references)) == expected


def test_eight_bits_may_differ_wherever_they_stand():
    none, apart = np.zeros(1, np.uint64), np.array([0x0101010101010101], np.uint64)
    assert found_pairs(none, apart) == [(0, 0, 8)]
    assert found_pairs(none, np.array([0x0101010101010103], np.uint64)) == []
    assert found_pairs(none[:0], none) == found_pairs(none, none[:0]) == []


def looks_at(vectors, codes=0):
    """Return looks of length 1 in given directions; without codes, all have the same."""
    vectors = np.asarray(vectors, float)
    waves = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return Looks(waves.astype(np.float16), np.zeros(len(waves), np.uint64) + np.uint64(codes))


def turned(vector, correlation, rng):
    """Return a vector that has a correlation with another."""
    vector = vector / np.linalg.norm(vector)
    other = rng.normal(size=vector.shape)
    other -= (other @ vector) * vector
    return correlation * vector + np.sqrt(1 - correlation**2) * other / np.linalg.norm(other)


def found(looks, start, stop=None, nearer=0.35):
    copies, originals, correlations = near_copies(looks, start, stop or len(looks.codes), nearer=nearer)
    return dict(zip(copies.tolist(), originals.tolist(), strict=True)), correlations


def test_a_copy_among_different_images_is_found_with_its_original():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, WIDTH))
    vectors[50], vectors[57] = turned(vectors[13], 0.97, rng), turned(vectors[2], 0.95, rng)
    vectors[58] = turned(vectors[3], 0.85, rng)  # too little to be sure
    vectors[20] = turned(vectors[55], 0.97, rng)
    pairs, correlations = found(looks_at(vectors), 50)
    assert pairs == {50: 13, 55: 20, 57: 2}
    np.testing.assert_allclose(correlations, [0.97, 0.97, 0.95], atol=1e-3)
    assert found(looks_at(vectors), 50, 56)[0] == {50: 13, 55: 20}  # of the rest, nothing is asked
    assert found(looks_at(vectors), 0)[0] == {}  # nothing stands before them


def alike(count, correlation, rng):
    """Return images of which any two have about a correlation, as digits of one class have."""
    common = rng.normal(size=WIDTH)
    return np.stack([turned(common, np.sqrt(correlation), rng) for _ in range(count)])


def test_images_alike_by_nature_are_no_copies_but_a_copy_among_them_is():
    rng = np.random.default_rng(0)
    vectors = alike(80, 0.96, rng)
    assert found(looks_at(vectors), 60)[0] == {}
    vectors[70] = turned(vectors[5], 0.9975, rng)  # distance 0.07; the others' is 0.28
    assert found(looks_at(vectors), 60)[0] == {70: 5}
    vectors[70] = turned(vectors[5], 0.99, rng)
    assert found(looks_at(vectors), 60)[0] == {}
    assert found(looks_at(vectors), 60, nearer=0.6)[0] == {70: 5}
