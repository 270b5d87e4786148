"""Points of the plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hookline.trainer.errors import UserError
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.source import ArraySource
from hookline.trainer.input.split import split_indices

CENTER = (1.0, 2.0)
FEWEST = 20
"""Points in all, and of each Gaussian."""


def toy_points(
    *, examples: int = 1000, validation_fraction: float = 0.2, test_fraction: float = 0.2, seed: int = 0
) -> Data:
    """Return normal points around (1, 2) with variance 1; class 1 where the second number exceeds the first by 1/2."""
    _check_whole("examples", examples, FEWEST)
    _check_whole("seed", seed, 0)
    points = np.random.default_rng(seed).normal(CENTER, size=(examples, 2)).astype(np.float32)
    labels = (points[:, 1] - points[:, 0] > 0.5).astype(np.int64)
    splits = _splits(points, labels, validation_fraction, test_fraction, seed)
    return Data("toy_points", **splits, input_shape=(2,), classes=2, class_names=(), preparation=Preparation((2,)))


def _splits(points: np.ndarray, labels: np.ndarray, validation: float, test: float, seed: int) -> dict[str, Split]:
    parts = split_indices(len(points), {"validation": validation, "test": test}, seed, labels)
    source = ArraySource({"inputs": points, "targets": labels}, lambda batch: batch)
    return {name: Split(name, source, indices) for name, indices in parts.items()}


@dataclass(frozen=True, eq=False)
class MixtureData(Data):
    """Hold points of a mixture of equal Gaussians, with the mixture itself.

    Attributes:
        centers: float32 [modes, 2], the means of the Gaussians.
        deviation: standard deviation of each along both axes, in the unit of the points.
    """

    centers: np.ndarray = field(default_factory=lambda: np.zeros([0, 2], np.float32))
    deviation: float = 1.0


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
    Networks, 2017, arXiv 1611.02163, have the same at twice the size.
    """
    _check_whole("modes", modes, 2)
    _check_above_0("radius", radius)
    angles = 2.0 * np.pi * np.arange(modes) / modes
    centers = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return _mixture("ring", centers, deviation, examples, validation_fraction, test_fraction, seed)


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

    The defaults are those of Lin et al., PacGAN, 2018, arXiv 1712.04086, at a quarter of the size: in [-1, 1], as the
    values of images are. Measures in standard deviations are the same.
    """
    _check_whole("side", side, 2)
    _check_above_0("spacing", spacing)
    places = spacing * (np.arange(side) - (side - 1) / 2.0)
    centers = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2)
    return _mixture("grid", centers, deviation, examples, validation_fraction, test_fraction, seed)


def _mixture(
    name: str,
    centers: np.ndarray,
    deviation: float,
    examples: int,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
) -> MixtureData:
    _check_above_0("deviation", deviation)
    modes = len(centers)
    _check_whole("examples", examples, FEWEST * modes)
    _check_whole("seed", seed, 0)
    labels = np.arange(examples, dtype=np.int64) % modes
    noise = np.random.default_rng(seed).normal(scale=deviation, size=(examples, 2))
    points = (centers[labels] + noise).astype(np.float32)
    return MixtureData(
        name,
        **_splits(points, labels, validation_fraction, test_fraction, seed),
        input_shape=(2,),
        classes=modes,
        class_names=(),
        preparation=Preparation((2,)),
        centers=centers.astype(np.float32),
        deviation=float(deviation),
    )


def _check_whole(name: str, value: Any, least: int) -> None:
    if not is_whole_number(value) or value < least:
        raise UserError(f"Received {name} {value!r}; expected a whole number of at least {least}.")


def _check_above_0(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
        raise UserError(f"Received {name} {value!r}; expected a number above 0.")
