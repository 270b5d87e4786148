"""Names of the ops of a step: a scope for each stage, and in it one for each hook, as the graph is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

UPDATE_OPS = "UPDATE_OPS"


@contextmanager
def named_scope(*names: str, inside: str | None = None) -> Iterator[None]:
    """Trace ops under a path of names. One that is entered again goes on: it gets no number of its own.

    Outside a graph, and without names, this does nothing.

    Args:
        names: from the outermost; characters that TensorFlow allows in no name become "_".
        inside: the scope that the path begins in, as `current_scope` returned it; None for that of now.
    """
    if not names or tf.executing_eagerly():
        yield
        return
    start = current_scope() if inside is None else inside
    path = [start] if start else []
    with tf.name_scope("/".join([*path, *map(_allowed, names)]) + "/"):
        yield


def current_scope() -> str:
    """Return the path of the scope in which ops are traced now; empty outside a graph and at its top."""
    return "" if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_name_scope()


def _allowed(name: str) -> str:
    """Return a name of letters, digits and a few signs, which does not begin with one of these."""
    allowed = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"scope{allowed}"
