"""JSON from a file that nobody vouches for: no duplicates, no NaN, no infinity, no number without end."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from trainer.files import parse_json


def to_json(value: Any) -> str:
    """Return a value as JSON text in ASCII without spaces.

    Args:
        value: of JSON's types.

    Raises:
        ValueError: a number is NaN or infinite.
        TypeError: a value is of another type.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return what a JSON text holds.

    Args:
        text: in UTF-8.

    Raises:
        ValueError: it is no JSON, nested too deeply, names a key twice, or holds a number that is not finite.
    """
    text = text if isinstance(text, str) else text.decode("utf-8")
    return parse_json(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
    )


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number is not finite")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError("a number is too large")
    return value
