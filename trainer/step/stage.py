"""Hooks in a step: their order and participation, scopes and errors of their stages, and checks of returned values."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Bits, Declaration, Evaluated, GraphHook, Hook, HostHook
from hookline.trainer.objective import Batch, Embedding, Shown
from hookline.trainer.step.context import StepContext, named_scope

AnyHook = TypeVar("AnyHook", bound=Hook)
UPDATE_OPS = "UPDATE_OPS"
RAISED = re.compile(rf"\b{UserError.__name__}: (.+)")


def order_hooks(hooks: Sequence[AnyHook]) -> list[AnyHook]:
    """Return the hooks in the order in which every stage calls them."""
    for hook in hooks:
        _refuse_attributes(hook)
    named = {hook.name: hook for hook in hooks}
    if len(named) < len(hooks):
        raise UserError(f"Two hooks share a name. Received: {sorted(hook.name for hook in hooks)}. Give each its own.")
    _refuse_conflicts(named)
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, followers in _edges(named).items():
        sorter.add(name)
        for each in followers:
            sorter.add(each, name)
    try:
        sorter.prepare()
    except CycleError as error:
        raise UserError(
            f"The declared order of the hooks {', '.join(sorted(error.args[1][1:]))} has a cycle. "
            "Expected an order without one: change `before`, `after` or `reads` of one of them."
        ) from error
    ready: list[tuple[int, str]] = []
    ordered: list[AnyHook] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, (named[name].priority, name))
        _, name = heapq.heappop(ready)
        ordered.append(named[name])
        sorter.done(name)
    return ordered


def declared_followers(hooks: Sequence[Hook]) -> dict[str, set[str]]:
    """Return for each of the ordered hooks the names of all that must come later, directly or indirectly."""
    named = {hook.name: hook for hook in hooks}
    followers = _edges(named)
    for name in reversed(named):  # later ones are already complete
        followers[name] |= {far for near in followers[name] for far in followers[near]}
    return followers


def _refuse_attributes(hook: Hook) -> None:
    """Raise an error for declarations of a wrong type, such as a bare string: its letters would count as names."""
    for attribute in ("before", "after", "conflicts", "reads"):
        names = getattr(hook, attribute, ())
        if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
            raise UserError(f"The hook '{hook.name}' declares {attribute}={names!r}. Expected names, such as ('ema',).")


def _refuse_conflicts(named: Mapping[str, Hook]) -> None:
    for hook in named.values():
        for other in named.values():
            # Graph hooks on different networks do not conflict.
            apart = isinstance(hook, GraphHook) and isinstance(other, GraphHook) and hook.network != other.network
            watching = isinstance(hook, HostHook) or isinstance(other, HostHook)
            if not _called(other).isdisjoint(hook.conflicts) and (watching or not apart):
                raise UserError(f"Hooks '{hook.name}' and '{other.name}' cannot run together: hooks.{other.key}=null.")


def _called(hook: Hook) -> set[str]:
    """Return the names of a hook in other hooks' declarations: its key, which a user may choose, and its file name."""
    return {hook.key, type(hook).__module__.rpartition(".")[2]}


def _edges(named: Mapping[str, Hook]) -> dict[str, set[str]]:
    """Return for each hook the names of those that must come later; declarations apply to all instances of a hook."""
    followers: dict[str, set[str]] = {name: set() for name in named}
    instances: dict[str, list[str]] = {}
    for name, hook in named.items():
        for each in _called(hook):
            instances.setdefault(each, []).append(name)
    for hook in named.values():
        reads = tuple(key.partition("/")[0] for key in hook.reads) if isinstance(hook, GraphHook) else ()
        for later in hook.before:
            followers[hook.name].update(instances.get(later, ()))
        for earlier in (*hook.after, *reads):
            for name in instances.get(earlier, ()):
                followers[name].add(hook.name)
    return followers


@contextmanager
def python_errors() -> Iterator[None]:
    """Re-raise a `UserError` from Python code in a graph, extracted from the error that TensorFlow wraps it in."""
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
    """Return whether the training stages of a hook are called for an objective."""
    return hook.network in changes and fnmatchcase(objective, hook.objective)


def taking_part(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext]
) -> Iterator[tuple[GraphHook, StepContext]]:
    """Yield the hooks that take part in the current objective, each with the context of its network."""
    for hook in hooks:
        if hook.network in contexts and takes_part(hook, contexts[hook.network].objective, contexts):
            yield hook, contexts[hook.network]


Returned = TypeVar("Returned")
Check = Callable[[Any, "Facts"], "str | None"]
"""Return a description of what is wrong with a returned value; None if it is valid."""
Fits = Callable[[Any, Any, "Facts"], bool]
"""Return whether an entry of a dict is valid, compared with the value given under its name."""


class Facts(NamedTuple):
    """The facts that a return value is checked against."""

    given: Mapping[str, Any]  # values that the stage was given, or refers to, by name
    more: Mapping[str, Any]  # further values that it may name
    examples: int | None  # in the batch; None if that is unknown or does not matter


