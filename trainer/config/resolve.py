"""From the import path in a `_target_` to the class or function it names, where that is allowed.

A config may come from somebody else, and a `_target_` is a call. So a path must lie in a room of this project, in a
family of Keras whose members only build things, or in a package that the user listed under `plugins`; and what is
found there must be defined in such a place, too, so that an alias leads nowhere else.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from trainer.errors import UserError, did_you_mean

ROOMS = ("recipes", "hooks", "trainer")
CLOSED_ROOMS = ("trainer.config", "trainer.run")  # what imports by name and writes files builds no part of a run
KERAS_FAMILIES = (
    "applications",
    "constraints",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "regularizers",
)
KERAS_FUNCTIONS = ("applications",)  # elsewhere a function such as `deserialize` or `get` may load anything
KERAS_CLOSED = ("TFSMLayer",)  # runs a saved program


def resolve(path: Any, *, plugins: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the class or function that an import path names.

    Args:
        path: such as "hooks.bnn_rounding.BnnRounding": a module and one public name in it.
        plugins: packages that the user allows beside this project and Keras.

    Raises:
        UserError: the path is not allowed, does not exist, or names something that is defined elsewhere.
    """
    check_path(path, plugins=plugins)
    module_path, _, name = path.rpartition(".")
    module = _import(module_path, path)
    target = getattr(module, name, None)
    if target is None:
        public = [each for each, value in vars(module).items() if _is_public(each) and not inspect.ismodule(value)]
        raise UserError(f"_target_={path}: the module '{module_path}' has no '{name}'.{did_you_mean(name, public)}")
    if not _defined_in_allowed_place(target, plugins):
        raise UserError(
            f"_target_={path} is not allowed: it is not a class or function that {module_path.partition('.')[0]} "
            "defines for building. Expected the path where it is defined."
        )
    return target


def check_path(path: Any, *, plugins: Sequence[str] = ()) -> None:
    """Check an import path by itself, without importing anything.

    Args:
        path: such as "hooks.bnn_rounding.BnnRounding".
        plugins: packages that the user allows beside this project and Keras.

    Raises:
        UserError: it is no import path, or leads to a place that is not allowed.
    """
    if not isinstance(path, str) or "." not in path or not all(map(_is_public, path.split("."))):
        raise UserError(f"_target_={path} received. Expected an import path such as keras.optimizers.Adam.")
    if not _allowed(path.rpartition(".")[0], plugins):
        raise _refusal(path, plugins)


def _is_public(part: str) -> bool:
    return part.isidentifier() and not part.startswith("_")


def _allowed(module: str, plugins: Sequence[str]) -> bool:
    if any(_within(module, plugin) for plugin in plugins):
        return True
    if any(_within(module, room) for room in CLOSED_ROOMS):
        return False
    return any(_within(module, room) for room in ROOMS) or _keras_family(module) in KERAS_FAMILIES


def _within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def _keras_family(module: str) -> str | None:
    parts = module.removeprefix("keras.src.").removeprefix("keras.").split(".")
    return parts[0] if module.startswith("keras.") else None


def _refusal(path: str, plugins: Sequence[str]) -> UserError:
    root = path.partition(".")[0]
    if root == "keras":
        families = ", ".join(f"keras.{family}" for family in KERAS_FAMILIES)
        return UserError(f"_target_={path} is not allowed. Expected, of Keras, a class in one of: {families}.")
    if root in (*ROOMS, *sys.stdlib_module_names):
        return UserError(f"_target_={path} is not allowed: it builds no part of a run.")
    known = ", ".join([*ROOMS, "keras", *plugins])
    mend = f"If you trust it, add plugins=[{','.join([*plugins, root])}]."
    return UserError(
        f"_target_={path} is not allowed.{did_you_mean(root, [*ROOMS, 'keras'])} "
        f"Expected an import path within one of: {known}. {mend}"
    )


def _import(module_path: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is None or not _within(module_path, error.name):
            raise UserError(f"_target_={path} cannot be imported: {error}. Install what is missing.") from error
        parent, _, name = error.name.rpartition(".")
        siblings = [each.name for each in pkgutil.iter_modules(getattr(sys.modules.get(parent), "__path__", []))]
        raise UserError(f"_target_={path}: there is no module '{error.name}'.{did_you_mean(name, siblings)}") from error


def _defined_in_allowed_place(target: Any, plugins: Sequence[str]) -> bool:
    """Return whether the target is a class or a plain function at the top level of an allowed module."""
    if not inspect.isclass(target) and not inspect.isfunction(target):
        return False
    home, name = str(target.__module__), str(target.__qualname__)
    if not _allowed(home, plugins) or getattr(sys.modules.get(home), name, None) is not target:
        return False
    if home.startswith("keras."):
        builds = inspect.isclass(target) or _keras_family(home) in KERAS_FUNCTIONS
        return builds and name not in KERAS_CLOSED
    return True
