"""Initial weights of networks, from a run or from a file of another program.

Files are read as data: configs in them are ignored, and no model is built from them.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count, takewhile
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import keras
import ml_dtypes
import numpy as np
from keras.src.saving import saving_lib

from hookline.trainer.errors import ARRAY_FAULTS, UserError, one_line, user_path
from hookline.trainer.files import open_file, parse_json
from hookline.trainer.graph import unique_name
from hookline.trainer.network import Network, name_variables, settle
from hookline.trainer.run.checkpoint import CheckpointStore

KERAS, SAFETENSORS = ".keras", ".safetensors"
MEMBER = "model.weights.h5"
MOST_EXPANSION = 100
"""The largest compression ratio allowed for a member of a .keras file, as in Keras itself."""
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
    """Describe an array that is read on demand: a size that a file claims costs no memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Layer:
    """Hold the tensors of a layer, or its variables, by name."""

    path: str  # names of the layers that hold it, and its own
    place: str  # its position among the other layers, independent of names; "" if unknown
    tensors: Mapping[str, Any]  # by the last part of a variable's path, such as "kernel"; by number if `numbered`
    numbered: bool = False


def held(array: np.ndarray) -> Tensor:
    """Wrap an array in memory as a `Tensor`."""
    return Tensor(array.shape, array.dtype, lambda: array)


@contextmanager
def open_weights(path: Path) -> Iterator[list[Layer]]:
    """Yield the layers of a .keras, .weights.h5, .h5 or .safetensors file; read their tensors within the block."""
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
    """Return the layers of a file that Keras 3 saved: the groups that hold variables, each with its layer's name."""
    layers: list[Layer] = []
    waiting: list[tuple[h5py.Group, str, str]] = [(root, "", "")]
    for group, place, above in _reached(waiting):
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
    """Return the layers of an .h5 file in the format of Keras 2, in the order that its attributes give."""
    found: dict[str, Tensor] = {}
    top = ["top_level_model_weights"] if "top_level_model_weights" in root else []
    for layer in [*_names(root, "layer_names"), *top]:
        own = layer.split("/")
        for path in _names(reduce(_child, own, root), "weight_names"):
            *above, last = path.split("/")
            group = reduce(_child, [*own, *above], root)
            found[unique_name(path.partition(":")[0], found)] = _tensor(group, last)
    return by_path(found)


def _names(group: h5py.Group, key: str) -> list[str]:
    """Return the names in an attribute or, if Keras had to split a long list, in "<key>0", "<key>1", ..."""
    parts = takewhile(group.attrs.__contains__, [key] if key in group.attrs else (f"{key}{n}" for n in count()))
    return [name.decode() if isinstance(name, bytes) else str(name) for part in parts for name in group.attrs[part]]


def _reached(waiting: list[tuple[h5py.Group, str, str]]) -> Iterator[tuple[h5py.Group, str, str]]:
    """Yield the waiting groups, each once: links may lead back to an earlier one."""
    seen = set()
    while waiting:
        group, place, path = waiting.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address not in seen:
            seen.add(address)
            yield group, place, path


def _child(group: Any, key: str) -> Any:
    if not isinstance(group, h5py.Group) or "/" in key:
        raise ValueError(f"'{key}' is not in a group")
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
    """Return a tensor of a .safetensors file, after checking that it lies within the file and fits its shape."""
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
    """Group variables or tensors by path, such as "encoder/dense/kernel", into layers; `ordered` if as in the model."""
    grouped: dict[str, dict[str, Any]] = {}
    for path, variable in variables.items():
        layer, _, name = path.rpartition("/")
        grouped.setdefault(layer, {})[name] = variable
    places = [f"{index} of {len(grouped)}" if ordered else "" for index in range(len(grouped))]
    return [Layer(path, place, grouped[path]) for path, place in zip(grouped, places, strict=True)]


Pairs = list[tuple[Layer, Layer]]
SEED = "seed_generator_state"
SHOWN = 4
"""How many layers a line names."""


def load_file(networks: Sequence[Network], init_from: str) -> None:
    """Load the weights of a file into the only network, before hooks change its model."""
    if len(networks) > 1:
        names = ", ".join(each.name for each in networks)
        raise UserError(f"init_from={init_from} holds one model. Expected a run directory with the networks {names}.")
    with open_weights(user_path(init_from, "init_from")) as given:
        networks[0].started_from = take_weights(networks[0], given, f"init_from={init_from}")


def load_run(networks: Sequence[Network], checkpoints: Path, init_from: str) -> None:
    """Load the weights of a run's best checkpoint, or of its last one, into networks."""
    store = CheckpointStore(checkpoints)
    tensors = store.load_sound(store.best_or_last()).tensors
    stored: dict[str, dict[str, np.ndarray]] = {}
    for key, value in tensors.items():
        kind, _, rest = key.partition("/")
        name, _, path = rest.partition("/")
        if kind == "network" and not path.endswith(SEED):
            stored.setdefault(name, {})[path] = value
    for network in networks:
        found = stored.get(network.name)
        if found is None and len(stored) == len(networks) == 1:
            (found,) = stored.values()
        if found is None:
            raise UserError(f"init_from={init_from} has no network '{network.name}', only {', '.join(stored)}.")
        given = by_path({path: held(value) for path, value in found.items()})
        network.started_from = take_weights(network, given, f"init_from={init_from}")


