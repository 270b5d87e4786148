"""Layers and variables chosen by a pattern on their path."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence
from fnmatch import fnmatchcase

import keras

from hookline.trainer.errors import UserError, did_you_mean

MOST_LISTED = 40


def layer_paths(model: keras.Model) -> dict[str, keras.Layer]:
    """Return every layer below a built model by its path, in the order of `model.layers`, containers first.

    The path joins the names of nested models and of layers that hold layers with "/", such as "encoder/dense_1".
    A path that repeats gets "_1", "_2", ... in order. A layer that occurs in several places is listed once.
    """
    found: dict[str, keras.Layer] = {}
    _collect(model, "", found, {id(model)})
    return found


def _collect(parent: keras.Layer, prefix: str, found: dict[str, keras.Layer], seen: set[int]) -> None:
    # Layers that are not models hold layers too (wrappers, blocks), but have no public list of them.
    inner = (
        parent.layers
        if isinstance(parent, keras.Model)
        else parent._flatten_layers(include_self=False, recursive=False)
    )
    for layer in inner:
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        path = unique_name(prefix + layer.name, found)
        found[path] = layer
        _collect(layer, path + "/", found, seen)


def unique_name(name: str, taken: Container[str]) -> str:
    """Return a name, with "_1", "_2", ... after it if it is taken."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    return next(each for each in names if each not in taken)


def select_layers(
    model: keras.Model,
    patterns: str | Sequence[str],
    *,
    accept: Callable[[keras.Layer], bool] | None = None,
    kind: str = "layer",
) -> dict[str, keras.Layer]:
    """Return the layers that match, by path, in the order of `layer_paths`.

    Args:
        model: any built Keras model.
        patterns: one or more shell patterns ("*", "conv_?", "encoder/*"), each compared with the whole path and with
            the layer's own name; case counts.
        accept: which layers are offered at all, such as those with a kernel; all of them by default.
        kind: what the offered layers are called in an error, such as "kernel layer".

    Raises:
        UserError: no pattern was given, or one of them matches nothing; the message lists the paths.
    """
    offered = {path: layer for path, layer in layer_paths(model).items() if accept is None or accept(layer)}
    names: dict[str, tuple[str, ...]] = {path: (path, layer.name) for path, layer in offered.items()}
    return {path: offered[path] for path in _matches(patterns, names, kind)}


def _matches(patterns: str | Sequence[str], names: dict[str, tuple[str, ...]], kind: str) -> list[str]:
    """Return the paths with a name that matches any of the patterns; every pattern must match something."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not patterns:
        raise UserError(f"No {kind} pattern was given. Expected one or more, such as '*'.")
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {path for path, each in names.items() if any(fnmatchcase(name, pattern) for name in each)}
        if not matched:
            raise _no_match(pattern, names, kind)
        chosen |= matched
    return [path for path in names if path in chosen]


def _no_match(pattern: str, names: dict[str, tuple[str, ...]], kind: str) -> UserError:
    if not names:
        return UserError(f"The pattern '{pattern}' matches no {kind}: the model has none.")
    hint = did_you_mean(pattern, dict.fromkeys(name for each in names.values() for name in each))
    listed = list(names)[:MOST_LISTED]
    more = f", and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
    return UserError(f"The pattern '{pattern}' matches no {kind}.{hint} Expected one of: {', '.join(listed)}{more}.")
