"""From a network's outputs to classes with probabilities, the likeliest first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.errors import UserError


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities, float64 of the same shape, that add up to 1 over the last axis.

    Args:
        logits: [..., classes].
    """
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def rank(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest classes and their probabilities, [examples, top]; of equal ones the lower label first.

    Args:
        logits: [examples, classes].
        top: how many, at most all.
    """
    labels = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")[:, :top]
    return labels, np.take_along_axis(softmax(logits), labels, axis=1)


def name_classes(outputs: int, known: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return what the entries of the outputs are called.

    Args:
        outputs: how many entries there are.
        known: names that come with the network, or none.
        given: names of the user, in place of these, or none.

    Raises:
        UserError: another number of names, or the same name twice.
    """
    names = tuple(given or known) or tuple(str(label) for label in range(outputs))
    if len(names) != outputs:
        raise UserError(f"Received {len(names)} class names for {outputs} outputs. Expected one for each.")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"class_names has '{twice}' more than once. Expected different names.")
    return names
