"""Checks of the examples, made once when data is opened."""

from __future__ import annotations

from typing import Any

import numpy as np

from hookline.trainer.errors import UserError


def is_whole_number(value: Any) -> bool:
    """Return whether a setting is an integer; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_examples(
    inputs: np.ndarray, targets: np.ndarray, *, input_shape: tuple[int, ...], classes: int, where: str
) -> None:
    """Check inputs and labels together."""
    check_lengths(inputs, targets, where)
    check_shape(inputs, input_shape, where)
    check_finite(inputs, where)
    check_labels(targets, classes, where)


def check_lengths(inputs: np.ndarray, targets: np.ndarray, where: str) -> None:
    """Check that there is at least one example, and one label for each."""
    sizes = [array.shape[0] if array.ndim else 0 for array in (inputs, targets)]
    if sizes[0] != sizes[1]:
        raise UserError(f"{where}: {sizes[0]} inputs but {sizes[1]} labels; expected one label for each input.")
    if not sizes[0]:
        raise UserError(f"{where}: no examples; expected at least one. Give a file that holds some.")


def check_shape(inputs: np.ndarray, input_shape: tuple[int, ...], where: str) -> None:
    """Check the shape of one input."""
    if inputs.shape[1:] != tuple(input_shape):
        raise UserError(f"{where}: inputs of shape {list(inputs.shape[1:])}; expected {list(input_shape)}.")


def check_finite(inputs: np.ndarray, where: str) -> None:
    """Check that no input holds NaN or infinity."""
    if inputs.dtype.kind not in "iuf":
        raise UserError(f"{where}: inputs of dtype {inputs.dtype}; expected real numbers. Convert them.")
    if inputs.dtype.kind != "f":
        return
    bad = ~np.isfinite(inputs)
    if count := int(np.count_nonzero(bad)):
        row = int(np.argmax(bad.reshape(len(inputs), -1).any(axis=1)))
        raise UserError(f"{where}: {count} values are NaN or infinite, the first in row {row}. Remove or fix them.")


def check_labels(targets: np.ndarray, classes: int, where: str, rows: np.ndarray | None = None) -> None:
    """Check that labels are integers within [0, classes)."""
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise UserError(
            f"{where}: labels of dtype {targets.dtype} and shape {list(targets.shape)}; expected integers [size]. "
            "Give class numbers, not one-hot rows or names."
        )
    bad = (targets < 0) | (targets >= classes)
    if bad.any():
        first = int(np.argmax(bad))
        row = first if rows is None else rows[first]
        raise UserError(
            f"{where}: {bad.sum()} labels lie outside 0..{classes - 1}, the first is {targets[first]} in row {row}."
        )


def as_pixels(inputs: np.ndarray, where: str) -> np.ndarray:
    """Return grey values of any dtype as uint8 without changing any.

    Images that were scaled already would turn almost black without notice, so they are refused.
    """
    low, high = inputs.min(), inputs.max()
    whole = inputs.dtype.kind in "iu" or bool(np.all(inputs == np.floor(inputs)))
    if low < 0 or high > 255 or high <= 1 or not whole:
        kind = "whole values" if whole else "values with fractions"
        raise UserError(f"{where}: {kind} within {low:g}..{high:g}; expected whole grey values 0..255, unscaled.")
    return inputs.astype(np.uint8)
