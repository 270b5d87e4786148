"""Disjoint index sets, made once and before any shuffling."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.errors import UserError
from trainer.input.checks import is_whole_number


def split_indices(
    size: int, fractions: Mapping[str, float], seed: int, labels: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Split the rows 0 .. size - 1 into held-out parts and "train", which is the rest.

    A pure function of its arguments: the same on every machine and NumPy version, because it uses only the raw
    stream of the bit generator, which NumPy keeps stable.

    Args:
        size: number of examples.
        fractions: share of each held-out part by name, in (0, 1), with a sum under 1. A part gets the rounded number
            of examples.
        seed: non-negative; of the split, not of the run.
        labels: integers [size]; when given, every part holds each class in its own proportion, to within 2 examples.

    Returns:
        int64 indices by name, in ascending order; "train" first.

    Raises:
        UserError: a fraction out of range, a negative seed, labels of another length, or a part left empty.
    """
    _check(size, fractions, seed, labels)
    order = _permutation(size, seed)
    if labels is not None:
        order = order[np.argsort(_rank_within_class(labels[order]), kind="stable")]
    parts: dict[str, np.ndarray] = {"train": order}
    start = 0
    for name, fraction in fractions.items():
        stop = start + round(fraction * size)
        parts[name] = np.sort(order[start:stop])
        start = stop
    parts["train"] = np.sort(order[start:])
    for name, part in parts.items():
        if not part.size:
            raise UserError(
                f"Split '{name}' of {size} examples is empty; expected at least one. Change the fractions "
                f"({_listing(fractions)}) or give more data."
            )
    return parts


def _check(size: int, fractions: Mapping[str, float], seed: int, labels: np.ndarray | None) -> None:
    for name, fraction in fractions.items():
        if not _is_fraction(fraction):
            raise UserError(f"Received {name} fraction {fraction!r}; expected a number above 0 and below 1.")
    if sum(fractions.values()) >= 1:
        raise UserError(f"Received fractions {_listing(fractions)}; expected a sum below 1, to leave some to train on.")
    if not is_whole_number(seed) or seed < 0:
        raise UserError(f"Received split seed {seed!r}; expected an integer of 0 or more.")
    if labels is not None and labels.shape != (size,):
        raise UserError(f"Received labels of shape {list(labels.shape)} for {size} examples; expected [{size}].")


def _is_fraction(value: object) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _listing(fractions: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {fraction}" for name, fraction in fractions.items())


def _permutation(size: int, seed: int) -> np.ndarray:
    """Return a permutation of range(size), int64 [size]."""
    return np.argsort(np.random.PCG64(seed).random_raw(size), kind="stable").astype(np.int64)


def _rank_within_class(labels: np.ndarray) -> np.ndarray:
    """Return how far into its own class each example stands, in (0, 1): sorted by it, any stretch is stratified."""
    rank = np.empty(labels.size)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rank[rows] = (np.arange(rows.size) + 0.5) / rows.size
    return rank
