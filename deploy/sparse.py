"""Sparse files: pruned, shared and entropy-coded weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hookline.deploy.formats import Contents, ExportOptions
from hookline.deploy.inference import sparse_file as layout
from hookline.deploy.inference.card import CARD
from hookline.deploy.inference.container import REMEDY, SPARSE, compress_json, container_sizes, write_container
from hookline.deploy.inference.sparse_file import SparseWeight
from hookline.deploy.plain_model import architecture, card_of, check_plain, check_weights, plain_model, single_model
from hookline.deploy.runtime_files import KerasPredictor
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Run
from hookline.trainer.network import name_variables, settle
from hookline.trainer.run.finished import foreign_parts
from hookline.trainer.run.results import format_value, short_name

MAX_ROUNDS = 300


def share_weights(values: np.ndarray, bits: int) -> np.ndarray:
    """Replace each value by its nearest centroid, of at most 2 ** bits; fewer distinct values are kept unchanged.

    The centroids are initialized linearly from the lowest to the highest value, which represents large weights well,
    though they are rare (Han et al. 2016, section 3.2). Pruned weights stay 0, and no other weight becomes 0.
    """
    kept = values[values != 0]
    distinct, inverse = np.unique(kept, return_inverse=True)
    if len(distinct) <= 1 << bits:
        return values
    counts = np.bincount(inverse)
    shared = np.zeros_like(values)  # also where a 0 is negative
    shared[values != 0] = _nearest(distinct.astype(np.float64), counts, 1 << bits)[inverse]
    return shared


def _nearest(distinct: np.ndarray, counts: np.ndarray, centroids: int) -> np.ndarray:
    """Return the centroid of each value, float32, by Lloyd's algorithm, which always ends and is deterministic."""
    total = np.concatenate([[0.0], np.cumsum(distinct * counts)])
    count = np.concatenate([[0], np.cumsum(counts)])
    centers = np.linspace(distinct[0], distinct[-1], centroids)
    ends = np.zeros(0, np.int64)
    for _ in range(MAX_ROUNDS):
        found = np.searchsorted(distinct, (centers[1:] + centers[:-1]) / 2)  # values below belong to the lower one
        bounds = np.unique(np.concatenate([[0], found, [len(distinct)]]))
        if np.array_equal(bounds, ends):
            break
        ends = bounds
        centers = (total[ends[1:]] - total[ends[:-1]]) / (count[ends[1:]] - count[ends[:-1]])
    book = centers.astype(np.float32)
    first = distinct[ends[:-1]].astype(np.float32)
    book = np.where(book == 0, first, book)  # values around 0 with a mean of 0, which would mean "pruned"
    return np.repeat(book, np.diff(ends))


HEADER_BYTES = 80  # approximate cost of another array in the header of a file: a smaller gain is not worth it


@dataclass(frozen=True)
class Stored:
    """Hold an array as it is stored."""

    weight: SparseWeight
    parts: dict[str, np.ndarray]  # its arrays, by what they hold

    @property
    def data_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    @property
    def cost(self) -> int:
        """Return approximately how many bytes it adds to the file."""
        return self.data_bytes + HEADER_BYTES * len(self.parts)


def store(name: str, values: np.ndarray, *, huffman: bool, codebook: bool = True) -> Stored:
    """Return an array in the smallest form; every form is bit-exact, including -0.0 and NaN."""
    everything = SparseWeight(name, values.shape, layout.ROWS, layout.ALL, values.size, layout.FLOATS)
    forms = [Stored(everything, {})]
    for order in (layout.ROWS, layout.COLUMNS) if min(_matrix(values).shape) > 1 else (layout.ROWS,):
        flat = _flat(values, order).view(np.uint32)
        places = np.flatnonzero(flat)
        sparse = replace(everything, order=order, kept=len(places))
        forms.append(Stored(replace(sparse, positions=layout.BITMAP), {layout.BITMAP: np.packbits(flat != 0)}))
        for bits in range(1, layout.MAX_BITS + 1):
            numbers = layout.to_gaps(places, bits)
            if len(numbers) <= values.size:
                described = replace(sparse, positions=layout.GAPS, gap_bits=bits, gaps=len(numbers))
                forms.append(Stored(described, _numbers(layout.GAPS, numbers, bits, huffman=huffman)))
    forms = [forms[0], min(forms[1:], key=lambda form: form.cost)]  # the values of all others cost the same
    return min((_with_values(form, values, huffman, codebook) for form in forms), key=lambda form: form.cost)


