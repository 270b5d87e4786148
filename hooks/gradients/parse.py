"""The backward pass that a config names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trainer.errors import UserError, unknown_name
from trainer.ops.backward import Backward
from trainer.ops.backwards import BACKWARDS


def parse_backward(given: Any) -> Backward:
    """Return the backward pass that a config names.

    Args:
        given: a name of the catalogue such as "reverse"; a dict with its arguments, such as {"name": "reverse",
            "factor": 0.5}; or a `Backward`, which a node with a `_target_` of the user's own built.

    Raises:
        UserError: an unknown name or argument, or something else.
    """
    if isinstance(given, Backward):
        return given
    arguments = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise UserError(
            f"Invalid backward: {given!r}. Expected a name such as reverse, {{name: reverse, factor: 0.5}}, or "
            "{_target_: my_package.my_backward}, where that returns a Backward."
        )
    if name not in BACKWARDS:
        raise unknown_name("backward", name, BACKWARDS)
    known = inspect.signature(BACKWARDS[name]).parameters
    for argument in arguments:
        if argument not in known:
            raise unknown_name(f"argument of backward {name}", str(argument), known)
    return BACKWARDS[name](**arguments)
