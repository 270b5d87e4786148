"""Sparse files: pruned, shared and entropy-coded weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from hookline.deploy.card import card_of
from hookline.deploy.inference.card import CARD
from hookline.deploy.inference.container import REMEDY, SPARSE, compress_json, container_sizes, write_container
from hookline.deploy.inference.huffman import MAX_SYMBOLS
from hookline.deploy.inference.sparse_file import CODEBOOK, GAPS, NETWORK, read_sparse_network, tensor_name
from hookline.deploy.options import Contents, ExportOptions, first_line
from hookline.deploy.plain_model import architecture, check_plain, foreign_parts, plain_model, single_model
from hookline.deploy.runtime_files import KerasPredictor
from hookline.deploy.sparse_weight import Stored, share_weights, store
from hookline.trainer.errors import UserError
from hookline.trainer.network import name_variables
from hookline.trainer.run.results import format_value, short_name

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

COLUMNS = (
    "weight",
    "entries",
    "kept",
    "bits",
    "positions",
    "dense",
    "sparse",
    "shared",
    "huffman",
    "bits/kept",
    "times",
)


@dataclass(frozen=True)
class Stages:
    """Hold the final size of a weight, and the bytes of its data after each stage of Deep Compression.

    Attributes:
        stored: as it is in the file.
        kept: entries that are not 0.
        dense: bytes as float32.
        sparse: bytes of positions and float32 values.
        shared: bytes of positions, and of values through a codebook where that takes less.
    """

    stored: Stored
    kept: int
    dense: int
    sparse: int
    shared: int

    @property
    def entries(self) -> int:
        """Return the number of entries."""
        return self.stored.weight.size

    @property
    def coded(self) -> int:
        """Return the bytes in the file, with Huffman codes where they take less."""
        return self.stored.data_bytes


def measure_stages(name: str, values: np.ndarray, given: np.ndarray, *, huffman: bool) -> Stages:
    """Store a weight, and count its bytes after each stage."""
    return Stages(
        store(name, given, huffman=huffman),
        kept=int(np.count_nonzero(given)),
        dense=values.nbytes,
        sparse=store(name, values, huffman=False, codebook=False).data_bytes,
        shared=store(name, given, huffman=False).data_bytes,
    )


def describe_stages(stages: Sequence[Stages], header: int, *, lossy: bool) -> Contents:
    """Return the table of stages, as those of the paper: a row for each weight, and their sum."""
    entries, kept, dense, sparse, shared, data = (
        sum(getattr(each, name) for each in stages)
        for name in ("entries", "kept", "dense", "sparse", "shared", "coded")
    )
    total = ("total", f"{entries:,}", f"{kept:,}", "", "", *_bytes(dense, sparse, shared, data, kept))
    note = f"data {data:,} bytes, header {header:,} bytes"
    if data:  # a network without weights has none
        note += (
            f": {dense / data:.1f} times smaller than the weights as float32 by data alone, "
            f"{dense / (data + header):.1f} times with the header"
        )
    return Contents(COLUMNS, (*(_row(each) for each in stages), total), (note,), lossy)


def _row(stages: Stages) -> tuple[str, ...]:
    weight, parts = stages.stored.weight, stages.stored.parts
    bits = f"{(len(parts['codebook']) - 1).bit_length()}" if weight.values == CODEBOOK else "32"
    form = f"{weight.gap_bits}-bit {GAPS}" if weight.positions == GAPS else weight.positions
    numbers = _bytes(stages.dense, stages.sparse, stages.shared, stages.coded, stages.kept)
    return (weight.name, f"{stages.entries:,}", f"{stages.kept:,}", bits, form, *numbers)


def _bytes(dense: int, sparse: int, shared: int, coded: int, kept: int) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (dense, sparse, shared, coded))
    return (*counts, f"{8 * coded / kept:.2f}" if kept else "", f"{dense / coded:.1f}" if coded else "")


MAX_CODEBOOK = (MAX_SYMBOLS - 1).bit_length()
CONVOLUTION_BITS = 8
"""Of the paper, for convolutions; dense layers get 5."""
KERNEL = "kernel"
"""Name endings of weights that may be shared: depthwise and pointwise kernels too, no bias, no batch norm."""


def write_sparse(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a sparse file, as `Format.write` describes it."""
    bits = codebook_bits(options)
    with plain_model(run, network) as model:
        check_plain(model, "sparse")
        single_model(run, network, model, "sparse")
        about = {CARD: card_of(run, network).as_json()}
        contents = write_model(model, path, bits=bits, huffman=options.huffman, about=about)
    return replace(contents, notes=(*contents.notes, _own_metrics(run))) if contents.lossy else contents


