"""What hooks answer once training is over: an answer that is none is left out in one line, and costs nothing else."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any

from trainer.hook import Hook


def answer(hook: Hook, stage: str, check: Callable[[Any], dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return what a stage of a hook returns, once it is checked; nothing, and a warning, where that fails.

    Args:
        hook: to ask.
        stage: name of its method.
        check: returns the checked answer; raises ValueError or TypeError that says what is wrong with it.
        arguments: of the stage.
    """
    try:
        return check(getattr(hook, stage)(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever a hook of a user does, the run is trained
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"The hook '{hook.name}', stage {stage}: {reason}. It is left out.", stacklevel=3)
        return {}


def as_summary(found: Any) -> dict[str, Any]:
    """Return what a hook adds to `summary.json`, as it will be read.

    Args:
        found: what its `summary` returned.
    """
    content: dict[str, Any] = json.loads(json.dumps(_named(found)))
    return content


def as_bits(found: Any, known: Collection[str] | None = None, *, whole: bool = False) -> dict[str, Any]:
    """Return bits by name.

    Args:
        found: what a stage of a hook returned.
        known: names that exist; None where any may be.
        whole: whether a fraction is none.
    """
    kind = Integral if whole else Real
    for name, bits in _named(found).items():
        if type(bits) is bool or not isinstance(bits, kind) or not 0 <= float(bits) < float("inf"):
            raise TypeError(f"'{name}' has {bits!r:.80} bits, expected {'a whole number' if whole else 'a number'}")
        if known is not None and name not in known:
            raise ValueError(f"'{name}' is no variable of the network, expected such as '{next(iter(known), '')}'")
    return dict(found)


def _named(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{found!r:.80} returned, expected a dict with names as keys")
    return found
