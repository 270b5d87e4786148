"""Weights in files of other programs, read as data: no config in them is looked at, and nothing is built."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import ml_dtypes
import numpy as np

from hookline.trainer.errors import ARRAY_FAULTS, UserError
from hookline.trainer.files import open_file, parse_json
from hookline.trainer.select import unique_name

KERAS, SAFETENSORS = ".keras", ".safetensors"
MEMBER = "model.weights.h5"
MOST_EXPANSION = 100
"""The largest ratio of compression of a member of a .keras file, as for Keras itself."""
VARIABLES, NAME = "vars", "name"
"""In a Keras file, the group with the arrays of a layer, and its attribute with the layer's name."""
NO_WEIGHTS = frozenset(("optimizer", "seed_generator"))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "BF16": BFLOAT16,
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": np.dtype(bool),
}
MAX_HEADER = 2**26
PREFIX = 8


@dataclass(frozen=True)
class Tensor:
    """Describe an array that is read only on request: what a file claims costs no memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Layer:
    """Hold the tensors of a layer, or its variables, by name."""

    path: str  # names of the layers that hold it, and its own
    place: str  # its position among the others, whatever their names; "" if unknown
    tensors: Mapping[str, Any]  # by the last part of a variable's path, such as "kernel"; by number if `numbered`
    numbered: bool = False


def held(array: np.ndarray) -> Tensor:
    """Return an array that is in memory as a tensor."""
    return Tensor(array.shape, array.dtype, lambda: array)


@contextmanager
def open_weights(path: Path) -> Iterator[list[Layer]]:
    """Give the layers of a .keras, .weights.h5, .h5 or .safetensors file; their tensors are read within the block."""
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open_file(path, follow=True))
            yield _safetensors(file) if path.suffix == SAFETENSORS else _hdf5(stack, path, file)
    except UserError:
        raise
    except ARRAY_FAULTS as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())[:200]
        message = f"{path} cannot be read: {reason.rstrip('.')}. Expected weights in a {path.suffix} file."
        raise UserError(message) from error


def _hdf5(stack: ExitStack, path: Path, file: BinaryIO) -> list[Layer]:
    content = _member(file) if path.suffix == KERAS else file
    root = stack.enter_context(h5py.File(content, "r"))
    old = _child(root, "model_weights") if "model_weights" in root else root
    return _old_layers(old) if any(key.startswith("layer_names") for key in old.attrs) else _layers(root)


def _member(file: BinaryIO) -> BinaryIO:
    with zipfile.ZipFile(file) as archive:
        if MEMBER not in archive.namelist():
            raise ValueError(f"it holds no {MEMBER}")
        info = archive.getinfo(MEMBER)
        if info.file_size > MOST_EXPANSION * max(info.compress_size, 1):
            raise ValueError(f"its {MEMBER} would expand more than {MOST_EXPANSION} times")
        return io.BytesIO(archive.read(info))


def _layers(root: h5py.File) -> list[Layer]:
    """Return the layers that Keras 3 has saved: groups in the order of its traversal, each with its layer's name."""
    layers: list[Layer] = []
    waiting: list[tuple[h5py.Group, str, str]] = [(root, "", "")]
    for group, place, above in _once(waiting):
        path = above
        if VARIABLES in group:
            variables = _child(group, VARIABLES)
            name = variables.attrs.get(NAME)
            name = name if isinstance(name, str) else place.rpartition("/")[2]
            path = f"{above}/{name}".strip("/") if place else ""  # without the model's own name
            tensors = {key: _tensor(variables, key) for key in variables}
            if tensors:
                layers.append(Layer(path, place, tensors, numbered=True))
        for key in group:
            if key not in (VARIABLES, *NO_WEIGHTS) and isinstance(child := _child(group, key), h5py.Group):
                waiting.append((child, f"{place}/{key}".strip("/"), path))
    return layers


def _old_layers(root: h5py.Group) -> list[Layer]:
    """Return the layers of an .h5 file in the format of Keras 2: datasets with the paths of variables."""
    found: dict[str, Tensor] = {}
    waiting = [(root, "", "")]
    for group, place, _ in _once(waiting):
        for key in group:
            child, path = _child(group, key), f"{place}/{key}".strip("/")
            if isinstance(child, h5py.Group):
                waiting.append((child, path, ""))
            elif "/" in path:
                found[unique_name(path.partition("/")[2].partition(":")[0], found)] = _tensor(group, key)
    return by_path(found)


def _once(waiting: list[tuple[h5py.Group, str, str]]) -> Iterator[tuple[h5py.Group, str, str]]:
    """Yield groups while some wait, each once: links may lead back to an earlier one."""
    seen = set()
    while waiting:
        group, place, path = waiting.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address not in seen:
            seen.add(address)
            yield group, place, path


def _child(group: h5py.Group, key: str) -> Any:
    if group.get(key, getclass=True, getlink=True) is not h5py.HardLink:
        raise ValueError(f"'{key}' links to somewhere else")
    return group[key]


def _tensor(group: h5py.Group, key: str) -> Tensor:
    dataset = _child(group, key)
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"'{key}' is not an array of its own")
    half = dataset.attrs.get("dtype") == BFLOAT16.name and dataset.dtype.itemsize == BFLOAT16.itemsize
    dtype = BFLOAT16 if half else dataset.dtype
    return Tensor(dataset.shape or (), dtype, lambda: np.asarray(dataset[()]).view(dtype))


def _safetensors(file: BinaryIO) -> list[Layer]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(PREFIX), "little")
    if length > min(size - PREFIX, MAX_HEADER):
        raise ValueError("its header does not end within it")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a mapping")
    start = PREFIX + length
    named = {name: _placed(file, name, spec, start, size) for name, spec in header.items() if name != "__metadata__"}
    return by_path(named, ordered=False)


def _placed(file: BinaryIO, name: str, spec: Any, start: int, size: int) -> Tensor:
    """Return a tensor of a .safetensors file, if it lies within the file and has the size that its shape says."""
    try:
        dtype, shape, (begin, end) = DTYPES[spec["dtype"]], tuple(spec["shape"]), spec["data_offsets"]
        fits = 0 <= begin <= end <= size - start and end - begin == math.prod(shape) * dtype.itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"'{name:.80}' has no dtype, shape and place") from error
    if not fits:
        raise ValueError(f"'{name:.80}' does not fill its place")
    return Tensor(shape, dtype, partial(_read, file, start + begin, shape, dtype))


def _read(file: BinaryIO, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    file.seek(begin)
    return np.frombuffer(file.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def by_path(variables: Mapping[str, Any], *, ordered: bool = True) -> list[Layer]:
    """Return the layers of variables, or tensors, by path such as "encoder/dense/kernel"; `ordered` as in the model."""
    grouped: dict[str, dict[str, Any]] = {}
    for path, variable in variables.items():
        layer, _, name = path.rpartition("/")
        grouped.setdefault(layer, {})[name] = variable
    places = [f"{index} of {len(grouped)}" if ordered else "" for index in range(len(grouped))]
    return [Layer(path, place, grouped[path]) for path, place in zip(grouped, places, strict=True)]
