"""Classes and functions of the user's own that a stored Keras model is made of, found again by their names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, ModuleType
from typing import Any

from trainer.config.plugins import check_found
from trainer.errors import UserError


def own_classes(plugins: Iterable[str]) -> AbstractContextManager[Any]:
    """Return a context in which Keras finds what plugins define, as it finds what is registered with it.

    Args:
        plugins: packages that the user trusts; their code is imported.

    Raises:
        UserError: a package that is not there, or that cannot be imported.
    """
    plugins = list(plugins)
    if not plugins:
        return nullcontext()
    import keras  # not needed by those who read other formats

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
    """Return whether a model may be made of a value: a class with a config, or a function."""
    return isinstance(value, FunctionType) or (isinstance(value, type) and hasattr(value, "from_config"))
