"""MNIST: handwritten digits of 28 x 28 pixels, from an npz file or from `keras.datasets`."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from recipes.data.npz import read_npz
from recipes.data.pixels import centered_pixels
from trainer.errors import UserError
from trainer.input.checks import as_pixels, check_examples, is_whole_number
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.input.split import split_indices

SHAPE = (28, 28, 1)
CLASSES = 10
PEAK = 255
KEYS = ("x_train", "y_train", "x_test", "y_test")


def mnist(*, path: str | None = None, validation_size: int = 5000, seed: int = 0) -> Data:
    """Return MNIST (LeCun, Cortes, Burges 1998): 60,000 images to train and validate on, 10,000 to test.

    The test split is the file's own. The validation split is drawn from the training images, with the same share of
    every class; it is not the last images of the file, because those come from other writers.

    Args:
        path: an npz file with `x_train`, `y_train`, `x_test`, `y_test`; null downloads through `keras.datasets`.
            Images are [n, 28, 28] or [n, 28, 28, 1], whole grey values 0..255 in any real dtype; images that are
            scaled already are refused. Labels are integers 0..9.
        validation_size: training images held out for validation, from 1 to all but one.
        seed: of the split, 0 or more. It is not the run's seed, so runs with other seeds compare on one split.

    Returns:
        Data with "inputs" float32 [n, 28, 28, 1] in [-1, 1] and "targets" int64 [n].

    Raises:
        UserError: no file or download, an unreadable file, bad images or labels, or settings out of range.
    """
    arrays = _download() if path is None else read_npz(path, KEYS)
    name = "mnist" if path is None else Path(path).name
    train = _source(arrays["x_train"], arrays["y_train"], f"{name}, x_train and y_train")
    test = _source(arrays["x_test"], arrays["y_test"], f"{name}, x_test and y_test")
    _check_validation_size(validation_size, train.size)
    held_out = {"validation": validation_size / train.size}
    parts = split_indices(train.size, held_out, seed, arrays["y_train"])
    return Data(
        "mnist",
        train=Split("train", train, parts["train"]),
        validation=Split("validation", train, parts["validation"]),
        test=Split("test", test, np.arange(test.size, dtype=np.int64)),
        input_shape=SHAPE,
        classes=CLASSES,
    )


def _source(images: np.ndarray, labels: np.ndarray, where: str) -> ArraySource:
    if images.shape[1:] == SHAPE[:2]:
        images = images[..., None]
    check_examples(images, labels, input_shape=SHAPE, classes=CLASSES, where=where)
    arrays = {"inputs": as_pixels(images, where), "targets": labels.astype(np.int64)}
    return ArraySource(arrays, centered_pixels(PEAK))


def _check_validation_size(validation_size: int, size: int) -> None:
    if not is_whole_number(validation_size) or not 1 <= validation_size < size:
        raise UserError(
            f"Received validation_size {validation_size!r} for {size} training images; expected an integer in "
            f"1..{size - 1}."
        )


def _download() -> dict[str, np.ndarray]:
    try:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails.
        raise UserError(
            f"MNIST could not be downloaded ({error}). Check the connection, or give a file: data.path=<mnist.npz>."
        ) from error
    return dict(zip(KEYS, (x_train, y_train, x_test, y_test), strict=True))
