"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100: from `keras.datasets`, or from an npz file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from recipes.data.array_files import find_arrays, warn_of_unread
from recipes.data.keras_cache import load_pinned
from recipes.data.npz import existing_npz, read_npz
from recipes.data.pixels import centered_pixels, pixel_preparation
from trainer.errors import UserError, unknown_name
from trainer.input.checks import as_pixels, check_examples, is_whole_number
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.input.split import split_indices
from trainer.precheck import prechecked

PEAK = 255
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class _Set:
    """What the images of a set look like, what its classes are called, and how Keras is asked for it."""

    module: str
    shape: tuple[int, int, int]
    classes: int
    class_names: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()


_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SETS = {
    "mnist": _Set("mnist", (28, 28, 1), 10),
    "fashion_mnist": _Set("fashion_mnist", (28, 28, 1), 10, _CLOTHES),
    "cifar10": _Set("cifar10", (32, 32, 3), 10, _THINGS),
    "cifar100": _Set("cifar100", (32, 32, 3), 100, options=(("label_mode", "fine"),)),
    "cifar100_coarse": _Set("cifar100", (32, 32, 3), 20, options=(("label_mode", "coarse"),)),
}


def check_set(name: str, path: str | None) -> None:
    """Check which set is asked for, and that its file is there.

    Args:
        name: one of `SETS`.
        path: of an npz file; None for a download.

    Raises:
        UserError: an unknown set, or no such file.
    """
    if name not in SETS:
        raise unknown_name("data.name", name, SETS)
    if path is not None:
        existing_npz(path)


@prechecked(check_set)
def keras_dataset(*, name: str, path: str | None = None, validation_size: int = 5000, seed: int = 0) -> Data:
    """Return a set of `keras.datasets`: mnist, fashion_mnist, cifar10, cifar100, or its 20 coarse classes.

    MNIST: LeCun, Cortes, Burges 1998. Fashion-MNIST: Xiao, Rasul, Vollgraf 2017 (arXiv 1708.07747). CIFAR:
    Krizhevsky 2009. The test split is the set's own. The validation split is drawn from the training images, with the
    same share of every class; it is not the last images of the file, because those of MNIST come from other writers.

    Args:
        name: one of `SETS`.
        path: an npz file with `x_train`, `y_train`, `x_test`, `y_test`; null downloads through `keras.datasets`, once.
            Images are whole grey or colour values 0..255 in any real dtype, of the set's shape; grey ones may lack
            their last axis. Images that are scaled already are refused. Labels are integers [n] or [n, 1].
        validation_size: training images held out for validation, from 1 to all but one.
        seed: of the split, 0 or more. It is not the run's seed, so runs with other seeds compare on one split.

    Returns:
        Data with "inputs" float32 [n, height, width, channels] in [-1, 1] and "targets" int64 [n].

    Raises:
        UserError: an unknown set, no file or download, an unreadable or altered file, bad images or labels, or
            settings out of range.
    """
    check_set(name, path)
    kind = SETS[name]
    arrays = _download(kind) if path is None else _read(path)
    called = name if path is None else Path(path).name
    train = _source(arrays["x_train"], arrays["y_train"], kind, f"{called}, x_train and y_train")
    test = _source(arrays["x_test"], arrays["y_test"], kind, f"{called}, x_test and y_test")
    _check_validation_size(validation_size, train.size)
    parts = split_indices(train.size, {"validation": validation_size}, seed, train.labels)
    return Data(
        name,
        train=Split("train", train, parts["train"]),
        validation=Split("validation", train, parts["validation"]),
        test=Split("test", test, np.arange(test.size, dtype=np.int64)),
        input_shape=kind.shape,
        classes=kind.classes,
        class_names=kind.class_names,
        preparation=pixel_preparation(kind.shape, PEAK),
    )


def _source(images: np.ndarray, labels: np.ndarray, kind: _Set, where: str) -> ArraySource:
    if kind.shape[2] == 1 and images.shape[1:] == kind.shape[:2]:
        images = images[..., None]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    check_examples(images, labels, input_shape=kind.shape, classes=kind.classes, where=where)
    arrays = {"inputs": as_pixels(images, where), "targets": labels.astype(np.int64)}
    return ArraySource(arrays, centered_pixels(PEAK))


def _check_validation_size(validation_size: int, size: int) -> None:
    if not is_whole_number(validation_size) or not 1 <= validation_size < size:
        raise UserError(
            f"Received validation_size {validation_size!r} for {size} training images; expected an integer in "
            f"1..{size - 1}."
        )


def _read(path: str) -> dict[str, np.ndarray]:
    arrays = read_npz(path, KEYS)
    warn_of_unread(find_arrays(path, None), KEYS)
    return arrays


def _download(kind: _Set) -> dict[str, np.ndarray]:
    load: Callable[..., Any] = getattr(keras.datasets, kind.module).load_data
    (x_train, y_train), (x_test, y_test) = load_pinned(kind.module, lambda: load(**dict(kind.options)))
    return dict(zip(KEYS, (x_train, y_train, x_test, y_test), strict=True))
