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


def toy_points(
    *, examples: int = 1000, validation_fraction: float = 0.2, test_fraction: float = 0.2, seed: int = 0
) -> Data:
    """Return normal points around (1, 2) with variance 1; class 1 where the second number exceeds the first by 1/2."""
    if not is_whole_number(examples) or examples < FEWEST:
        raise UserError(f"Received examples {examples!r}; expected a whole number of at least {FEWEST}.")
    if not is_whole_number(seed) or seed < 0:
        raise UserError(f"Received seed {seed!r}; expected a whole number of at least 0.")
    points = np.random.default_rng(seed).normal(CENTER, size=(examples, 2)).astype(np.float32)
    labels = (points[:, 1] - points[:, 0] > 0.5).astype(np.int64)
    parts = split_indices(examples, {"validation": validation_fraction, "test": test_fraction}, seed, labels)
    source = ArraySource({"inputs": points, "targets": labels}, lambda batch: batch)
    splits = {name: Split(name, source, indices) for name, indices in parts.items()}
    form = Preparation((2,))
    train, validation, test = splits["train"], splits["validation"], splits["test"]
    return Data(
        "toy_points", train=train, validation=validation, test=test, input_shape=(2,), classes=2, preparation=form
    )


FEWEST_PER_MODE = 20


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
    if not is_whole_number(modes) or modes < 2:
        raise UserError(f"Received modes {modes!r}; expected a whole number of at least 2.")
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
    if not is_whole_number(side) or side < 2:
        raise UserError(f"Received side {side!r}; expected a whole number of at least 2.")
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
    if not is_whole_number(examples) or examples < FEWEST_PER_MODE * modes:
        raise UserError(
            f"Received examples {examples!r}; expected a whole number of at least {FEWEST_PER_MODE * modes}, "
            f"{FEWEST_PER_MODE} for each of {modes} Gaussians."
        )
    if not is_whole_number(seed) or seed < 0:
        raise UserError(f"Received seed {seed!r}; expected a whole number of at least 0.")
    labels = np.arange(examples, dtype=np.int64) % modes
    noise = np.random.default_rng(seed).normal(scale=deviation, size=(examples, 2))
    points = (centers[labels] + noise).astype(np.float32)
    parts = split_indices(examples, {"validation": validation_fraction, "test": test_fraction}, seed, labels)
    source = ArraySource({"inputs": points, "targets": labels}, lambda batch: batch)
    splits = {split: Split(split, source, indices) for split, indices in parts.items()}
    return MixtureData(
        name,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        input_shape=(2,),
        classes=modes,
        preparation=Preparation((2,)),
        centers=centers.astype(np.float32),
        deviation=float(deviation),
    )


def _check_above_0(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
        raise UserError(f"Received {name} {value!r}; expected a number above 0.")
