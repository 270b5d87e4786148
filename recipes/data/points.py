"""Points in the plane."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hookline.recipes.data.splits import data_of_parts
from hookline.trainer.input.data import ArraySource, Data
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.split import split_indices


@dataclass(frozen=True, eq=False)
class MixtureData(Data):
    """Hold points of a mixture of equal Gaussians, with their means and their standard deviation along both axes."""

    centers: np.ndarray = field(default_factory=lambda: np.zeros([0, 2], np.float32))  # float32 [modes, 2]
    deviation: float = 1.0


def toy_points(
    *, examples: int = 1000, validation_fraction: float = 0.2, test_fraction: float = 0.2, seed: int = 0
) -> Data:
    """Return Gaussian points around (1, 2) with variance 1; the class is 1 where y - x exceeds 1/2."""
    points = np.random.default_rng(seed).normal((1.0, 2.0), size=(examples, 2)).astype(np.float32)
    labels = (points[:, 1] - points[:, 0] > 0.5).astype(np.int64)
    return _data("toy_points", points, labels, 2, (validation_fraction, test_fraction), seed)


def ring(
    *,
    modes: int = 8,
    radius: float = 1.0,
    deviation: float = 0.01,
    examples: int = 50_000,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> MixtureData:
    """Return points of equal Gaussians, evenly spaced on a circle around the origin.

    The defaults are those of Lin et al., PacGAN, 2018, arXiv 1712.04086. Metz et al., Unrolled Generative Adversarial
    Networks, 2017, arXiv 1611.02163, use the same at twice the size.
    """
    angles = 2.0 * np.pi * np.arange(modes) / modes
    centers = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return _mixture("ring", centers, deviation, examples, (validation_fraction, test_fraction), seed)


def grid(
    *,
    side: int = 5,
    spacing: float = 0.5,
    deviation: float = 0.0125,
    examples: int = 100_000,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> MixtureData:
    """Return points of equal Gaussians, in rows and columns around the origin.

    The defaults are those of Lin et al., PacGAN, 2018, arXiv 1712.04086, scaled by 1/4 to [-1, 1], the range of images.
    Metrics in standard deviations are unaffected.
    """
    places = spacing * (np.arange(side) - (side - 1) / 2.0)
    centers = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2)
    return _mixture("grid", centers, deviation, examples, (validation_fraction, test_fraction), seed)


def _mixture(
    name: str, centers: np.ndarray, deviation: float, examples: int, shares: tuple[float, float], seed: int
) -> MixtureData:
    labels = np.arange(examples, dtype=np.int64) % len(centers)
    noise = np.random.default_rng(seed).normal(scale=deviation, size=(examples, 2))
    points = (centers[labels] + noise).astype(np.float32)
    data = _data(name, points, labels, len(centers), shares, seed)
    return MixtureData(**vars(data), centers=centers.astype(np.float32), deviation=float(deviation))


def _data(
    name: str, points: np.ndarray, labels: np.ndarray, classes: int, shares: tuple[float, float], seed: int
) -> Data:
    source = ArraySource({"inputs": points, "targets": labels}, lambda batch: batch)
    parts = split_indices(len(points), dict(zip(("validation", "test"), shares, strict=True)), seed, labels)
    form = Preparation((2,))
    return data_of_parts(name, {"train": source}, parts, preparation=form, classes=classes, class_names=())
