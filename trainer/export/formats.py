"""The formats that a network is exported to. Each is read by something that needs none of this project's training."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trainer.errors import UserError
from trainer.export.optional import import_optional

if TYPE_CHECKING:
    from trainer.export.contents import Contents
    from trainer.export.options import ExportOptions
    from trainer.run.finished import FinishedRun

Predictor = Callable[[np.ndarray], np.ndarray]
"""Takes inputs float32 [batch, ...] as the run's network sees them; returns its outputs, such as logits, float32."""


@dataclass(frozen=True)
class Format:
    """Describe a format. What writes and reads it is imported when it is used: each needs other packages.

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

    def write(self, run: FinishedRun, network: str, path: Path, options: ExportOptions) -> Contents:
        """Write a network of a run, with the weights that evaluation uses, and return what was written.

        Args:
            run: restored; it is left as it was.
            network: name of the network.
            path: to write to; nothing is there, and its directory exists.
            options: checked.

        Raises:
            UserError: the format cannot hold this network.
            OSError: the place cannot be written to.
        """
        return cast("Contents", _imported(self.writer)(run, network, path, options))

    def rounds(self, run: FinishedRun, network: str, predict: Predictor, inputs: np.ndarray) -> bool:
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
    return cast(Callable[..., Any], getattr(importlib.import_module(module), name))


FORMATS = {
    each.name: each
    for each in (
        Format("keras", ".keras", "trainer.export.keras_file:write_keras", "trainer.export.keras_file:load_keras"),
        Format(
            "saved_model",
            "_saved_model",
            "trainer.export.saved_model:write_saved_model",
            "trainer.export.saved_model:load_saved_model",
            is_directory=True,
        ),
        Format(
            "litert",
            ".tflite",
            "trainer.export.litert:write_litert",
            "trainer.export.runtimes:load_litert",
            options=("int8",),
            packages=("ai_edge_litert.interpreter",),
            extra="litert",
        ),
        Format(
            "onnx",
            ".onnx",
            "trainer.export.onnx:write_onnx",
            "trainer.export.runtimes:load_onnx",
            packages=("onnx", "tf2onnx", "onnxruntime"),
            extra="onnx",
        ),
        Format(
            "packed",
            ".packed.safetensors",
            "trainer.export.packed:write_packed",
            "trainer.inference.engine:load_model",
            options=("float16",),
            card_beside=False,
            every_prediction=True,
            rounding="trainer.export.packed:predictions_differ_by_rounding",
        ),
        Format(
            "sparse",
            ".sparse.safetensors",
            "trainer.export.sparse:write_sparse",
            "trainer.export.sparse:load_sparse",
            options=("codebook", "codebook_conv", "huffman"),
            card_beside=False,
        ),
    )
}
MARK = "saved_model.pb"
"""The file that makes a directory a SavedModel."""


def format_of(path: Path) -> Format:
    """Return the format of an exported network, by the end of its name; a directory by what is in it.

    Args:
        path: of the file or directory.

    Raises:
        UserError: it is none, or of no format that is known.
    """
    if path.is_dir():
        if (path / MARK).is_file():
            return FORMATS["saved_model"]
        raise UserError(f"{path} is a directory without {MARK}. Expected an exported file, or a SavedModel.")
    found = [each for each in FORMATS.values() if not each.is_directory and path.name.endswith(each.suffix)]
    if not found:
        ends = ", ".join(each.suffix for each in FORMATS.values() if not each.is_directory)
        raise UserError(f"{path} is of no format that is known. Expected a name that ends with one of {ends}.")
    return max(found, key=lambda each: len(each.suffix))
