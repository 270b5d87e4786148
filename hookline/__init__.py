"""Hookline: training recipes for TensorFlow and Keras 3, made of pluggable trainer hooks.

`hookline.run("recipe=bnn", "seed=1")` is the command line as a function. Importing this package imports nothing else;
what is named here is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline.running import RunResult, run

__all__ = ["RunResult", "run"]

_LAZY = {"run": "hookline.running", "RunResult": "hookline.running"}
"""Public names, and the modules that hold them."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hookline' has no attribute '{name}'")
    return globals().setdefault(name, getattr(importlib.import_module(_LAZY[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
