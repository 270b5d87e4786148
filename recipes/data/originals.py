"""The images that other data sets are made of: one of the digit sets, with its grey values as they were."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from recipes.data import digits as small
from recipes.data import keras_dataset as large
from trainer.errors import UserError, unknown_name
from trainer.input.data import Data, Split

PEAKS = {"digits": small.PEAK, "mnist": large.PEAK}
"""The brightest grey value of each set."""


def check_originals(name: str, path: str | None, *, key: str) -> None:
    """Check which set of originals is asked for, and that its file is there.

    Args:
        name: "digits" or "mnist".
        path: of MNIST as an npz file; None downloads it. Only for "mnist".
        key: where the user set the name, such as "data.source".

    Raises:
        UserError: an unknown name, a path for a set that is embedded, or no such file.
    """
    if name not in PEAKS:
        raise unknown_name(key, name, PEAKS)
    if name == "mnist":
        large.check_set(name, path)
    elif path is not None:
        raise UserError(
            f"Received data.path={path} for {key}={name}, which is embedded; expected no path. "
            f"Set {key}=mnist, or data.path=null."
        )


def open_originals(name: str, path: str | None, *, key: str) -> Data:
    """Return a set of originals.

    Args:
        name: "digits" or "mnist".
        path: of MNIST as an npz file; None downloads it. Only for "mnist".
        key: where the user set the name, such as "data.source".

    Raises:
        UserError: an unknown name, a path for a set that is embedded, or what the set refuses.
    """
    check_originals(name, path, key=key)
    if name == "mnist":
        return large.keras_dataset(name=name, path=path)
    return small.digits()


def grey_values(split: Split, positions: np.ndarray, peak: int) -> np.ndarray:
    """Return images as they were before their set scaled them: uint8 [n, side, side].

    Args:
        split: of originals.
        positions: int64 [n], in the split.
        peak: the brightest grey value.
    """
    scaled = split.source.gather(tf.constant(split.indices[positions]))["inputs"].numpy()
    return np.rint((scaled[..., 0] + 1.0) * (peak / 2.0)).astype(np.uint8)
