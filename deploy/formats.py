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
    """Describe a format. Its writer and loader are imported on use: each needs other packages."""

    name: str  # that users give
    suffix: str  # how the names of its files end; of a directory, how the default name ends
    writer: str  # module with a function `write_<name>` of (run, network, path, options) -> Contents
    loader: str  # module with a function `load_<name>` of (path) -> Predictor
    options: tuple[str, ...] = ()  # names of the fields of ExportOptions that it takes beside the tolerance
    packages: tuple[str, ...] = ()  # modules that it needs beside those of every run
    extra: str = ""  # of this project, which installs them
    is_directory: bool = False
    card_beside: bool = True  # whether the card lies beside the file, because it cannot hold it
    every_prediction: bool = False  # whether the class must be the run's for every example of the test split

    def check_packages(self) -> None:
        """Refuse a format whose packages are not installed, before anything else is done."""
        for module in self.packages:
            import_optional(module, extra=self.extra, needed_by=f"format={self.name}")

    def write(self, run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
        """Write a network of a restored run, with the weights that evaluation uses, to a path that does not exist."""
        return cast("Contents", _imported(self.writer, f"write_{self.name}")(run, network, path, options))

    def load(self, path: Path) -> Predictor:
        """Return what predicts with an exported network.

        Args:
            path: as it was written.

        Raises:
            UserError: it cannot be read, or a package is missing.
        """
        return cast(Predictor, _imported(self.loader, f"load_{self.name}")(path))


def _imported(module: str, name: str) -> Callable[..., Any]:
    return cast(Callable[..., Any], getattr(importlib.import_module(f"hookline.deploy.{module}"), name))


LITERT, ONNX = ("ai_edge_litert.interpreter",), ("onnx", "tf2onnx", "onnxruntime")
CODEBOOK = ("codebook", "codebook_conv", "huffman")
_ALL = (
    Format("keras", ".keras", "runtime_files", "runtime_files"),
    Format("saved_model", "_saved_model", "runtime_files", "runtime_files", is_directory=True),
    Format("litert", ".tflite", "runtime_files", "runtimes", options=("int8",), packages=LITERT, extra="litert"),
    Format("onnx", ".onnx", "runtime_files", "runtimes", packages=ONNX, extra="onnx"),
    Format(
        "packed", ".packed.safetensors", "packed", "runtimes", ("float16",), card_beside=False, every_prediction=True
    ),
    Format("sparse", ".sparse.safetensors", "sparse", "sparse", CODEBOOK, card_beside=False),
)
FORMATS = {each.name: each for each in _ALL}
MARK = "saved_model.pb"  # the file that makes a directory a SavedModel


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
    """Refuse a place where the export cannot go; a directory is replaced only if it is a SavedModel itself."""
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
def put_in_place(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and move what is written there into place at the end of the block, unless it fails."""
    is_new, folder = not path.parent.exists(), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield folder / path.name
        for each in (folder / path.name, *(folder / path.name).rglob("*")):
            sync_folder(each)  # or a file
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
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


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
