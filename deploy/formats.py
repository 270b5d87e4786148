"""The formats of exports, and their files."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hookline.deploy.options import first_line, import_optional
from hookline.trainer.errors import UserError
from hookline.trainer.files import sync_folder

if TYPE_CHECKING:
    from hookline.deploy.options import Contents, ExportOptions
    from hookline.trainer.run.run import Run


Predictor = Callable[[np.ndarray], np.ndarray]
"""Takes inputs float32 [batch, ...] as the run's network sees them; returns its outputs, such as logits, float32."""


@dataclass(frozen=True)
class Format:
    """Describe a format. Its writer and loader are imported on use: each needs other packages.

    Attributes:
        name: that users give.
        suffix: how the names of its files end; of a directory, how the default name ends.
        writer: "module:function" of (run, network, path, options) -> Contents.
        loader: "module:function" of (path) -> Predictor.
        options: names of the fields of ExportOptions that it takes beside the tolerance.
        packages: modules that it needs beside those of every run.
        extra: of this project, which installs them.
        is_directory: whether it is one, not a file.
        card_beside: whether the card lies beside the file, because it cannot hold it.
        every_prediction: whether the class that is predicted must be the run's for every example of the test split.
        rounding: "module:function" of (run, network, predictor, inputs) -> bool: whether predictions differ for
            examples because sums were rounded in another order, which `every_prediction` does not count.
    """

    name: str
    suffix: str
    writer: str
    loader: str
    options: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    extra: str = ""
    is_directory: bool = False
    card_beside: bool = True
    every_prediction: bool = False
    rounding: str = ""

    def check_packages(self) -> None:
        """Refuse a format whose packages are not installed, before anything else is done.

        Raises:
            UserError: says how to install them.
        """
        for module in self.packages:
            import_optional(module, extra=self.extra, needed_by=f"format={self.name}")

    def write(self, run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
        """Write a network of a run, with the weights that evaluation uses, and return what was written.

        Args:
            run: restored; it is left as it was.
            network: name of the network.
            path: to write to; it does not exist yet, its directory does.
            options: checked.

        Raises:
            UserError: the format cannot hold this network.
            OSError: the place cannot be written to.
        """
        return cast("Contents", _imported(self.writer)(run, network, path, options))

    def rounds(self, run: Run, network: str, predict: Predictor, inputs: np.ndarray) -> bool:
        """Return whether predictions differ by the order of additions alone.

        Args:
            run: restored.
            network: name of the network.
            predict: loaded from the file.
            inputs: the examples for which they differ.
        """
        return bool(self.rounding and _imported(self.rounding)(run, network, predict, inputs))

    def load(self, path: Path) -> Predictor:
        """Return what predicts with an exported network.

        Args:
            path: as it was written.

        Raises:
            UserError: it cannot be read, or a package is missing.
        """
        return cast(Predictor, _imported(self.loader)(path))


def _imported(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    return cast(Callable[..., Any], getattr(importlib.import_module(f"hookline.deploy.{module}"), name))


FORMATS = {
    "keras": Format("keras", ".keras", "runtime_files:write_keras", "runtime_files:load_keras"),
    "saved_model": Format(
        "saved_model",
        "_saved_model",
        "runtime_files:write_saved_model",
        "runtime_files:load_saved_model",
        is_directory=True,
    ),
    "litert": Format(
        "litert",
        ".tflite",
        "litert:write_litert",
        "runtimes:load_litert",
        options=("int8",),
        packages=("ai_edge_litert.interpreter",),
        extra="litert",
    ),
    "onnx": Format(
        "onnx",
        ".onnx",
        "runtime_files:write_onnx",
        "runtimes:load_onnx",
        packages=("onnx", "tf2onnx", "onnxruntime"),
        extra="onnx",
    ),
    "packed": Format(
        "packed",
        ".packed.safetensors",
        "packed:write_packed",
        "inference.engine:load_model",
        options=("float16",),
        card_beside=False,
        every_prediction=True,
        rounding="packed:predictions_differ_by_rounding",
    ),
    "sparse": Format(
        "sparse",
        ".sparse.safetensors",
        "sparse:write_sparse",
        "sparse:load_sparse",
        options=("codebook", "codebook_conv", "huffman"),
        card_beside=False,
    ),
}
MARK = "saved_model.pb"
"""The file that makes a directory a SavedModel."""


def format_of(path: Path) -> Format:
    """Return the format of an exported network, by the end of its name; a directory by what is in it."""
    if path.is_dir():
        if (path / MARK).is_file():
            return FORMATS["saved_model"]
        raise UserError(f"{path} is a directory without {MARK}. Expected an exported file, or a SavedModel.")
    found = [each for each in FORMATS.values() if not each.is_directory and path.name.endswith(each.suffix)]
    if not found:
        ends = ", ".join(each.suffix for each in FORMATS.values() if not each.is_directory)
        raise UserError(f"{path} is of no format that is known. Expected a name that ends with one of {ends}.")
    return max(found, key=lambda each: len(each.suffix))


def check_place(path: Path, form: Format, *, overwrite: bool, remedy: str = "overwrite=true") -> None:
    """Refuse a place where the export cannot go.

    A directory is replaced only where it is a SavedModel itself: nothing else of the user's is ever removed.

    Args:
        path: to write to.
        form: of what is written.
        overwrite: whether an existing export is replaced.
        remedy: what would replace it.

    Raises:
        UserError: the path exists already, the name has another ending, or the place is not writable.
    """
    if not form.is_directory and not path.name.endswith(form.suffix):
        raise UserError(
            f"output={path} received. Expected a file that ends with {form.suffix}, such as model{form.suffix}."
        )
    same = path.is_dir() and (path / MARK).is_file() if form.is_directory else path.is_file()
    if os.path.lexists(path) and not (same and overwrite):
        raise UserError(f"{path} exists already. Expected another output{f', or {remedy}' if same else ''}.")
    parent = next(each for each in path.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{path} cannot be written: {parent} is not a directory that can be written to. Give another.")


@contextmanager
def put_in_place(path: Path, form: Format) -> Iterator[Path]:
    """Give a temporary path, and move what is written there into place at the end of the block, unless it fails.

    Args:
        path: checked by `check_place`.
        form: of what is written.

    Raises:
        UserError: the place cannot be written to.
    """
    is_new, folder = not path.parent.exists(), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))  # nobody else's
        yield folder / path.name
        _sync(folder / path.name)
        _exchange(folder / path.name, path)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise UserError(f"{path} cannot be written: {reason}. Expected a place that can.") from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # it holds the file
                path.parent.rmdir()


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory."""
    return sum(each.stat().st_size for each in _files(path))


def _files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]


def _sync(path: Path) -> None:
    for each in _files(path):
        with each.open("rb") as file:
            os.fsync(file.fileno())
    if path.is_dir():
        for each in (path, *(each for each in path.rglob("*") if each.is_dir())):
            sync_folder(each)


def _exchange(temporary: Path, path: Path) -> None:
    """Move what was written into place. An old directory keeps its name until the new one can take it."""
    if not path.is_dir():
        os.replace(temporary, path)
    else:
        gone = path.with_name(f"{temporary.parent.name}.gone")
        os.replace(path, gone)
        try:
            os.replace(temporary, path)
        except BaseException:
            os.replace(gone, path)
            raise
        shutil.rmtree(gone)
    sync_folder(path.parent)
