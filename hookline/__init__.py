"""Hookline: training recipes for TensorFlow and Keras 3, made of pluggable trainer hooks.

    import hookline

    trainer = hookline.Trainer(model, loss="sparse_categorical_crossentropy", hooks=[hookline.hooks.Prune()])
    trainer.fit(x, y, epochs=5)

`hookline.run("recipe=bnn", "seed=1")` is the command line as a function. Importing this package does not import
TensorFlow; public names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline import hooks
    from hookline.loaded import load
    from hookline.running import History, RunResult, run
    from hookline.session import Trainer
    from hookline.trainer.config.parts import __version__ as __version__
    from hookline.trainer.errors import UserError

__all__ = ["History", "RunResult", "Trainer", "UserError", "hooks", "load", "run"]

_LAZY = {
    "History": "hookline.running",
    "RunResult": "hookline.running",
    "Trainer": "hookline.session",
    "UserError": "hookline.trainer.errors",
    "__version__": "hookline.trainer.config.parts",
    "load": "hookline.loaded",
    "run": "hookline.running",
}
"""Public names, and the modules that hold them."""


def __getattr__(name: str) -> Any:
    if name == "hooks":
        return importlib.import_module("hookline.hooks")
    if name not in _LAZY:
        raise AttributeError(f"module 'hookline' has no attribute '{name}'")
    return globals().setdefault(name, getattr(importlib.import_module(_LAZY[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