def take_weights(network: Network, given: Sequence[Layer], source: str) -> list[str]:
    """Load the weights of matching layers, each completely or not at all, and return lines that report them."""
    own, how, pairs = _match(network.model, network.weights, given, source)
    _assign(pairs)
    settle(network.model)
    taken, used = ({id(pair[side]) for pair in pairs} for side in (0, 1))
    values = sum(math.prod(each.shape) for layer, _ in pairs for each in layer.tensors.values())
    lines = [f"{source}: {len(pairs)} of {len(own)} layers of '{network.name}' ({values:,} values), {how}."]
    if left := [layer for layer in own if id(layer) not in taken]:
        lines.append(f"Left as they were: {_listed(left)}.")
    if unused := [layer for layer in given if id(layer) not in used]:
        lines.append(f"Not used of {source.partition('=')[2]}: {_listed(unused)}.")
    return [one_line(line) for line in lines]


def load_whole(model: keras.Model, path: Path, source: str) -> None:
    """Load the weights of a file, which must have every layer, into a model; `source` is an option with its value."""
    with open_weights(path) as given:
        own, _, pairs = _match(model, name_variables(model.weights), given, source)
        taken = {id(mine) for mine, _ in pairs}
        if left := [layer for layer in own if id(layer) not in taken]:
            raise UserError(f"{source} has no weights for {_listed(left)}. Expected a file for a '{model.name}'.")
        _assign(pairs)
        settle(model)


def _match(
    model: keras.Model, weights: Mapping[str, keras.Variable], given: Sequence[Layer], source: str
) -> tuple[list[Layer], str, Pairs]:
    """Return the model's layers, the reading that matches most of them with given ones, and the matching pairs."""
    own = _layers_of(model) if any(each.numbered for each in given) else by_path(weights)
    how, pairs = max(((how, _pairs(own, given, key)) for how, key in READINGS.items()), key=lambda each: len(each[1]))
    if not pairs:
        raise UserError(
            f"No layer of {source} fits one of '{model.name}': it has {_listed(given)}; expected layers of the same "
            f"names and shapes, such as {_listed(own)}."
        )
    return own, how, pairs


def _assign(pairs: Pairs) -> None:
    for mine, theirs in pairs:
        for name, variable in mine.tensors.items():
            variable.assign(theirs.tensors[name].read().astype(variable.dtype))


def _below_model(layers: Sequence[Layer]) -> list[str]:
    one = len({layer.path.partition("/")[0] for layer in layers}) == 1
    return [layer.path.partition("/")[2] if one else layer.path for layer in layers]


READINGS: dict[str, Callable[[Sequence[Layer]], list[str]]] = {
    "by path": lambda layers: [layer.path for layer in layers],
    "by path below the model's name": _below_model,
    "by place in the model": lambda layers: [layer.place for layer in layers],  # Keras numbers unnamed layers
}
"""Ways to identify a layer: the one that matches most layers is used, the first in a tie."""


def _pairs(own: Sequence[Layer], given: Sequence[Layer], read: Callable[[Sequence[Layer]], list[str]]) -> Pairs:
    """Return the pairs of layers that match by one reading and have compatible tensors."""
    theirs, mine = _once(given, read(given)), _once(own, read(own))
    return [(layer, theirs[key]) for key, layer in mine.items() if key in theirs and _fits(layer, theirs[key])]


def _once(layers: Sequence[Layer], keys: Sequence[str]) -> dict[str, Layer]:
    """Return layers by key, without repeated keys."""
    counts = Counter(keys)
    return {key: layer for key, layer in zip(keys, layers, strict=True) if counts[key] == 1}


def _fits(own: Layer, given: Layer) -> bool:
    if own.numbered and own.tensors.keys() != given.tensors.keys():
        return False
    return all(
        name in given.tensors
        and tuple(variable.shape) == tuple(given.tensors[name].shape)
        and _is_float(given.tensors[name].dtype) == _is_float(np.dtype(variable.dtype))
        for name, variable in own.tensors.items()
    )


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == BFLOAT16


class _Recorder(saving_lib.H5IOStore):
    """Record the variables that Keras would save to a file, and their places in it."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.variables: dict[str, dict[str, Any]] = {}
        self._place = ""

    def __bool__(self) -> bool:
        return True  # or Keras saves nothing

    def make(self, path: str, metadata: Any = None) -> _Recorder:
        self._place = path
        self.names[path] = str((metadata or {}).get("name", path.rpartition("/")[2]))
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        self.variables.setdefault(self._place, {})[key] = value


def _layers_of(model: keras.Model) -> list[Layer]:
    """Return the layers of a model with their places in Keras's files."""
    recorder, weights = _Recorder(), {id(each) for each in model.weights}
    saving_lib._save_state(model, recorder, None, "", set())
    layers = []
    for place, variables in recorder.variables.items():
        if all(id(each) in weights for each in variables.values()):
            parts = place.split("/") if place else []
            above = ("/".join(parts[: count + 1]) for count in range(len(parts)))
            path = "/".join(recorder.names[each] for each in above if each in recorder.names)
            layers.append(Layer(path, place, variables, numbered=True))
    return layers


def _listed(layers: Sequence[Layer]) -> str:
    shown = []
    for layer in layers[:SHOWN]:
        shapes = [str(list(each.shape)) for each in list(layer.tensors.values())[:SHOWN]]
        shown.append(f"{layer.path or 'the model'} {' '.join(shapes)}")
    more = [f"{len(layers) - SHOWN} more"] if len(layers) > SHOWN else []
    return ", ".join([*shown, *more]) or "nothing"
