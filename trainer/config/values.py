"""Whether a value fits a type annotation, or the default it replaces; and both in words."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
MISSING = "???"  # how a config file asks the user for a value
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value from a config fits an annotation. Annotations other than the simple ones fit all.

    Args:
        value: what YAML knows: null, bool, int, float, str, list or mapping.
        annotation: a type, a union, a Literal, or a container of these.
    """
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return any(value == argument and type(value) is type(argument) for argument in arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if origin is bool or origin is str:
        return isinstance(value, origin)
    if origin is int or origin is float:
        return isinstance(value, int | origin) and not isinstance(value, bool)
    if origin in (list, tuple, set, frozenset, Sequence):
        return isinstance(value, list) and _items_fit(value, origin, arguments)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and (not arguments or all(fits(v, arguments[1]) for v in value.values()))
    return True


def _items_fit(value: list[Any], origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    return not arguments or all(fits(item, arguments[0]) for item in value)


def describe(annotation: Any) -> str:
    """Return an annotation in words, such as "a whole number or null".

    Args:
        annotation: as for `fits`.
    """
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        ordered = sorted(arguments, key=lambda argument: argument is type(None))
        return " or ".join(dict.fromkeys(describe(argument) for argument in ordered))
    if origin is Literal:
        return "one of " + ", ".join(map(show, arguments))
    if origin in (list, tuple, set, frozenset, Sequence):
        each = [describe(argument) for argument in arguments if argument is not Ellipsis and argument is not Any]
        return f"a list, each {each[0]}" if each else "a list"
    if origin in (dict, Mapping):
        return "a mapping"
    return NAMES.get(origin, getattr(origin, "__name__", str(origin)))


def like(default: Any, *, optional: bool = True) -> Any:
    """Return the annotation for values that may replace a default whose own annotation is not known.

    Numbers may stand for one another, since only the signature knows better; where a text stands, a list or a part
    with a `_target_` may stand, too.

    Args:
        default: the value in a config file or a signature.
        optional: whether null may replace a number, true or false.
    """
    if isinstance(default, bool):
        return bool | None if optional else bool
    if isinstance(default, int | float):
        return float | None if optional else float
    if isinstance(default, str) and default != MISSING:
        return str | float | list | dict | None
    if isinstance(default, list):
        return list | str | None
    return Any


def show(value: Any) -> str:
    """Return a value as it is written on the command line.

    Args:
        value: what YAML knows.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(show, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{show(item)}" for key, item in value.items()) + "}"
    return str(value)


def visible(value: Any) -> str:
    """Return a value as `show` does, an empty text in quotes.

    Args:
        value: what YAML knows.
    """
    return show(value) if value != "" else "''"


def is_interpolation(value: Any) -> bool:
    """Return whether a value refers to another one, as "${trainer.epochs}" does; after a backslash it does not."""
    return isinstance(value, str) and REFERENCE.search(value) is not None
