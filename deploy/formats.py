"""The formats of exports: their options, and the files that hold them."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hookline.deploy.inference.card import Card, read_card
from hookline.deploy.inference.engine import load_model
from hookline.trainer.deferred import quiet_start, silent
from hookline.trainer.errors import UserError, check_integer, import_optional, user_path
from hookline.trainer.files import sync_folder

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run


Predictor = Callable[[np.ndarray], np.ndarray]
"""Takes inputs [batch, ...] as the run's network receives them; returns its outputs, such as logits, float32."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


MOST_BITS = 8


@dataclass
class ExportOptions:
    """Hold the options of an export; each format lists those that it takes.

    Attributes:
        tolerance: largest allowed difference of a metric on the test split from the run's; None for 0.001, or 0.02 if
            the file holds rounded weights.
        int8: of format=litert: whether weights and activations are rounded to 8 bits after training.
        float16: of format=packed: whether kernels and biases that take more than 8 bits are rounded to 16.
        codebook: of format=sparse: bits of the index of a dense kernel's entry into a codebook of shared values, 1 to
            8, such as 5; None keeps every value.
        codebook_conv: the same for kernels of convolutions; None for 8 if `codebook` is set.
        huffman: of format=sparse: whether indices and gaps are Huffman-coded where that is smaller.
    """

    tolerance: float | None = None
    int8: bool = False
    float16: bool = False
    codebook: int | None = None
    codebook_conv: int | None = None
    huffman: bool = True

    def __post_init__(self) -> None:
        for name in ("codebook", "codebook_conv"):
            if (bits := getattr(self, name)) is not None:
                check_integer(name, bits, 1, MOST_BITS)
        if self.codebook is None and self.codebook_conv is not None:
            raise UserError(
                f"codebook_conv={self.codebook_conv} received without codebook. Expected both, such as codebook=5."
            )

    @property
    def changed(self) -> list[str]:
        """Return the names of the options that are not at their defaults."""
        return [each.name for each in fields(ExportOptions) if getattr(self, each.name) != each.default]


@dataclass(frozen=True)
class Contents:
    """Describe what was written."""

    columns: tuple[str, ...]  # headings of a table; the first column is aligned left, the others right
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # lines below the table
    lossy: bool = False  # whether the file holds rounded values, so that its metrics may differ more from the run's


