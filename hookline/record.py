"""What a run directory keeps of a trainer of Python: its parts as Keras describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from hookline.deploy.plain_model import architecture
from hookline.hook_list import PROGRESS
from hookline.recipes.losses import ONE
from hookline.recipes.supervised import MODEL
from hookline.spec import Spec
from hookline.trainer.errors import UserError
from hookline.trainer.files import read_json, write_whole

FILE_NAME = "trainer.json"


def write_record(directory: Path, spec: Spec) -> None:
    """Write what a later process makes the trainer of. Parts that Keras cannot describe are left out."""
    with spec.ending(as_given=True):
        parts = {
            "model": _described(spec.models.get(MODEL)),
            "optimizer": _described(spec.optimizers.get(MODEL)),
            "loss": _by_output({name: _described(each.given) for name, each in spec.losses.items()}),
            "metrics": _by_output({name: list(map(_described, each)) for name, each in spec.metrics.items()}) or [],
            "loss_weights": spec.loss_weights or None,
        }
    hooks = {name: each.whole for name, each in spec.makers.items() if each.node and name != PROGRESS}
    paths = {name: _paths(model) for name, model in spec.models.items()}
    write_whole(directory / FILE_NAME, json.dumps({**parts, "hooks": hooks, "paths": paths}, indent=1) + "\n")


def read_record(directory: Path) -> dict[str, Any]:
    """Return what was written."""
    try:
        record = read_json(directory / FILE_NAME)
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("hooks"), dict):
        raise UserError(f"{directory / FILE_NAME} cannot be read. Expected the directory of a run of hookline.Trainer.")
    return record


def restore_paths(record: Mapping[str, Any], models: Mapping[str, keras.Model]) -> None:
    """Give the variables and layers of models the paths that they had in the run: checkpoints name variables by them.

    Keras numbers layers by what the process has built before, and a Sequential model that is read from its config
    has other paths than the one that was written. Models of another structure keep their own.
    """
    for name, model in models.items():
        recorded = (record.get("paths") or {}).get(name) or {}
        for kind, parts in _parts(model).items():
            paths = recorded.get(kind) or ()
            if len(paths) == len(parts):
                for part, path in zip(parts, paths, strict=True):
                    part._path = path


def _parts(model: keras.Model) -> dict[str, list[Any]]:
    return {"variables": list(model.variables), "layers": list(model._flatten_layers())}


def _paths(model: keras.Model) -> dict[str, list[str]]:
    return {kind: [part.path or part.name for part in parts] for kind, parts in _parts(model).items()}


def made(record: Mapping[str, Any], name: str) -> Any:
    """Return a part of a record, rebuilt. Only parts of Keras are: nothing else that a file names is imported."""
    described = record.get(name)
    if isinstance(described, dict) and list(described) == ["outputs"]:
        return {output: made({name: each}, name) for output, each in described["outputs"].items()}
    if isinstance(described, list):
        return [_made(each, name) for each in described]
    return _made(described, name)


def _made(described: Any, name: str) -> Any:
    if isinstance(described, str):
        return described
    foreign = sorted(set(_foreign(described))) if described is not None else ["no description"]
    if foreign:
        raise UserError(f"The run's {name} has parts that no file can bring: {', '.join(foreign)}. Expected {name}=.")
    return keras.saving.deserialize_keras_object(described)


def _foreign(config: Any) -> Iterator[str]:
    """Yield the parts of a description that are neither of Keras nor of this project."""
    if isinstance(config, Mapping):
        root = str(config.get("module") or "keras").partition(".")[0]
        if "class_name" in config and root not in ("keras", "builtins", "hookline"):
            yield f"{root}'s {config['class_name']}"
        if "class_name" in config and config.get("registered_name") and not config.get("module"):
            yield str(config["registered_name"])
        for value in config.values():
            yield from _foreign(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _foreign(value)


def _by_output(values: dict[str, Any]) -> Any:
    return values[ONE] if list(values) == [ONE] else {"outputs": values} if values else None


def _described(part: Any) -> Any:
    if part is None or isinstance(part, str):
        return part
    try:
        described = architecture(part)
        json.dumps(described)
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None
    return described