def ask(hook: Hook, stage: str, *arguments: Any, step: int | None = None, **facts: Any) -> Any:
    """Call a stage of a hook and return its checked result; see `in_stage` for `step`, `checked` for the facts."""
    with in_stage(hook, stage, step):
        return checked(hook, stage, getattr(hook, stage)(*arguments), **facts)


def checked(
    hook: Hook,
    stage: str,
    value: Returned,
    *,
    given: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    batch: Batch | None = None,
) -> Returned:
    """Return the result of a stage, after checking that it fits the stage."""
    examples = tf.nest.flatten(batch["inputs"])[0].shape[0] if batch else None
    expected, wrong = EXPECTED[stage]
    if problem := wrong(value, Facts(given or {}, more or {}, examples)):
        raise UserError(
            f"The hook '{hook.name or type(hook).__name__}' returned {problem} from {stage}. Expected {expected}."
        )
    return value


def refuse_repeated(hook: Hook, kind: str, added: Iterable[str], taken: Container[str]) -> None:
    """Raise an error for names of losses or metrics that another hook, or the objective, already uses."""
    if repeated := sorted(name for name in added if name in taken):
        raise UserError(f"The hook '{hook.name}' adds {kind} named {repeated}, which exist already.")


def _described(value: Any) -> str:
    if isinstance(value, str | None) or type(value) in (bool, int, float):
        return f"the text {value[:40]!r}" if isinstance(value, str) else repr(value)
    if _is_tensor(value):
        return f"{_dtype(value).name} {_shape(value)}"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _is_tensor(value: Any) -> bool:
    arrays = (tf.Tensor, tf.Variable, tf.IndexedSlices, keras.Variable, np.ndarray, np.generic)
    return isinstance(value, (*arrays, bool, int, float))


def _shape(value: Any) -> tf.TensorShape:
    return tf.TensorShape(getattr(value, "shape", ()))


def _dtype(value: Any) -> tf.DType:
    return tf.as_dtype(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype)


def _whole(fits: Callable[[Any], bool]) -> Check:
    """Return the check of a value as a whole."""
    return lambda value, facts: None if fits(value) else _described(value)


def _dict(fits: Fits, *, all_given: bool = False, others: bool = True) -> Check:
    """Return the check of a dict by name: `all_given` requires all given names, `others` allows other names."""

    def check(value: Any, facts: Facts) -> str | None:
        if not isinstance(value, Mapping):
            return _described(value)
        known = {**facts.more, **facts.given}
        for name, each in value.items():
            if not isinstance(name, str) or not (others or name in known):
                return f"the unknown name {name!r}"
            if not fits(each, known.get(name), facts):
                given = f" in place of {_described(known[name])}" if fits in (_like_given, _gradient) else ""
                return f"{_described(each)}{given} for '{name}'"
        missing = [name for name in facts.given if all_given and name not in value]
        return f"nothing for '{missing[0]}'" if missing else None

    return check


def _parts(kind: type, **checks: Check) -> Check:
    """Return the check of an object by its attributes."""

    def check(value: Any, facts: Facts) -> str | None:
        if not isinstance(value, kind):
            return _described(value)
        problems = ((name, wrong(getattr(value, name), facts)) for name, wrong in checks.items())
        return next((f"{problem} as {name}" for name, problem in problems if problem), None)

    return check