def _with_values(form: Stored, values: np.ndarray, huffman: bool, codebook: bool) -> Stored:
    """Return a form with the values of the entries that it keeps, in its order."""
    flat = _flat(values, form.weight.order)
    kept = flat if form.weight.positions == layout.ALL else flat[flat.view(np.uint32) != 0]
    found = Stored(form.weight, {**form.parts, "values": kept})
    book, indices = np.unique(kept.view(np.uint32), return_inverse=True)
    if not codebook or not 1 <= len(book) <= layout.MAX_SYMBOLS:
        return found
    numbers = _numbers("indices", indices.astype(np.uint8), (len(book) - 1).bit_length(), huffman=huffman)
    parts = {**form.parts, "codebook": book.view(np.float32), **numbers}
    return min(found, Stored(replace(form.weight, values=layout.CODEBOOK), parts), key=lambda stored: stored.cost)


def _numbers(name: str, numbers: np.ndarray, bits: int, *, huffman: bool) -> dict[str, np.ndarray]:
    """Return the arrays that hold numbers, with a fixed width or a Huffman code, whichever takes fewer bytes."""
    if bits == 0:
        return {}
    counts = np.bincount(numbers, minlength=1)
    lengths = layout.code_lengths(counts)
    coded = int(counts @ lengths.astype(np.int64)) // 8 + len(lengths) // 2 + HEADER_BYTES
    if huffman and lengths.any() and coded < len(numbers) * bits // 8:
        return {name: layout.encode(numbers, lengths), f"{name}_code": layout.write_lengths(lengths)}
    return {name: layout.write_fields(numbers, np.full(len(numbers), bits))}


def _matrix(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1]) if values.ndim > 1 and values.size else values.reshape(1, -1)


def _flat(values: np.ndarray, order: str) -> np.ndarray:
    """Return the entries row by row, or column by column, of the matrix with the output channels as columns."""
    matrix = _matrix(values)
    return np.ascontiguousarray(matrix if order == layout.ROWS else matrix.T).reshape(-1)


TABLE = (
    "weight", "entries", "kept", "bits", "positions", "dense", "sparse", "shared", "huffman", "bits/kept", "times",
)  # fmt: skip
"""Columns of the printed table; from "dense" to "huffman" the bytes after each stage of Deep Compression."""


def _row(name: str, counts: Sequence[int], form: Stored | None = None) -> tuple[str, ...]:
    """Return a row of the table from its counts, for a weight or, without a form, for all of them."""
    entries, kept, *sizes = counts
    bits = positions = ""
    if form is not None:
        weight = form.weight
        bits = f"{(len(form.parts['codebook']) - 1).bit_length()}" if weight.values == layout.CODEBOOK else "32"
        positions = f"{weight.gap_bits}-bit {layout.GAPS}" if weight.positions == layout.GAPS else weight.positions
    ratios = f"{8 * sizes[-1] / kept:.2f}" if kept else "", f"{sizes[0] / sizes[-1]:.1f}" if sizes[-1] else ""
    return (name, f"{entries:,}", f"{kept:,}", bits, positions, *(f"{size:,}" for size in sizes), *ratios)


CONVOLUTION_BITS = 8  # as in the paper, which uses 5 for dense layers
KERNEL = "kernel"
"""Name suffix of weights that may be shared: also depthwise and pointwise kernels, but no bias, no batch norm."""


