"""Datasets of `keras.datasets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hookline.recipes.data.array_files import find_arrays, read_npz, warn_of_unread
from hookline.recipes.data.input_form import transform_of
from hookline.recipes.data.splits import as_labels, data_of_parts
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.input.data import ArraySource, Data, as_pixels, check_examples
from hookline.trainer.input.preparation import PIXEL_PEAK, Preparation, pixel_preparation
from hookline.trainer.input.split import split_indices

FASHION_MNIST = {
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
}
"""SHA-256 of its files, as listed by TensorFlow Datasets and others; Keras checks the files of the other datasets."""
ORIGIN = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class _Set:
    """The images of a dataset, the names of its classes, and how Keras loads it."""

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
    """Check the name of the dataset, and that its file exists."""
    check_choice("data.name", name, SETS)
    if path is not None:
        find_arrays(path, None)


@prechecked(check_set)
def keras_dataset(*, name: str, path: str | None = None, validation_size: int = 5000, seed: int = 0) -> Data:
    """Return a dataset of `keras.datasets`: mnist, fashion_mnist, cifar10, cifar100 or cifar100_coarse (20 classes).

    MNIST: LeCun, Cortes, Burges 1998. Fashion-MNIST: Xiao, Rasul, Vollgraf 2017 (arXiv 1708.07747). CIFAR: Krizhevsky
    2009. The test split is the dataset's own. The validation split is a stratified sample of the training images, not
    the last images of the file, because those of MNIST come from other writers.
    """
    kind = SETS[name]
    if path is None:
        arrays, called = _download(kind), name
    else:
        arrays, called = read_npz(path, KEYS), Path(path).name
        warn_of_unread(find_arrays(path, None), KEYS)
    form = pixel_preparation(kind.shape, PIXEL_PEAK)
    sources = {part: _source(arrays, part, kind, form, called) for part in ("train", "test")}
    train = sources["train"]
    rows = split_indices(train.size, {"validation": validation_size}, seed, train.labels)
    return data_of_parts(name, sources, rows, preparation=form, classes=kind.classes, class_names=kind.class_names)


def _source(arrays: Mapping[str, np.ndarray], part: str, kind: _Set, form: Preparation, called: str) -> ArraySource:
    images, where = arrays[f"x_{part}"], f"{called}, x_{part} and y_{part}"
    if form.axes == "new" and images.shape[1:] == form.raw_shape:
        images = images[..., None]
    labels = as_labels(arrays[f"y_{part}"], where)
    check_examples(images, labels, input_shape=kind.shape, classes=kind.classes, where=where)
    return ArraySource({"inputs": as_pixels(images, where), "targets": labels}, transform_of(form))


def _download(kind: _Set) -> dict[str, np.ndarray]:
    load: Callable[..., Any] = getattr(keras.datasets, kind.module).load_data
    try:
        if kind.module == "fashion_mnist":
            for file, pin in FASHION_MNIST.items():
                keras.utils.get_file(file, ORIGIN + file, file_hash=pin, cache_subdir="datasets/fashion-mnist")
        (x_train, y_train), (x_test, y_test) = load(**dict(kind.options))
    except Exception as error:  # Keras raises a bare Exception if a download fails, a ValueError for wrong content
        raise UserError(
            f"keras.datasets.{kind.module} could not be loaded ({type(error).__name__}: {error}). It is downloaded "
            f"once: check the connection, or give a file that has the arrays: data.path=<{kind.module}.npz>."
        ) from error
    return dict(zip(KEYS, (x_train, y_train, x_test, y_test), strict=True))