def _json(value: Any, facts: Facts) -> str | None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return _described(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        return f"a value that is not JSON-serializable ({error})"
    return None


def _like_given(value: Any, given: Any, facts: Facts) -> bool:
    alike = _is_tensor(value) and _shape(value).is_compatible_with(given.shape)
    return alike and _dtype(value) == tf.as_dtype(given.dtype)


def _gradient(value: Any, given: Any, facts: Facts) -> bool:
    return value is None or _like_given(value, given, facts)


FLOAT, NUMBERS, BOOL = ("is_floating",), ("is_floating", "is_integer", "is_bool"), ("is_bool",)
SCALAR, PER_EXAMPLE, LIKE_GIVEN = "scalar", "per example", "like given"


def _tensor(kinds: Sequence[str], *shapes: str) -> Fits:
    """Return the check of a tensor: one of the kinds of dtypes, and one of the shapes, if any are given."""

    def fits(value: Any, given: Any, facts: Facts) -> bool:
        allowed = {SCALAR: [], PER_EXAMPLE: [facts.examples], LIKE_GIVEN: getattr(given, "shape", None)}
        of_kind = _is_tensor(value) and any(getattr(_dtype(value), kind) for kind in kinds)
        return of_kind and (not shapes or any(_shape(value).is_compatible_with(allowed[shape]) for shape in shapes))

    return fits


def _bits(kind: Any) -> Fits:
    """Return the check of a number of bits: `numbers.Integral`, or `numbers.Real` where a fraction is allowed."""
    return lambda value, given, facts: _is_number(value, kind) and 0 <= float(value) < float("inf")


def _is_number(value: Any, kind: Any = Integral) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _are_names(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _is_projection(value: Any) -> bool:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(each, (type(None), tf.Operation, tf.Tensor, tf.Variable)) for each in parts)


def _picture(value: Any, given: Any, facts: Facts) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 3 and value.shape[-1] in (1, 3) and value.dtype.kind == "f"


def _sum(value: Any, given: Any, facts: Facts) -> bool:
    return _is_tensor(value) and bool(_dtype(value).is_floating) and _shape(value).is_fully_defined()


def _of_examples(value: Any, given: Any, facts: Facts) -> bool:
    return _is_tensor(value) and _shape(value)[:1].is_compatible_with([facts.examples])


def _is(kind: Callable[[], type]) -> Fits:
    """Return the check of an object; its type is resolved late, as importing Keras takes seconds."""
    return lambda value, given, facts: isinstance(value, kind())


_SAME = "a dict with a tensor for each name that it was given, of the same shape and dtype"
_LIKE_ALL = _dict(_like_given, all_given=True, others=False)
_MODEL = ("a keras.Model", _whole(lambda value: isinstance(value, keras.Model)))
_VARIABLES, _NAMES, _STEP = _dict(_is(lambda: tf.Variable)), _whole(_are_names), _whole(_is_number)
_DECLARED = {"state": _VARIABLES, "writes": _VARIABLES, "frozen": _NAMES, "projected": _NAMES, "rounded": _NAMES}
_SCALARS = ("a dict of numbers by name: tensors of shape []", _dict(_tensor(NUMBERS, SCALAR)))
_JSON = ("a dict of JSON values, {} for none", _json)
_EVALUATED = {
    "metrics": _dict(_tensor(NUMBERS, SCALAR, PER_EXAMPLE)),
    "collected": _dict(_of_examples),
    "split_metrics": _whole(lambda value: value is None or callable(value)),
}

EXPECTED: dict[str, tuple[str, Check]] = {
    "rebuild_model": _MODEL,
    "strip_model": _MODEL,
    "request_taps": ("a dict of inner Keras tensors by name, {} for none", _dict(_is(lambda: keras.KerasTensor))),
    "declare": (
        "a Declaration: state and writes dicts of tf.Variable; frozen, projected and rounded sets of names; "
        "best_from_step a step; Declaration() for none",
        _parts(Declaration, **_DECLARED, best_from_step=_STEP),
    ),
    "shipped_bits": (
        "Bits: dicts of numbers of bits by the name of a variable, or the path of a layer",
        _parts(
            Bits,
            stored=_dict(_bits(Real), others=False),
            weights=_dict(_bits(Integral), others=False),
            inputs=_dict(_bits(Integral)),
        ),
    ),
    "frozen_entries": (
        "a dict of bool tensors by name, of the variable's shape or []",
        _dict(_tensor(BOOL, SCALAR, LIKE_GIVEN), others=False),
    ),
    "transform_weights": (_SAME, _LIKE_ALL),
    "around_forward": (
        "a context manager, such as nullcontext()",
        _whole(lambda value: isinstance(value, AbstractContextManager)),
    ),
    "transform_state": (_SAME + "; a name may be left out", _dict(_like_given, others=False)),
    "add_losses": (
        "a dict of float tensors by name, of shape [batch] or []",
        _dict(_tensor(FLOAT, SCALAR, PER_EXAMPLE)),
    ),
    "evaluate": (
        "Evaluated: metrics, numbers of shape [batch] or [], and collected tensors [batch, ...], by name",
        _parts(Evaluated, **_EVALUATED),
    ),
    "split_metrics": _SCALARS,
    "gradient_point": (_SAME, _LIKE_ALL),
    "transform_gradients": (_SAME + ", or None for no gradient", _dict(_gradient, all_given=True, others=False)),
    "batch_sums": ("a dict of float tensors by name, of fixed shapes", _dict(_sum)),
    "veto": ("a dict of bool tensors of shape [] by name", _dict(_tensor(BOOL, SCALAR))),
    "update_ops": (
        "a list of the ops that assign, [] for none",
        _whole(lambda value: isinstance(value, (list, tuple))),
    ),
    "project": ("None: it assigns, and returns nothing", _whole(_is_projection)),
    "measure": _SCALARS,
    "summary": _JSON,
    "state_dict": _JSON,
    "next_step": ("a step, or None", _whole(lambda value: value is None or _is_number(value))),
    "show": (
        "Shown: pictures [height, width, 1 or 3] of float, embeddings of Embedding, distributions of arrays, by name",
        _parts(
            Shown,
            pictures=_dict(_picture),
            embeddings=_dict(_is(lambda: Embedding)),
            distributions=_dict(_tensor(NUMBERS)),
        ),
    ),
    "advise": ("a list of lines, () for none", _NAMES),
    "warning": ("a line, or None", _whole(lambda value: isinstance(value, str | None))),
}
"""By stage: a description and a check of the expected result. Stages that are not listed return nothing."""
