"""Packages that only some formats need, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from trainer.errors import UserError


def import_optional(module: str, *, extra: str, needed_by: str) -> Any:
    """Return a module of a package that this project installs on demand.

    Args:
        module: its name, such as "onnxruntime".
        extra: of this project, which installs it.
        needed_by: what needs it, such as "format=onnx".

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs the package {module}, which cannot be imported. Expected it installed: python -m pip "
            f"install '.[{extra}]', in a clone of this project."
        ) from error
