"""The operations of a packed network and their fields, each with its check and its default."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from trainer.errors import UserError, unknown_name
from trainer.inference.activations import ACTIVATIONS

MAX_TEXT = 400
MAX_RANK = 8
MAX_SIZE = 2**20
"""Of a stride, a window, a padding or a length of a shape's axis beyond the first."""
PADDINGS = ("valid", "same")
REQUIRED: Final = object()
ENCODED: Final = object()
"""Stands for the check of an encoded array, which is of more than one value."""
Check = Callable[[str, Any], Any]


def check_text(what: str, value: Any) -> str:
    """Return a name.

    Args:
        what: for the message.
        value: as it was read.

    Raises:
        UserError: it is no text, empty or too long.
    """
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected a name of 1 to {MAX_TEXT} characters.")
    return value


def check_shape(what: str, value: Any) -> tuple[int, ...]:
    """Return lengths of axes, each at least 1.

    Args:
        what: for the message.
        value: as it was read.

    Raises:
        UserError: it is no list of 1 to 8 such lengths.
    """
    valid = isinstance(value, list) and 0 < len(value) <= MAX_RANK
    if not valid or not all(type(each) is int and 0 < each < 2**40 for each in value):
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected a list of whole numbers of at least 1.")
    return tuple(value)


def _pair(least: int) -> Check:
    def check(what: str, value: Any) -> tuple[int, int]:
        valid = isinstance(value, list) and len(value) == 2
        if not valid or not all(type(each) is int and least <= each <= MAX_SIZE for each in value):
            raise UserError(f"Invalid {what}: {value!r:.60}. Expected two whole numbers of at least {least}.")
        return value[0], value[1]

    return check


def _pads(what: str, value: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected [[top, bottom], [left, right]].")
    pair = _pair(0)
    return pair(what, value[0]), pair(what, value[1])


def _one_of(known: tuple[str, ...]) -> Check:
    def check(what: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise unknown_name(what, str(value)[:40], known)
        return value

    return check


def _whole(low: int, high: int) -> Check:
    def check(what: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise UserError(f"Invalid {what}: {value!r:.60}. Expected a whole number from {low} to {high}.")
        return value

    return check


def _number(what: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise UserError(f"Invalid {what}: {value!r:.60}. Expected a number.")
    return float(value)


_WINDOW = {
    "strides": (_pair(1), (1, 1)),
    "padding": (_one_of(PADDINGS), "valid"),
    "dilation": (_pair(1), (1, 1)),
}
_POOL = {
    "pool_size": (_pair(1), REQUIRED),
    "strides": (_pair(1), REQUIRED),
    "padding": (_one_of(PADDINGS), "valid"),
}
_KERNEL = {"kernel": (ENCODED, REQUIRED), "bias": (ENCODED, None)}

FIELDS: dict[str, dict[str, tuple[Any, Any]]] = {
    "dense": {**_KERNEL},
    "conv2d": {**_KERNEL, **_WINDOW},
    "depthwise_conv2d": {**_KERNEL, **_WINDOW},
    "sign": {},
    "round": {"bits": (_whole(1, 8), REQUIRED)},
    "ternary": {"threshold": (_number, REQUIRED)},
    "threshold": {"thresholds": (check_text, REQUIRED), "descending": (check_text, None)},
    "scale_shift": {"scale": (check_text, REQUIRED), "shift": (check_text, REQUIRED)},
    "activation": {"function": (_one_of(tuple(ACTIVATIONS)), REQUIRED), "slope": (_number, None)},
    "max_pool2d": _POOL,
    "average_pool2d": _POOL,
    "global_average_pool2d": {},
    "global_max_pool2d": {},
    "flatten": {},
    "reshape": {"shape": (check_shape, REQUIRED)},
    "zero_pad2d": {"padding": (_pads, REQUIRED)},
    "upsample2d": {"size": (_pair(1), REQUIRED)},
    "add": {},
    "subtract": {},
    "multiply": {},
    "concatenate": {"axis": (_whole(-8, 8), REQUIRED)},
    "rescale": {"scale": (_number, REQUIRED), "offset": (_number, REQUIRED)},
}
"""Fields of each operation: how a value is checked, and what stands where it is missing."""
