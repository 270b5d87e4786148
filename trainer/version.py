"""The version of this project."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hookline.trainer.errors import IS_CLONE


def own_version() -> str:
    """Return the version of pyproject.toml in a clone, else of the installed package."""
    if IS_CLONE:
        text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])
    try:
        return version("hookline")
    except PackageNotFoundError:  # a copy of the package on the path
        return "unknown"


__version__ = own_version()
