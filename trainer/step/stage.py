"""A stage of a hook: its scope, and errors that name it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook, Hook
from hookline.trainer.step.context import StepContext

UPDATE_OPS = "UPDATE_OPS"


@contextmanager
def named_scope(*names: str, inside: str | None = None) -> Iterator[None]:
    """Trace ops under a path of names, continued where it is entered again; does nothing without a graph or names."""
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


RAISED = re.compile(rf"\b{UserError.__name__}: (.+)")


@contextmanager
def python_errors() -> Iterator[None]:
    """Raise the `UserError` that Python code in a graph raised, out of the error that TensorFlow wraps it into."""
    try:
        yield
    except tf.errors.OpError as error:
        found = RAISED.search(error.message)
        if found is None:
            raise
        raise UserError(found[1]) from error


@contextmanager
def in_stage(hook: Hook, stage: str, step: int | None = None) -> Iterator[None]:
    """Name ops "<stage>/<hook>/...", and add "in hook X, stage Y, step N" to an error that leaves the block."""
    name = hook.name or type(hook).__name__
    # Scopes that `around_forward` enters stay open: the forward pass has one of its own.
    is_scoped = step is None and stage != "around_forward"
    scope = (UPDATE_OPS if stage == "update_ops" else stage, name) if is_scoped else ()
    try:
        with named_scope(*scope):
            yield
    except BaseException as error:
        where = "while the step was traced" if step is None else f"step {step}"
        error.add_note(f"in hook {name}, stage {stage}, {where}")
        raise


def takes_part(hook: GraphHook, objective: str, changes: Container[str]) -> bool:
    """Return whether the stages of training are called for a hook within an objective."""
    return hook.network in changes and fnmatchcase(objective, hook.objective)


def taking_part(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext]
) -> Iterator[tuple[GraphHook, StepContext]]:
    """Yield the hooks that take part in the current objective, each with the context of its network."""
    for hook in hooks:
        if hook.network in contexts and takes_part(hook, contexts[hook.network].objective, contexts):
            yield hook, contexts[hook.network]
