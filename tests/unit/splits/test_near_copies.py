"""The search for near copies: complete among like codes, and not misled by images that are alike by nature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.splits import copies as module
from hookline.hooks.splits.copies import Looks, like_codes, near_copies

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


@pytest.mark.parametrize("others", [8, 9])
def test_nine_others_may_be_as_near_as_a_copy_and_no_more(others):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, WIDTH))
    vectors[39] = turned(vectors[0], 0.97, rng)
    for row in range(1, 1 + others):
        vectors[20 + row] = turned(vectors[39], 0.95, rng)
    assert bool(found(looks_at(vectors), 39)[0]) == (others == 8)  # with the original, there are 9 or 10


def test_the_same_but_for_rounding_is_a_copy_however_many_there_are():
    rng = np.random.default_rng(0)
    common = rng.normal(size=WIDTH)
    many = np.stack([turned(common, 0.99995, rng) for _ in range(30)])
    assert len(found(looks_at(many), 20)[0]) == 10
    assert found(looks_at(many[:2]), 1)[0] == {1: 0}
    few = np.stack([turned(common, 0.99, rng) for _ in range(4)])
    assert found(looks_at(few), 2)[0] == {}  # among so few nobody can say


def test_unlike_codes_and_images_without_shape_are_not_compared():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, WIDTH))
    vectors[29] = turned(vectors[0], 0.98, rng)
    for bits, expected in ((8, {29: 0}), (9, {})):
        codes = [0] * 29 + [2**bits - 1]
        assert found(looks_at(vectors, np.array(codes, np.uint64)), 20)[0] == expected
    flat = looks_at(vectors)
    flat.waves[[3, 25, 26]] = 0.0
    assert found(flat, 20)[0] == {29: 0}


def test_the_parts_in_which_it_works_do_not_show(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(90, WIDTH))
    for row in range(60, 90, 2):
        vectors[row] = turned(vectors[row - 60], rng.uniform(0.9, 0.999), rng)
    codes = rng.integers(0, 2**64, 4, np.uint64)[np.arange(90) % 4]
    looks = looks_at(vectors, codes)
    whole = found(looks, 60)
    assert len(whole[0]) == 15
    monkeypatch.setattr(module, "AT_ONCE", 7)
    monkeypatch.setattr(module, "BLOCK", 600)
    parts = found(looks, 60)
    assert parts[0] == whole[0]
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-6)
