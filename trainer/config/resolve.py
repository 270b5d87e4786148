"""From the import path in a `_target_` to the class or function it names, where that is allowed.

A config may come from somebody else, and a `_target_` is a call. So a path must lie in a room of this project, in a
family of Keras whose members only build things, or in a package that the user listed under `plugins` or has installed
as a plugin; and what is found there must be defined in such a place, too, so that an alias leads nowhere else.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.config.plugin_metadata import ROOMS, describe_missing
from trainer.config.plugins import trusted_packages
from trainer.errors import UserError, did_you_mean

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
    if any(_within(module, room) for room in ROOMS) or _keras_family(module) in KERAS_FAMILIES:
        return True
    return any(_within(module, package) for package in trusted_packages())


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
    known = ", ".join([*ROOMS, "keras", *plugins, *trusted_packages()])
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
            missing = f"{error}{_place(error, module_path)}"
            raise UserError(f"_target_={path} cannot be imported: {missing}. Install what is missing.") from error
        parent, _, name = error.name.rpartition(".")
        if not parent:
            raise UserError(f"_target_={path}: {describe_missing(name)}") from error
        siblings = [each.name for each in pkgutil.iter_modules(getattr(sys.modules.get(parent), "__path__", []))]
        raise UserError(f"_target_={path}: there is no module '{error.name}'.{did_you_mean(name, siblings)}") from error
    except Exception as error:
        if module_path.partition(".")[0] in (*ROOMS, "keras"):
            raise  # a fault of the program: its traceback is what is needed
        told = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(
            f"_target_={path} cannot be imported: {type(error).__name__}: {told}{_place(error, module_path)}. Mend the "
            "plugin; debug=true shows the traceback."
        ) from error


def _place(error: Exception, module_path: str) -> str:
    """Return the line of a plugin at which its import failed, in brackets: the last one in its own files."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        frames.append((error.filename, error.lineno))
    top = module_path.partition(".")[0]
    own = [(name, line) for name, line in frames if top in (*Path(name).parts, Path(name).stem)]
    if not own:
        return ""
    name, line = own[-1]
    return f" ({name}:{line})"


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