@dataclass(frozen=True)
class Format:
    """Describe a format. Its writer and loader are imported on use, as formats need different packages."""

    name: str  # given by users
    suffix: str  # of the names of its files; of the default name for a directory
    writer: str  # module with a function `write_<name>` of (run, network, path, options) -> Contents
    loader: str  # module with a function `load_<name>` of (path) -> Predictor
    options: tuple[str, ...] = ()  # names of the fields of ExportOptions that it takes besides the tolerance
    packages: tuple[str, ...] = ()  # modules that it needs besides those of every run
    extra: str = ""  # the extra of this project that installs them
    is_directory: bool = False
    card_beside: bool = True  # whether the card is a separate file, because the format cannot hold it

    def check_packages(self) -> None:
        """Refuse the format early if a package that it needs is not installed."""
        for module in self.packages:
            import_optional(module, extra=self.extra, needed_by=f"format={self.name}")

    def write(self, run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
        """Write a network of a restored run, with the weights that evaluation uses, to a path that does not exist."""
        return cast(Contents, self._function(self.writer, "write")(run, network, path, options))

    def load(self, path: Path) -> Predictor:
        """Return a predictor for an exported network; raise a UserError if it cannot be loaded."""
        load = self._function(self.loader, "load")
        try:
            return cast(Predictor, load(path))
        except UserError:
            raise
        except Exception as error:  # each runtime has its own exception classes
            reason = first_line(error).partition(" Full object config")[0][:300]
            own = ", with plugins=[<module>] where it holds classes of your own" if self.name == "keras" else ""
            raise UserError(
                f"{path} cannot be loaded as format={self.name}: {reason} Expected what scripts/export.py writes{own}."
            ) from error

    def _function(self, module: str, verb: str) -> Any:
        return getattr(importlib.import_module(f"hookline.deploy.{module}"), f"{verb}_{self.name}")


LITERT, ONNX = ("ai_edge_litert.interpreter",), ("onnx", "tf2onnx", "onnxruntime")
CODEBOOK = ("codebook", "codebook_conv", "huffman")
_ALL = (
    Format("keras", ".keras", "runtime_files", "runtime_files"),
    Format("saved_model", "_saved_model", "runtime_files", "runtime_files", is_directory=True),
    Format("litert", ".tflite", "runtime_files", "formats", options=("int8",), packages=LITERT, extra="litert"),
    Format("onnx", ".onnx", "runtime_files", "formats", packages=ONNX, extra="onnx"),
    Format("packed", ".packed.safetensors", "packed", "formats", ("float16",), card_beside=False),
    Format("sparse", ".sparse.safetensors", "sparse", "sparse", CODEBOOK, card_beside=False),
)
FORMATS = {each.name: each for each in _ALL}
MARK = "saved_model.pb"  # the file that makes a directory a SavedModel


def format_of(path: Path) -> Format:
    """Return the format of an exported network: of a file by its suffix, of a directory by its contents."""
    if path.is_dir():
        if (path / MARK).is_file():
            return FORMATS["saved_model"]
        raise UserError(f"{path} is a directory without {MARK}. Expected an exported file, or a SavedModel.")
    found = [each for each in FORMATS.values() if not each.is_directory and path.name.endswith(each.suffix)]
    if not found:
        ends = ", ".join(each.suffix for each in FORMATS.values() if not each.is_directory)
        raise UserError(f"{path} has an unknown format. Expected a name that ends with one of {ends}.")
    return found[0]


def check_place(path: Path, form: Format, *, overwrite: bool, remedy: str = "overwrite=true") -> None:
    """Refuse a path where the export cannot be written; a directory is replaced only if it is a SavedModel itself."""
    if not form.is_directory and not path.name.endswith(form.suffix):
        other = next((f", or format={each.name}" for each in FORMATS.values() if path.name.endswith(each.suffix)), "")
        raise UserError(
            f"{path} received. Expected a file name that ends with {form.suffix}, such as model{form.suffix}{other}."
        )
    same = path.is_dir() and (path / MARK).is_file() if form.is_directory else path.is_file()
    if os.path.lexists(path) and not (same and overwrite):
        raise UserError(f"{path} exists already. Expected another output{f', or {remedy}' if same else ''}.")
    parent = next(each for each in path.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{path} cannot be written: {parent} is not a writable directory. Expected another location.")


@contextmanager
def put_in_place(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and move its contents into place at the end of the block, unless the block fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True
        ) as folder:
            temporary = Path(folder) / path.name
            yield temporary
            for each in (temporary, *temporary.rglob("*")):
                sync_folder(each)  # or a file
            _exchange(temporary, path)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise UserError(f"{path} cannot be written: {reason}. Expected a writable location.") from error


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory."""
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


def _exchange(temporary: Path, path: Path) -> None:
    """Move the export into place; an old directory is renamed just before, and restored on failure."""
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


def open_model(
    path: str, *, network: str, checkpoint: str | None, plugins: Sequence[str]
) -> tuple[Predictor, Card | None]:
    """Return a predictor for an export or a run, and its card, or None for an export without one."""
    place = user_path(path, "model")
    if not place.exists():
        raise UserError(f"model={path} does not exist. Expected an exported file, or the directory of a run.")
    if (place / "config.yaml").is_file():
        return _of_run(path, network, checkpoint, plugins)
    if checkpoint is not None:
        raise UserError(f"checkpoint={checkpoint} received for {path}, which is an export. Expected a run for it.")
    form, card = format_of(place), read_card(place)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # for formats that TensorFlow reads
    from hookline.trainer.run.finished import own_classes

    with silent(), own_classes(plugins):
        return form.load(place), card


def _of_run(path: str, network: str, checkpoint: str | None, plugins: Sequence[str]) -> tuple[Predictor, Card]:
    from hookline.trainer.run.finished import read_config, restore

    config = read_config(path, plugins)
    with quiet_start():
        from hookline.deploy.plain_model import card_of, finished_model
    run = restore(path, config, checkpoint)
    check_network(network, run.trainer.networks)
    return finished_model(run, network).predict_on_batch, card_of(run, network)


def check_network(name: str, known: Collection[str]) -> None:
    """Refuse a network that a run does not have."""
    if name not in known:
        choices = " or ".join(f"network={each}" for each in sorted(known))
        raise UserError(f"The run has no network '{name}'. Expected {choices}.")


def load_litert(path: Path) -> Predictor:
    """Return a predictor for a .tflite file with one input and one output, float or integer."""
    runtime = import_optional("ai_edge_litert.interpreter", extra="litert", needed_by="format=litert")
    interpreter = runtime.Interpreter(model_path=str(path))
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    size: list[int] = []

    def predict(inputs: np.ndarray) -> np.ndarray:
        if size != [len(inputs)]:
            interpreter.resize_tensor_input(given["index"], inputs.shape)
            with silent():  # it prints the delegate in use
                interpreter.allocate_tensors()
            size[:] = [len(inputs)]
        interpreter.set_tensor(given["index"], _as_given(np.asarray(inputs), given))
        interpreter.invoke()
        return _as_floats(np.array(interpreter.get_tensor(made["index"])), made)

    return predict


def _as_given(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """Convert values to the dtype of a LiteRT file's tensor, quantized if the tensor is.

    Halves are rounded as in TensorFlow's fake quantization, with its order of float32 operations: images have few
    distinct values, and many of them may lie halfway between two levels.
    """
    scale, zero = np.float32(tensor["quantization"][0]), tensor["quantization"][1]
    if not scale:
        return values.astype(tensor["dtype"])
    values = values.astype(np.float32)
    lowest, highest = scale * np.float32(-128 - zero), scale * np.float32(127 - zero)
    steps = (np.clip(values, lowest, highest) - lowest) * (np.float32(1.0) / scale)
    return (np.floor(steps - np.float32(zero + 128) + np.float32(0.5)) + zero).astype(np.int8)


def _as_floats(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    scale, zero = tensor["quantization"]
    if not scale:
        return values
    return (values.astype(np.float32) - zero) * np.float32(scale)


def load_onnx(path: Path) -> Predictor:
    """Return a predictor for an .onnx file with one input and one output."""
    runtime = import_optional("onnxruntime", extra="onnx", needed_by="format=onnx")
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # int8 kernels saturate on older CPUs
    session = runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    dtype = {"tensor(float)": "float32"}.get(given.type, given.type[len("tensor(") : -1])

    def predict(inputs: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {given.name: np.asarray(inputs, dtype)})[0])

    return predict


load_packed = load_model
