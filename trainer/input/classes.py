"""Settings that give each class a number: how its loss weighs, or how much of the training examples it makes up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer.config.schema import BALANCED
from trainer.errors import UserError, unknown_name

Setting = str | Mapping[Any, float]


def class_weights(setting: Setting, labels: np.ndarray, classes: int, names: Sequence[str] = ()) -> np.ndarray:
    """Return the weight of each class's loss.

    "balanced" gives a class of n of all N examples, among C classes that have any, the weight N / (C n): each class
    then has the same sum of weights, and the mean over all examples is 1.

    Args:
        setting: "balanced", or weights by class; classes that it does not name weigh 1.
        labels: classes of the training examples, integers [size] in [0, classes).
        classes: number of classes.
        names: of the classes, by label; a setting may use them.

    Returns:
        float32 [classes].

    Raises:
        UserError: an unknown class, or all weights are 0.
    """
    counts = np.bincount(labels, minlength=classes)
    if setting == BALANCED:
        return (labels.size / (np.count_nonzero(counts) * np.maximum(counts, 1))).astype(np.float32)
    weights = np.ones(classes, np.float32)
    for label, value in by_label("trainer.class_weights", setting, classes, names).items():
        weights[label] = value
    if not np.any(weights[counts > 0]):
        raise UserError("trainer.class_weights is 0 for every class of the training examples. Expected one above 0.")
    return weights


def class_shares(setting: Setting, labels: np.ndarray, classes: int, names: Sequence[str] = ()) -> np.ndarray:
    """Return the share that each class makes up of the examples that training draws.

    Args:
        setting: "balanced" for equal shares of all classes that have examples, or shares by class; the classes that
            it does not name divide the rest in proportion to their sizes.
        labels: classes of the training examples, integers [size] in [0, classes).
        classes: number of classes.
        names: of the classes, by label; a setting may use them.

    Returns:
        float64 [classes], with a sum of 1.

    Raises:
        UserError: an unknown class or one without examples, or shares that add up to more than 1, or to less than 1
            with no class left for the rest.
    """
    counts = np.bincount(labels, minlength=classes)
    if setting == BALANCED:
        return (counts > 0) / np.count_nonzero(counts)
    given = by_label("trainer.class_sampling", setting, classes, names)
    for label in given:
        if not counts[label]:
            raise UserError(
                f"trainer.class_sampling names class {label}, which has no training example. Expected classes that "
                "have some: leave it out."
            )
    total, rest = sum(given.values()), counts.astype(np.float64)
    rest[list(given)] = 0
    complete = not rest.any()
    if total > 1 + 1e-6 or (complete and total < 1 - 1e-6) or (not complete and total > 1 - 1e-6):
        expected = "1, since it names all classes" if complete else "less than 1, to leave some to the other classes"
        raise UserError(f"trainer.class_sampling has shares that add up to {total:g}. Expected {expected}.")
    shares = rest * ((1 - total) / max(rest.sum(), 1))
    for label, share in given.items():
        shares[label] = share
    return shares / shares.sum()


def by_label(key: str, setting: Setting, classes: int, names: Sequence[str]) -> dict[int, float]:
    """Return what a setting gives to classes, by label.

    Args:
        key: of the setting, for messages.
        setting: numbers by label or name.
        classes: number of classes.
        names: of the classes, by label.

    Raises:
        UserError: an unknown class, or one that is named twice.
    """
    labels = {**{str(label): label for label in range(classes)}, **{name: i for i, name in enumerate(names)}}
    found: dict[int, float] = {}
    for each, value in dict(setting).items():  # type: ignore[arg-type]
        if str(each) not in labels:
            if names:
                raise unknown_name(f"class in {key}", str(each), names)
            raise UserError(f"{key} names class {each}, which the data has not. Expected 0..{classes - 1}.")
        if labels[str(each)] in found:
            raise UserError(f"{key} names class {labels[str(each)]} twice. Expected each class once.")
        found[labels[str(each)]] = float(value)
    return found