def write_sparse(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a sparse file, as `Format.write` describes it."""
    with plain_model(run.trainer, run.step, network) as model:
        check_plain(model)
        single_model(run, network, model, "sparse")
        contents = write_model(model, path, options, {CARD: card_of(run, network).as_json()})
    if not contents.lossy:
        return contents
    found = {name: value for name, value in run.held_out["test"].run(run.step).items() if "metric/" in name}
    values = ", ".join(f"{short_name(name)} {format_value(value)}" for name, value in found.items())
    return replace(contents, notes=(*contents.notes, f"test split, weights as the run has them: {values}"))


def write_model(model: keras.Model, path: Path, options: ExportOptions, about: Mapping[str, Any]) -> Contents:
    """Write a plain Keras model as a sparse file; return its table, as in the paper."""
    weights = _used(model)
    check_weights(weights, "sparse", lambda dtype: dtype != "float32")
    stored: list[Stored] = []
    rows: list[tuple[str, ...]] = []
    totals, lossy = [0] * 6, False
    for name, variable in name_variables(weights).items():
        values = np.array(variable.numpy(), order="C")
        given = _shared(name, values, options)
        lossy = lossy or given.tobytes() != values.tobytes()
        form = store(name, given, huffman=options.huffman)
        sparse = store(name, values, huffman=False, codebook=False).data_bytes
        shared = store(name, given, huffman=False).data_bytes
        counts = [given.size, int(np.count_nonzero(given)), values.nbytes, sparse, shared, form.data_bytes]
        stored.append(form)
        rows.append(_row(name, counts, form))
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    tensors = {f"{i}.{part}": array for i, each in enumerate(stored) for part, array in each.parts.items()}
    network = compress_json(architecture(model))
    described = {"weights": [each.weight.as_json() for each in stored], "about": dict(about)}
    write_container(path, SPARSE, described, {layout.NETWORK: network, **tensors})
    header, dense, data = container_sizes(path)[0] + network.nbytes, totals[2], totals[-1]
    note = f"data {data:,} bytes, header {header:,} bytes"
    if data:  # a network without weights has none
        note += (
            f": {dense / data:.1f} times smaller than the weights as float32 by data alone, "
            f"{dense / (data + header):.1f} times with the header"
        )
    return Contents(TABLE, (*rows, _row("total", totals)), (note,), lossy)


def _used(model: keras.Model) -> list[keras.Variable]:
    """Return the weights of a model without the int64 counts of Normalization layers, which nothing reads."""
    norms = [each for each in model._flatten_layers() if isinstance(each, keras.layers.Normalization)]
    counts = {id(getattr(each, "count", None)) for each in norms}
    return [each for each in model.weights if id(each) not in counts]


def _shared(name: str, values: np.ndarray, options: ExportOptions) -> np.ndarray:
    if options.codebook is None or values.ndim < 2 or not name.endswith(KERNEL):
        return values
    if not np.isfinite(values).all():
        raise UserError(f"The weight {name} holds NaN or infinity, which no codebook can. Expected codebook=null.")
    return share_weights(values, options.codebook if values.ndim == 2 else options.codebook_conv or CONVOLUTION_BITS)


def load_sparse(path: Path) -> KerasPredictor:
    """Return the predictor of a sparse file: its Keras model with the stored weights."""
    config, weights = layout.read_sparse_network(path)
    if foreign := sorted(set(foreign_parts(config))):
        raise UserError(f"{path} refers to {', '.join(foreign)[:80]}. Expected a network made only of Keras parts.")
    with ThreadPoolExecutor(1) as thread:  # discards what Keras keeps of a model without memory
        shapes = thread.submit(_planned_shapes, config).result()
    if shapes != [values.shape for values in weights.values()]:
        raise UserError(f"{path} has weights that do not fit its network. {REMEDY}")
    model = keras.saving.deserialize_keras_object(config)
    for variable, values in zip(_used(model), weights.values(), strict=True):  # in order: names may depend on history
        variable.assign(values)
    settle(model)
    return KerasPredictor(model)


def _planned_shapes(config: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the shapes of a model's weights without allocating them, from a copy of the config: Keras empties it."""
    with keras.StatelessScope(initialize_variables=False):
        model = keras.saving.deserialize_keras_object(deepcopy(config))
        return [tuple(variable.shape) for variable in _used(model)]
