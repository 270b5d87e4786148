"""From the import path in a `_target_` to the class or function it names, where a config may name it."""

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

from trainer.config.parts import KINDS, check_path, is_part
from trainer.config.plugin_metadata import ROOMS, describe_missing
from trainer.errors import UserError, did_you_mean


def resolve(path: Any, *, group: str | None = None, plugins: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the class or function that an import path names.

    Args:
        path: such as "hooks.bnn_rounding.BnnRounding": a module and one public name in it.
        group: of `trainer.config.parts.KINDS`; None for a part of a part, such as a layer that a hook takes.
        plugins: packages that the user allows beside this project and Keras.

    Raises:
        UserError: the path is not allowed, does not exist, or names something that is defined elsewhere.
    """
    check_path(path, group=group, plugins=plugins)
    module_path, _, name = path.rpartition(".")
    module = _import(module_path, path)
    target = getattr(module, name, None)
    if target is None:
        public = [
            each for each, value in vars(module).items() if not each.startswith("_") and not inspect.ismodule(value)
        ]
        raise UserError(f"_target_={path}: the module '{module_path}' has no '{name}'.{did_you_mean(name, public)}")
    if not is_part(target, group=group, plugins=plugins):
        raise UserError(
            f"_target_={path} is not allowed: it is not a {KINDS.get(group or '', 'class or function')} that "
            f"{module_path.partition('.')[0]} defines for building. Expected the path where one is defined."
        )
    return target


def _import(module_path: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_path}.".startswith(f"{error.name}."):
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
