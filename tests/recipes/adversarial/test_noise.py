"""Noise: its distribution, and that generator n draws the same in every form."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.adversarial.settings import NOISE_KINDS as KINDS
from hookline.recipes.adversarial.settings import Noise


class Seeds:
    """Stand for an objective's forward: a seed for each salt."""

    def __init__(self, run=0):
        self.run, self.salts = run, []

    def stateless_seed(self, salt):
        self.salts.append(salt)
        digest = hashlib.sha256(f"{self.run} {salt}".encode()).digest()
        return tf.constant([int.from_bytes(digest[:3]), int.from_bytes(digest[3:6])])


@pytest.mark.parametrize("kind", KINDS)
def test_noise_has_its_distribution(kind):
    noise = Noise(4, kind).draw(Seeds(), 3, 4000, use="noise").numpy()
    assert noise.shape == (3, 4000, 4)
    assert noise.dtype == np.float32
    expected = {"normal": 1.0, "uniform": 1.0 / 3.0}[kind]
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.06)
    np.testing.assert_allclose(noise.var(axis=1), expected, rtol=0.08)
    assert (np.abs(noise).max() <= 1.0) == (kind == "uniform")


def test_each_generator_draws_with_a_seed_of_its_own():
    seeds = Seeds()
    noise = Noise(2).draw(seeds, 3, 50, use="noise").numpy()
    assert len(set(seeds.salts)) == 3
    assert len(np.unique(noise)) == noise.size
    np.testing.assert_array_equal(Noise(2).draw(Seeds(), 2, 50, use="noise"), noise[:2])  # whoever else draws
    assert not np.array_equal(Noise(2).draw(Seeds(), 3, 50, use="sample"), noise)
    assert not np.array_equal(Noise(2).draw(Seeds(run=1), 3, 50, use="noise"), noise)
