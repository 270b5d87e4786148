"""Classes and functions of plugins, for Keras to find them where a file names them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, ModuleType
from typing import Any

from hookline.trainer.config.plugins import check_found
from hookline.trainer.errors import UserError


def own_classes(plugins: Iterable[str]) -> AbstractContextManager[Any]:
    """Return a context in which Keras finds the plugins' definitions, as if they were registered with it."""
    plugins = list(plugins)
    if not plugins:
        return nullcontext()
    import keras  # readers of other formats do without it

    check_found(plugins)
    for package in plugins:
        try:
            importlib.import_module(package)
        except Exception as error:
            raise UserError(f"plugins={package} cannot be imported: {type(error).__name__}: {error}.") from error
    parts = {name: part for module in _modules(plugins) for name, part in vars(module).items() if _is_part(part)}
    return keras.saving.custom_object_scope(parts)


def _modules(plugins: Iterable[str]) -> Iterator[ModuleType]:
    """Yield the modules of packages that are imported."""
    for name, module in list(sys.modules.items()):
        if any(f"{name}.".startswith(f"{package}.") for package in plugins):
            yield module


def _is_part(value: Any) -> bool:
    """Return whether a value may be part of a model: a class with a config, or a function."""
    return isinstance(value, FunctionType) or (isinstance(value, type) and hasattr(value, "from_config"))
