"""Data sets of `keras.datasets`."""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hookline.recipes import check_choice, check_whole
from hookline.recipes.data.array_files import existing_npz, find_arrays, read_npz, warn_of_unread
from hookline.recipes.data.digits import centered_pixels, pixel_preparation
from hookline.recipes.data.splits import as_labels, splits_of
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.checks import as_pixels, check_examples
from hookline.trainer.input.data import Data
from hookline.trainer.input.source import ArraySource
from hookline.trainer.input.split import split_indices

Arrays = tuple[Any, Any]

# Of the archives as they are downloaded: those of MNIST and CIFAR as Keras declares them, those of Fashion-MNIST as
# TensorFlow Datasets and others list them.
PINS: dict[str, dict[str, str]] = {
    "mnist": {"mnist.npz": "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"},
    "fashion_mnist": {
        "fashion-mnist/train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "fashion-mnist/train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "fashion-mnist/t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "fashion-mnist/t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    },
    "cifar10": {
        "cifar-10-batches-py-target_archive": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
    },
    "cifar100": {"cifar-100-python-target_archive": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
}


def load_pinned(name: str, load: Callable[[], Arrays]) -> Arrays:
    """Return the data that a function of `keras.datasets` loads, if its files are the known ones.

    Cached files are checked first, because Keras would remove one that differs and download it again; a download is
    checked afterwards.
    """
    pins = PINS[name]
    for file in pins:
        _check(_folder() / file, pins[file], missing_ok=True)
    try:
        arrays = load()
    except Exception as error:  # Keras raises a bare Exception when a download fails.
        raise UserError(
            f"keras.datasets.{name} could not be loaded ({type(error).__name__}: {error}). It is downloaded once: "
            f"check the connection, or give a file that has the arrays: data.path=<{name}.npz>."
        ) from error
    for file in pins:
        _check(_folder() / file, pins[file])
    return arrays


def _check(file: Path, pin: str, *, missing_ok: bool = False) -> None:
    """Refuse a file that is not the known one."""
    if missing_ok and not file.is_file():
        return
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"'{file}' cannot be read ({error.strerror}). Give a file: data.path=<file.npz>.") from error
    if found != pin:
        raise UserError(
            f"'{file}' ({file.stat().st_size:,} bytes) is truncated or altered: its SHA-256 is {found[:12]}..., "
            f"expected {pin[:12]}.... Delete it, and it is downloaded again."
        )


def _folder() -> Path:
    """Return where Keras keeps its files: in its own folder, or beside it where it may not write there."""
    home = Path(importlib.import_module("keras.src.backend.config").keras_home()).expanduser()
    if os.access(home, os.W_OK):
        return home / "datasets"
    return Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()) / ".keras" / "datasets"


PEAK = 255
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class _Set:
    """The images of a set, the names of its classes, and how Keras loads it."""

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
    """Check the name of the set, and that its file exists."""
    check_choice("data.name", name, SETS)
    if path is not None:
        existing_npz(path)


@prechecked(check_set)
def keras_dataset(*, name: str, path: str | None = None, validation_size: int = 5000, seed: int = 0) -> Data:
    """Return a set of `keras.datasets`: mnist, fashion_mnist, cifar10, cifar100, or its 20 coarse classes.

    MNIST: LeCun, Cortes, Burges 1998. Fashion-MNIST: Xiao, Rasul, Vollgraf 2017 (arXiv 1708.07747). CIFAR:
    Krizhevsky 2009. The test split is the set's own. The validation split is drawn from the training images, with the
    same share of every class; it is not the last images of the file, because those of MNIST come from other writers.

    The arguments are explained in `configs/data/keras_dataset.yaml`.
    """
    kind = SETS[name]
    if path is None:
        arrays, called = _download(kind), name
    else:
        arrays, called = read_npz(path, KEYS), Path(path).name
        warn_of_unread(find_arrays(path, None), KEYS)
    train = _source(arrays["x_train"], arrays["y_train"], kind, f"{called}, x_train and y_train")
    test = _source(arrays["x_test"], arrays["y_test"], kind, f"{called}, x_test and y_test")
    check_whole("data.validation_size", validation_size, 1, train.size - 1)
    rows = split_indices(train.size, {"validation": validation_size}, seed, train.labels)
    return Data(
        name,
        **splits_of({"train": train, "test": test}, rows),
        input_shape=kind.shape,
        classes=kind.classes,
        class_names=kind.class_names,
        preparation=pixel_preparation(kind.shape, PEAK),
    )


def _source(images: np.ndarray, labels: np.ndarray, kind: _Set, where: str) -> ArraySource:
    if kind.shape[2] == 1 and images.shape[1:] == kind.shape[:2]:
        images = images[..., None]
    labels = as_labels(labels, where)
    check_examples(images, labels, input_shape=kind.shape, classes=kind.classes, where=where)
    return ArraySource({"inputs": as_pixels(images, where), "targets": labels}, centered_pixels(PEAK))


def _download(kind: _Set) -> dict[str, np.ndarray]:
    load: Callable[..., Any] = getattr(keras.datasets, kind.module).load_data
    (x_train, y_train), (x_test, y_test) = load_pinned(kind.module, lambda: load(**dict(kind.options)))
    return dict(zip(KEYS, (x_train, y_train, x_test, y_test), strict=True))
