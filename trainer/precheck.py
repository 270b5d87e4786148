"""What a function that a config names can say of its arguments before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
ATTRIBUTE = "precheck"


def prechecked(check: Callable[..., object]) -> Callable[[Function], Function]:
    """Give a data source, model, task or schedule a check that is called before TensorFlow is imported.

    So its mistakes show at once. The function itself has to find them as well: it may be called without.

    Args:
        check: takes those of the function's arguments, by name, that it looks at; raises `UserError`. It uses neither
            TensorFlow nor Keras, takes no longer than a look at a file's name, and changes nothing.
    """

    def give(function: Function) -> Function:
        setattr(function, ATTRIBUTE, check)
        return function

    return give


def run_precheck(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Call the check of a function, if it has one, with what its node of the config gives, or else its defaults.

    Args:
        function: what a `_target_` names.
        given: arguments by name, as `trainer.config.build.bind` let them pass.

    Raises:
        UserError: what the check found.
    """
    check = getattr(function, ATTRIBUTE, None)
    if check is None:
        return
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not parameter.empty
    }
    known = {**defaults, **given}
    wanted = inspect.signature(check).parameters
    if all(name in known for name in wanted):
        check(**{name: known[name] for name in wanted})
