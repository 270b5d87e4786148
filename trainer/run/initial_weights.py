"""The weights that networks start from: those of a run, or of a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.saving import saving_lib

from hookline.trainer.errors import UserError, one_line, user_path
from hookline.trainer.network import Network, name_variables, settle
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.weight_files import BFLOAT16, Layer, by_path, held, open_weights

Pairs = list[tuple[Layer, Layer]]
SEED = "seed_generator_state"
SHOWN = 4
"""How many layers a line names."""


def load_file(networks: Sequence[Network], init_from: str) -> None:
    """Give the only network the weights of a file, before hooks change its model."""
    if len(networks) > 1:
        names = ", ".join(each.name for each in networks)
        raise UserError(f"init_from={init_from} holds one model. Expected a run directory with the networks {names}.")
    with open_weights(user_path(init_from, "init_from")) as given:
        networks[0].started_from = take_weights(networks[0], given, f"init_from={init_from}")


def load_run(networks: Sequence[Network], checkpoints: Path, init_from: str) -> None:
    """Give networks the weights of a run's best checkpoint, or of its last one."""
    store = CheckpointStore(checkpoints)
    tensors = store.load("best" if "best" in store.tags() else "last").tensors
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
    """Give a network the weights of layers that fit its own, each whole or not at all, and return lines on that."""
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
    """Give a built model the weights of a file, which must have every layer; `source` is an option with its value."""
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
    """Return the model's layers, the reading that matches most of them with given ones, and these pairs."""
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
    "by place in the model": lambda layers: [layer.place for layer in layers],  # Keras numbers layers without a name
}
"""What identifies a layer: the first reading that matches most layers counts."""


def _pairs(own: Sequence[Layer], given: Sequence[Layer], read: Callable[[Sequence[Layer]], list[str]]) -> Pairs:
    """Return the layers that match by one reading, and fit."""
    theirs, mine = _once(given, read(given)), _once(own, read(own))
    return [(layer, theirs[key]) for key, layer in mine.items() if key in theirs and _fits(layer, theirs[key])]


def _once(layers: Sequence[Layer], keys: Sequence[str]) -> dict[str, Layer]:
    """Return layers by key, without keys that repeat."""
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
    """Record which variables Keras would save into a file, and in which place."""

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
    """Return the layers of a model by their place in the files of Keras."""
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
