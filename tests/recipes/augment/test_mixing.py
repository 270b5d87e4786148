"""Augmentations that mix examples: one weight for inputs and targets, random partners, the papers' distributions."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from hookline.recipes.augment.mixing import Cutmix, Mixup, beta
from hookline.trainer.input.order import example_seeds
from hookline.trainer.objective import SOFT_TARGETS

PROPERTY = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def seeds_of(count, step=0):
    return example_seeds(3, tf.constant(step, tf.int64), tf.range(count, dtype=tf.int64))


def constant_images(count, side=6):
    """Return constant images, each with its position as its value, so that mixtures can be taken apart."""
    return np.broadcast_to(np.arange(count, dtype=np.float32)[:, None, None, None], (count, side, side, 1)).copy()


@pytest.mark.parametrize("alpha", [0.05, 0.7, 1.0, 30.0])
def test_weights_follow_the_beta_distribution(alpha):
    found = beta(seeds_of(20_000), "a", alpha).numpy()
    assert found.dtype == np.float32
    assert 0.0 <= found.min() <= found.max() <= 1.0
    lower = found[found < 0.5].astype(np.float64)  # near 1, float32 has too few numbers to show the distribution
    assert stats.kstest(lower, lambda x: 2.0 * stats.beta(alpha, alpha).cdf(x)).statistic < 0.02
    assert np.mean(found < 0.5) == pytest.approx(0.5, abs=0.015)
    assert found.mean() == pytest.approx(0.5, abs=0.02)
    assert found.var() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.04)


@PROPERTY
@given(step=st.integers(0, 1000))
def test_mixup_uses_same_weights_for_inputs_and_targets(step, change):
    # Inputs are one-hot rows of their position, so the mixture shows the weights of both partners.
    count = 12
    inputs = np.eye(count, dtype=np.float32).reshape(count, 3, 4, 1)
    labels = np.arange(count) % 3
    changed = change(Mixup(alpha=1.0), inputs=inputs, targets=labels, step=step)
    weights = changed["inputs"].reshape(count, count)
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=1e-6)
    assert (np.count_nonzero(weights, axis=1) <= 2).all()
    assert (np.count_nonzero(weights - np.diag(np.diag(weights)), axis=0) <= 1).all(), "a partner of two"
    np.testing.assert_allclose(weights @ np.eye(3)[labels], changed[SOFT_TARGETS], atol=1e-6)
    assert len(np.unique(np.diag(weights))) > count // 2, "each example has a weight of its own"


@PROPERTY
@given(height=st.integers(2, 9), width=st.integers(2, 9), step=st.integers(0, 1000))
def test_cutmix_target_shares_are_pixel_areas(height, width, step, change):
    count = 12
    inputs = np.broadcast_to(np.arange(count, dtype=np.float32)[:, None, None, None], (count, height, width, 1)).copy()
    labels = np.arange(count) % 3
    changed = change(Cutmix(alpha=1.0, probability=1.0), inputs=inputs, targets=labels, step=step)
    for number, (image, shares) in enumerate(zip(changed["inputs"][..., 0], changed[SOFT_TARGETS], strict=True)):
        taken = image != number
        assert len(np.unique(image[taken])) <= 1, "one partner"
        rows, columns = taken.any(1), taken.any(0)
        np.testing.assert_array_equal(taken, rows[:, None] & columns[None, :], "a rectangle")
        expected = np.zeros(3)
        for value, pixels in zip(*np.unique(image, return_counts=True), strict=True):
            expected[labels[int(value)]] += pixels / image.size
        np.testing.assert_allclose(shares, expected, atol=1e-6)


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
def test_probability_is_share_of_mixed_examples(kind, change):
    count = 3_000
    changed = change(kind(alpha=2.0, probability=0.3), inputs=constant_images(count, 16), targets=np.arange(count) % 3)
    mixed = (changed["inputs"] != np.arange(count)[:, None, None, None]).any((1, 2, 3))
    assert mixed.mean() == pytest.approx(0.3, abs=0.04)
    untouched = np.eye(3, dtype=np.float32)[np.arange(count) % 3][~mixed]
    np.testing.assert_array_equal(changed[SOFT_TARGETS][~mixed], untouched)
