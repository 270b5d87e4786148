"""Features brought down to a plane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Projection:
    """Map features [..., d] to a plane.

    Attributes:
        origin: [d], what maps to the origin of the plane.
        axes: [d, 2], the directions that become x and y.
        share: of the variance of the features that the plane shows, in [0, 1].
    """

    origin: np.ndarray
    axes: np.ndarray
    share: float

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return points in the plane: [n, 2].

        Args:
            points: [n, d].
        """
        return (points - self.origin) @ self.axes


def project_to_plane(features: np.ndarray) -> Projection:
    """Return what shows features in a plane: two dimensions as they are, more by their first two principal components.

    Of each component the largest entry is positive, so that pictures made one after another do not flip.

    Args:
        features: finite, [n, d], n and d of at least 1.
    """
    features = features.astype(np.float64)
    width = features.shape[1]
    if width <= 2:
        return Projection(np.zeros(width), np.eye(width, 2), 1.0)
    origin = features.mean(axis=0)
    _, sizes, components = np.linalg.svd(features - origin, full_matrices=False)
    axes = np.zeros((width, 2))
    for column, component in enumerate(components[:2]):
        axes[:, column] = component * np.copysign(1.0, component[np.argmax(np.abs(component))])
    total = float(np.sum(sizes**2))
    return Projection(origin, axes, float(np.sum(sizes[:2] ** 2)) / total if total else 1.0)
