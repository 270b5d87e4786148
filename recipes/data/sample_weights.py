"""How much each example of a user's arrays counts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recipes.data.array_files import ArrayFiles
from trainer.errors import UserError

WEIGHTS = "sample_weight"
"""What such an array is called, with "_train" and so on behind it."""


def read_weights(files: ArrayFiles, name: str, labels: np.ndarray) -> np.ndarray:
    """Return the sample weights of a part, float32 [size].

    Args:
        files: that hold them.
        name: of the array: real numbers [size] or [size, 1].
        labels: [size], of the same examples.

    Raises:
        UserError: another number of them, a weight that is negative or not finite, or none above 0.
    """
    weights, where = files.load(name), files.label(name)
    if weights.ndim == 2 and weights.shape[1] == 1:
        weights = weights[:, 0]
    if weights.shape != labels.shape or weights.dtype.kind not in "biuf":
        raise UserError(
            f"{where}: {weights.dtype} of shape {list(weights.shape)}; expected a number for each of {len(labels)} "
            "examples. Give one weight an example."
        )
    weights = weights.astype(np.float32)
    if len(bad := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))):
        raise UserError(
            f"{where}: {len(bad)} weights are negative or not finite, the first is {weights[bad[0]]} in row {bad[0]}; "
            "expected 0 or more. Mend them, or leave these examples out."
        )
    check_shares(weights, {"": np.arange(len(weights))}, where)
    return weights


def check_shares(weights: np.ndarray, rows: Mapping[str, np.ndarray], where: str) -> None:
    """Refuse a split of which no example counts: its metrics would be 0 / 0.

    Args:
        weights: [size].
        rows: of each split, by its name.
        where: what the weights are called in messages.

    Raises:
        UserError: names the split.
    """
    for part, own in rows.items():
        if not weights[own].any():
            raise UserError(f"{where}: all weights{part and ' of the split '}{part} are 0; expected one above 0.")
