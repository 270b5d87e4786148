"""The sparse format: pruned and shared weights at the bits that they take, as in Deep Compression.

Han et al. 2016, arXiv 1510.00149: pruning, shared weights, Huffman coding. The file holds the Keras model's config and
its weights; `trainer.inference.sparse_file.read_sparse` gives back the dense arrays with NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from trainer.errors import UserError
from trainer.export.card import card_of
from trainer.export.contents import Contents
from trainer.export.keras_file import KerasPredictor
from trainer.export.options import ExportOptions
from trainer.export.plain_model import check_plain, foreign_parts, plain_model, single_model
from trainer.export.shared_weights import share_weights
from trainer.export.sparse_stages import describe_stages, measure_stages
from trainer.inference.card import CARD
from trainer.inference.compressed_json import compress_json
from trainer.inference.container import REMEDY, SPARSE, container_sizes, write_container
from trainer.inference.huffman_code import MAX_SYMBOLS
from trainer.inference.sparse_file import NETWORK, read_sparse_network, tensor_name
from trainer.network import name_variables
from trainer.run.finished import FinishedRun
from trainer.run.results import format_value, short_name

MAX_CODEBOOK = (MAX_SYMBOLS - 1).bit_length()
CONVOLUTION_BITS = 8
"""Of the paper, for convolutions; dense layers get 5."""
KERNEL = "kernel"
"""How the names of weights end that may be shared: depthwise and pointwise kernels too, no bias, no batch norm."""


def write_sparse(run: FinishedRun, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a sparse file, as `Format.write` describes it.

    Args:
        run: restored.
        network: name of the network.
        path: of the file.
        options: `codebook`, `codebook_conv` and `huffman`.

    Returns:
        The bytes of each weight after each stage; lossy where values were rounded to shared ones.

    Raises:
        UserError: an option out of range, or a network that no sparse file can hold.
    """
    bits = codebook_bits(options)
    with plain_model(run, network) as model:
        check_plain(model, "sparse")
        single_model(run, network, model, "sparse")
        about = {CARD: card_of(run, network).as_json()}
        contents = write_model(model, path, bits=bits, huffman=options.huffman, about=about)
    return replace(contents, notes=(*contents.notes, _own_metrics(run))) if contents.lossy else contents


def _own_metrics(run: FinishedRun) -> str:
    """Return one line with what the run comes to before its weights are rounded."""
    found = {name: value for name, value in run.parts.test.run(run.step).items() if "metric/" in name}
    values = ", ".join(f"{short_name(name)} {format_value(value)}" for name, value in found.items())
    return f"test split, weights as the run has them: {values}"


def codebook_bits(options: ExportOptions) -> tuple[int, int] | None:
    """Return the bits of an index into the codebooks of dense kernels and of convolutions, or None for no rounding.

    Args:
        options: as the user gave them.

    Raises:
        UserError: bits out of range, or bits for convolutions alone.
    """
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
    """Write a plain Keras model as a sparse file.

    Args:
        model: plain, with weights of float32.
        path: of the file.
        bits: of the codebooks of dense kernels and of convolutions; None keeps every value.
        huffman: whether indices and gaps are stored under Huffman codes, where that takes less.
        about: further facts about the network, as JSON values.

    Raises:
        UserError: a weight of another type; or one with NaN or infinity that shall be shared.
    """
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
    network = compress_json(keras.saving.serialize_keras_object(model))
    described = {
        "weights": [each.weight.as_json() for each in stored],
        **({} if about is None else {"about": dict(about)}),
    }
    write_container(path, SPARSE, described, {NETWORK: network, **tensors})
    return describe_stages(stages, container_sizes(path)[0] + network.nbytes, lossy=lossy)


def load_sparse(path: Path) -> KerasPredictor:
    """Return what predicts with a sparse file: its Keras model.

    Args:
        path: of the file.

    Raises:
        UserError: it cannot be read, or holds something else than a plain Keras model and its weights.
    """
    return KerasPredictor(load_sparse_model(path))


def load_sparse_model(path: Path) -> keras.Model:
    """Return the Keras model of a sparse file, with its weights.

    Args:
        path: of the file.

    Raises:
        UserError: as for `load_sparse`.
    """
    config, weights = read_sparse_network(path)
    if foreign := sorted(set(foreign_parts(config))):
        raise UserError(f"{path} asks for {', '.join(foreign)[:80]}. Expected a network of parts of Keras alone.")
    try:
        with ThreadPoolExecutor(1) as thread:  # what Keras keeps of a model without memory ends with the thread
            shapes = thread.submit(_planned_shapes, config).result()
        if shapes != [values.shape for values in weights.values()]:
            raise UserError(f"{path} has weights that do not fit its network. {REMEDY}")
        model = keras.saving.deserialize_keras_object(deepcopy(config))
    except UserError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{path} holds no network that Keras can build: {reason[:200]} {REMEDY}") from error
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
