"""Features in a plane: two dimensions as they are, more by principal components."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.hooks.centers.features import project_to_plane


def test_two_dimensions_stay_as_they_are_and_one_gets_a_zero() -> None:
    points = np.random.default_rng(0).normal(size=(5, 2))
    plane = project_to_plane(points)
    np.testing.assert_array_equal(plane(points), points)
    assert plane.share == 1.0
    line = points[:, :1]
    np.testing.assert_array_equal(project_to_plane(line)(line), np.concatenate([line, np.zeros((5, 1))], axis=1))
    for equal in (np.ones((1, 3)), np.full((4, 3), 7.0)):
        np.testing.assert_allclose(project_to_plane(equal)(equal), 0.0, atol=1e-12)


def test_more_dimensions_are_shown_along_their_largest_variance() -> None:
    generator = np.random.default_rng(1)
    flat = generator.normal(size=(200, 2)) * [5.0, 2.0]
    directions = np.linalg.qr(generator.normal(size=(6, 6)))[0][:2]
    points = flat @ directions + 0.1 * generator.normal(size=(200, 6)) + 30.0
    plane = project_to_plane(points)
    shown = plane(points)
    covariance = np.cov(points.T)
    largest = np.sort(np.linalg.eigvalsh(covariance))[::-1]
    np.testing.assert_allclose(shown.var(axis=0, ddof=1), largest[:2], rtol=1e-6)
    assert plane.share == pytest.approx(largest[:2].sum() / largest.sum())
    np.testing.assert_allclose(shown.mean(axis=0), 0.0, atol=1e-9)
