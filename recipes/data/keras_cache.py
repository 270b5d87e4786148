"""The files that `keras.datasets` downloads, checked against known SHA-256 sums."""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.errors import UserError

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
    """Return what a function of `keras.datasets` loads, if the files that it loads are the known ones.

    Files that lie in the cache are checked before, because Keras would remove one that differs and download it again;
    what was downloaded is checked after.

    Args:
        name: of the set, one of `PINS`.
        load: the set's `load_data`.

    Raises:
        UserError: a file in the cache that differs, a download that fails, or one that brings something else.
    """
    pins = PINS[name]
    known = _check_cached(pins)
    try:
        arrays = load()
    except Exception as error:  # Keras raises a bare Exception when a download fails.
        raise UserError(
            f"keras.datasets.{name} could not be loaded ({type(error).__name__}: {error}). It is downloaded once: "
            f"check the connection, or give a file that has the arrays: data.path=<{name}.npz>."
        ) from error
    if missing := pins.keys() - known - _check_cached(pins):
        raise UserError(
            f"keras.datasets.{name} did not leave {', '.join(sorted(missing))} in '{_folders()[0]}', so that it cannot "
            f"be checked; expected the file that was downloaded. Give one yourself: data.path=<{name}.npz>."
        )
    return arrays


def _check_cached(pins: Mapping[str, str]) -> set[str]:
    """Return the files that are in the cache and as expected; refuse one that is not."""
    found = set()
    for name, pin in pins.items():
        for file in (folder / name for folder in _folders()):
            if file.is_file():
                _check(file, pin)
                found.add(name)
    return found


def _check(file: Path, pin: str) -> None:
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"'{file}' cannot be read ({error.strerror}). Mend its rights, or delete it.") from error
    if found != pin:
        raise UserError(
            f"'{file}' ({file.stat().st_size:,} bytes) is truncated or altered: its SHA-256 is {found[:12]}..., "
            f"expected {pin[:12]}.... Delete it, and it is downloaded again; or give a file: "
            "data.path=<file.npz>."
        )


def _folders() -> list[Path]:
    """Return where Keras keeps its files: in its own folder, or beside it where it may not write there."""
    home = Path(importlib.import_module("keras.src.backend.config").keras_home()).expanduser()
    if os.access(home, os.W_OK):
        return [home / "datasets"]
    temporary = "/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()
    return [Path(temporary) / ".keras" / "datasets"]
