"""The hooks of a trainer: classes, objects, names of configs, and those that every run has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from hookline.hooks import catalogue
from hookline.trainer.config.schema import TARGET
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.hook import GraphHook, Hook, again
from hookline.trainer.run.blueprint import BINDING, build_hook

ALWAYS = ("fused_batch_norm", "nan_guard", "randomness_guard", "advisor")
"""Of configs/hooks/default.yaml: what every run has."""
ON_DISK = ("tensorboard", "pictures", "projector", "metrics_jsonl", "checkpoint")
"""Likewise, of runs that have a directory. Early stopping is for those who ask for it."""
WRITERS = ("tensorboard", "pictures", "projector", "metrics_jsonl", "csv", "wandb", "mlflow")
PROGRESS = "progress"


@dataclass(frozen=True)
class Maker:
    """Make a new hook for each fit and each network."""

    name: str  # of the hook
    make: Callable[[], Hook]  # returns a hook that is not built yet
    node: dict[str, Any]  # what config.yaml says of it; arguments that are not plain values are left out
    whole: bool = True  # whether the node has all arguments, so that a hook can be made of it alone


def hook_makers(given: Sequence[Any], *, on_disk: bool, mode: str | None) -> dict[str, Maker]:
    """Return what makes the hooks of a run, by name: those of every run, and those that were given."""
    names = [*ALWAYS, *(ON_DISK if on_disk else ())]
    makers = {name: _of_config(name, {}) for name in names}
    if mode is not None:
        makers[PROGRESS] = _of_config(PROGRESS, {"mode": mode})
    own: set[str] = set()
    for each in given:
        for maker in _makers(each, makers):
            if maker.name in own:
                raise UserError(f"hooks has two of the name '{maker.name}'. Expected {{'another': hook}}.")
            own.add(maker.name)
            makers[maker.name] = maker
    for name in WRITERS if not on_disk else ():
        if name in makers:
            raise UserError(f"The hook '{name}' writes files. Expected Trainer(run_dir=<directory>) with it.")
    return makers


def _makers(given: Any, makers: dict[str, Maker]) -> list[Maker]:
    if isinstance(given, type) and issubclass(given, Hook):
        given = given()
    if isinstance(given, Hook):
        return [_of_object(given)]
    if isinstance(given, str):
        return [_of_config(given, {})]
    if not isinstance(given, Mapping):
        raise UserError(
            f"hooks has an entry of type {type(given).__name__}. Expected hooks such as hookline.hooks.Prune(), names "
            "such as 'bnn_rounding', or {'bnn_rounding': {...}}; {'name': hook} names one."
        )
    found = []
    for name, each in given.items():
        if each is not None:
            found.append(_of_object(each, str(name)) if isinstance(each, Hook) else _of_config(str(name), each))
        elif makers.pop(name, None) is None:
            raise unknown_name("hook to remove", str(name), makers)
    return found


def _of_config(name: str, options: Mapping[str, Any]) -> Maker:
    entries = catalogue()
    if name not in entries:
        raise unknown_name("hook", name, entries)
    content: Any = OmegaConf.to_container(OmegaConf.load(entries[name].config_file))
    node = {**content[name], **options}
    plugins = [node[TARGET].partition(".")[0]] if entries[name].plugin else []
    return Maker(name, lambda: build_hook(name, node, plugins=plugins), node)


def _of_object(hook: Hook, name: str = "") -> Maker:
    hook.name = name or hook.name or hook_name(type(hook))
    _, kwargs = hook.given
    node: dict[str, Any] = {TARGET: f"{type(hook).__module__}.{type(hook).__qualname__}"}
    node |= {name: value for name, value in kwargs.items() if _is_plain(value)}
    for key in BINDING if isinstance(hook, GraphHook) else ():
        node.setdefault(key, getattr(hook, key))
    known = any(entry.target == node[TARGET] for entry in catalogue().values())
    whole = not hook.given[0] and all(_is_plain(value) for value in kwargs.values()) and known
    return Maker(hook.name, (lambda: again(hook)) if isinstance(hook, GraphHook) else (lambda: hook), node, whole)


def hook_name(kind: type) -> str:
    """Return what a hook of a class is called: its name in the catalogue, else that of the class in snake case."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    known = next((entry.name for entry in catalogue().values() if entry.target == path), None)
    return known or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)
