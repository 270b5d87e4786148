"""The parts that a config may name: what `configs/` lists, by group; classes of Keras; packages that the user named.

A config may come from a stranger, and a `_target_` is a call. So an import path into this project, or into an installed
plugin, must be listed by a file of its `configs/`, in the group that it is used in; `plugins=` allows a package as a
whole. The object at the path must be such a part itself, so that an alias leads nowhere else.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hookline.trainer.config.plugins import OWN_CONFIGS, OWN_PACKAGE, installed_plugins, trusted_packages
from hookline.trainer.config.schema import NAMED, TARGET, walk
from hookline.trainer.errors import UserError, did_you_mean

KINDS = {
    "data": "data source",
    "model": "model",
    "task": "task",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "augment": "augmentation",
    "hooks": "hook",
}
"""Groups of `configs/` whose files list parts, with what such a part is called."""
KERAS_FAMILIES = (
    *("applications", "constraints", "initializers", "layers"),
    *("losses", "metrics", "optimizers", "regularizers"),
)
KERAS_CLOSED = frozenset(
    (
        *("TFSMLayer", "Lambda", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"),  # run programs
        *("IndexLookup", "IntegerLookup", "StringLookup", "TextVectorization"),  # read the file that `vocabulary` names
    )
)
KERAS_CONFIG = "class_name"  # Keras itself imports and calls what a mapping with this key names
_LISTED = re.compile(r"^\s*_target_:\s*([\w.]+)", re.MULTILINE)


def check_path(path: Any, *, group: str | None = None, plugins: Sequence[str] = ()) -> None:
    """Check a single import path, without importing anything."""
    public = isinstance(path, str) and all(part.isidentifier() and part[0] != "_" for part in path.split("."))
    if not public or "." not in path:
        raise UserError(f"_target_={path} received. Expected an import path such as keras.optimizers.Adam.")
    if not (_of_plugins(path, plugins) or _of_keras(path, group) or _is_declared(path, group)):
        raise _refusal(path, group, plugins)


def check_tree(config: Mapping[str, Any], plugins: Sequence[str]) -> None:
    """Check every import path of a config, each in the group where it stands, without importing anything."""
    for section, content in config.items():
        nodes = content if section in NAMED and isinstance(content, Mapping) else {section: content}
        for key, node in (each for part in nodes.values() for each in walk(part)):
            if isinstance(node, Mapping) and TARGET in node:
                check_path(node[TARGET], group=section if section in KINDS and not key else None, plugins=plugins)
            if isinstance(node, Mapping) and KERAS_CONFIG in node:
                raise UserError(
                    f"A mapping with '{KERAS_CONFIG}' received ({node[KERAS_CONFIG]}), which Keras would import from. "
                    f"Expected {TARGET}, such as {{{TARGET}: keras.initializers.HeNormal}}."
                )


def is_part(target: Any, *, group: str | None = None, plugins: Sequence[str] = ()) -> bool:
    """Return whether an object is a class or function, at the top level of its module, that a config may name."""
    if not inspect.isclass(target) and not inspect.isfunction(target):
        return False
    home, name = str(target.__module__), str(target.__qualname__)
    if getattr(sys.modules.get(home), name, None) is not target:
        return False
    if home.startswith("keras."):
        return _is_keras_part(target, group)
    if home.partition(".")[0] == OWN_PACKAGE:
        return _of_plugins(home, plugins) or _is_declared(f"{home}.{name}", group)
    return _of_plugins(home, (*plugins, *trusted_packages()))


def declared(group: str | None) -> frozenset[str]:
    """Return the import paths that the files of a group list, ours and those of installed plugins."""
    if group is None:
        return frozenset()
    found = set(_listed(OWN_CONFIGS / group))
    for plugin in installed_plugins():
        if plugin.configs is not None and plugin.problem is None:
            found |= {path for path in _listed(plugin.configs / group) if _of_plugins(path, (plugin.package,))}
    return frozenset(found)


def _is_declared(path: str, group: str | None) -> bool:
    own = group is not None and path in _listed(OWN_CONFIGS / group)
    return own or (path.partition(".")[0] != OWN_PACKAGE and path in declared(group))  # plugins take time to look for


@lru_cache(maxsize=64)
def _listed(folder: Path) -> frozenset[str]:
    paths: set[str] = set()
    for file in sorted(folder.rglob("*.yaml")):
        paths.update(_LISTED.findall(file.read_text(encoding="utf-8", errors="replace")))
    return frozenset(paths)


def _of_plugins(path: str, plugins: Sequence[str]) -> bool:
    return any(path == plugin or path.startswith(f"{plugin}.") for plugin in plugins)


def _of_keras(path: str, group: str | None) -> bool:
    """Return whether a path is in a family of Keras in which the group has parts."""
    wanted = {"model": ("applications",), "optimizer": ("optimizers",), "schedule": ("optimizers",)}
    root, *inner = path.removeprefix("keras.src.").removeprefix("keras.").split(".")
    families = KERAS_FAMILIES[1:] if group is None else wanted.get(group, ())
    return path.startswith("keras.") and bool(inner) and root in families


def _is_keras_part(target: Any, group: str | None) -> bool:
    """Return whether Keras' own class or function is a part of a group. Its loaders, which are functions, are not."""
    import keras

    if group == "model":
        return inspect.isfunction(target) and getattr(keras.applications, target.__name__, None) is target
    families = [each for each in KERAS_FAMILIES if each != "applications"]
    known = inspect.isclass(target) and target.__module__.removeprefix("keras.src.").split(".")[0] in families
    kinds = {"optimizer": keras.optimizers.Optimizer, "schedule": keras.optimizers.schedules.LearningRateSchedule}
    return known and issubclass(target, kinds.get(group or "", object)) and target.__name__ not in KERAS_CLOSED


def _refusal(path: str, group: str | None, plugins: Sequence[str]) -> UserError:
    root, trusted = path.partition(".")[0], trusted_packages()
    kind = f"among the {KINDS[group]}s that configs/{group} lists" if group in KINDS else "a part of Keras or a plugin"
    hint = did_you_mean(path, sorted(declared(group)))
    known = ", ".join([OWN_PACKAGE, *(f"keras.{family}" for family in KERAS_FAMILIES), *plugins, *trusted])
    foreign = root not in (OWN_PACKAGE, "keras", *sys.stdlib_module_names)
    remedy = f" If you trust it, add plugins=[{','.join([*plugins, root])}]." if foreign else ""
    return UserError(f"_target_={path} is not allowed: it is not {kind}.{hint} Expected one within: {known}.{remedy}")