def _own_metrics(run: Run) -> str:
    """Return one line with the metrics of the run before its weights are quantized."""
    found = {name: value for name, value in run.held_out["test"].run(run.step).items() if "metric/" in name}
    values = ", ".join(f"{short_name(name)} {format_value(value)}" for name, value in found.items())
    return f"test split, weights as the run has them: {values}"


def codebook_bits(options: ExportOptions) -> tuple[int, int] | None:
    """Return the bits of an index into the codebooks of dense kernels and of convolutions, or None for no rounding."""
    for name in ("codebook", "codebook_conv"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= MAX_CODEBOOK:
            raise UserError(f"Invalid {name}: {value}. Expected 1 to {MAX_CODEBOOK} bits, such as 5, or null.")
    if options.codebook is None:
        if options.codebook_conv is not None:
            raise UserError(
                f"codebook_conv={options.codebook_conv} received without codebook. Expected both, such as codebook=5."
            )
        return None
    return options.codebook, CONVOLUTION_BITS if options.codebook_conv is None else options.codebook_conv


def write_model(
    model: keras.Model,
    path: Path,
    *,
    bits: tuple[int, int] | None,
    huffman: bool,
    about: Mapping[str, Any] | None = None,
) -> Contents:
    """Write a plain Keras model as a sparse file."""
    stages, lossy = [], False
    for name, variable in name_variables(model.weights).items():
        values = np.array(variable.numpy(), order="C")
        if values.dtype != np.float32:
            raise UserError(
                f"The weight {name} is of {values.dtype}. Expected float32 for format=sparse, or format=keras."
            )
        given = _shared(name, values, bits)
        lossy = lossy or given.tobytes() != values.tobytes()
        stages.append(measure_stages(name, values, given, huffman=huffman))
    stored = [each.stored for each in stages]
    tensors = {tensor_name(i, part): array for i, each in enumerate(stored) for part, array in each.parts.items()}
    network = compress_json(architecture(model))
    described = {
        "weights": [each.weight.as_json() for each in stored],
        **({} if about is None else {"about": dict(about)}),
    }
    write_container(path, SPARSE, described, {NETWORK: network, **tensors})
    return describe_stages(stages, container_sizes(path)[0] + network.nbytes, lossy=lossy)


def load_sparse(path: Path) -> KerasPredictor:
    """Return the predictor of a sparse file: its Keras model."""
    return KerasPredictor(load_sparse_model(path))


def load_sparse_model(path: Path) -> keras.Model:
    """Return the Keras model of a sparse file, with its weights."""
    config, weights = read_sparse_network(path)
    if foreign := sorted(set(foreign_parts(config))):
        raise UserError(f"{path} asks for {', '.join(foreign)[:80]}. Expected a network of parts of Keras alone.")
    try:
        with ThreadPoolExecutor(1) as thread:  # Keras's state of a model without memory ends with the thread
            shapes = thread.submit(_planned_shapes, config).result()
        if shapes != [values.shape for values in weights.values()]:
            raise UserError(f"{path} has weights that do not fit its network. {REMEDY}")
        model = keras.saving.deserialize_keras_object(deepcopy(config))
    except UserError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, ImportError) as error:
        raise UserError(f"{path} holds no network that Keras can build: {first_line(error)[:200]} {REMEDY}") from error
    for variable, values in zip(model.weights, weights.values(), strict=True):  # in order: names may depend on history
        variable.assign(values)
    return model


def _planned_shapes(config: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the shapes of a model's weights without taking memory for them. Keras empties the config that it gets."""
    with keras.StatelessScope(initialize_variables=False):
        model = keras.saving.deserialize_keras_object(deepcopy(config))
        return [tuple(variable.shape) for variable in model.weights]


def _shared(name: str, values: np.ndarray, bits: tuple[int, int] | None) -> np.ndarray:
    if bits is None or values.ndim < 2 or not name.endswith(KERNEL):
        return values
    if not np.isfinite(values).all():
        raise UserError(f"The weight {name} holds NaN or infinity, which no codebook can. Expected codebook=null.")
    return share_weights(values, bits[values.ndim > 2])
