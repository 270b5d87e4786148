"""What the stages of hooks may return, and the error for anything else. Checked while a step is traced."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Bits, Declaration, Evaluated, Hook
from hookline.trainer.objective import Batch, Embedding, Shown
from hookline.trainer.step.stage import in_stage

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Facts:
    """What a return value is checked against."""

    given: Mapping[str, Any]  # what the stage was given, or speaks of, by name
    more: Mapping[str, Any]  # what it may name besides
    examples: int | None  # in the batch; None if that is unknown or does not matter


Check = Callable[[Any, Facts], "str | None"]
"""Return in words what is wrong with a returned value; None if nothing is."""
Fits = Callable[[Any, Any, Facts], bool]
"""Return whether an entry of a dict fits, beside what was given under its name."""


def ask(hook: Hook, stage: str, *arguments: Any, step: int | None = None, **facts: Any) -> Any:
    """Return what a stage of a hook returns, checked; see `in_stage` for `step`, `checked` for the facts."""
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
    """Return what a stage returned, after checking that it fits the stage."""
    examples = tf.nest.flatten(batch["inputs"])[0].shape[0] if batch else None
    expected, wrong = EXPECTED[stage]
    if problem := wrong(value, Facts(given or {}, more or {}, examples)):
        raise UserError(
            f"The hook '{hook.name or type(hook).__name__}' returned {problem} from {stage}. Expected {expected}."
        )
    return value


def refuse_repeated(hook: Hook, kind: str, added: Iterable[str], taken: Container[str]) -> None:
    """Refuse names of losses or metrics that another hook, or the objective, already has."""
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
    return lambda value, facts: None if fits(value) else _described(value)


def _dict(fits: Fits, *, all_given: bool = False, others: bool = True) -> Check:
    """Return the check of a dict by name: whether all given names are there, and whether others may be."""

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
    """Return the check of an object by its parts."""

    def check(value: Any, facts: Facts) -> str | None:
        if not isinstance(value, kind):
            return _described(value)
        problems = ((name, wrong(getattr(value, name), facts)) for name, wrong in checks.items())
        return next((f"{problem} as {name}" for name, problem in problems if problem), None)

    return check


def _is(kind: Callable[[], type]) -> Fits:
    """Return the check of an object; its type is resolved late, as importing Keras takes seconds."""
    return lambda value, given, facts: isinstance(value, kind())


def _like_given(value: Any, given: Any, facts: Facts) -> bool:
    return (
        _is_tensor(value)
        and _shape(value).is_compatible_with(given.shape)
        and _dtype(value) == tf.as_dtype(given.dtype)
    )


def _gradient(value: Any, given: Any, facts: Facts) -> bool:
    return value is None or _like_given(value, given, facts)


FLOAT, INTEGER, BOOL = "is_floating", "is_integer", "is_bool"
SCALAR, PER_EXAMPLE, LIKE_GIVEN = "scalar", "per example", "like given"


def _tensor(kinds: Collection[str], *shapes: str) -> Fits:
    """Return the check of a tensor: of one of the kinds of dtypes, and of one of the shapes, if there are any."""

    def fits(value: Any, given: Any, facts: Facts) -> bool:
        allowed = {SCALAR: [], PER_EXAMPLE: [facts.examples], LIKE_GIVEN: getattr(given, "shape", None)}
        return (
            _is_tensor(value)
            and any(getattr(_dtype(value), kind) for kind in kinds)
            and (not shapes or any(_shape(value).is_compatible_with(allowed[shape]) for shape in shapes))
        )

    return fits


def _sum(value: Any, given: Any, facts: Facts) -> bool:
    return _is_tensor(value) and bool(_dtype(value).is_floating) and _shape(value).is_fully_defined()


def _of_examples(value: Any, given: Any, facts: Facts) -> bool:
    return _is_tensor(value) and _shape(value)[:1].is_compatible_with([facts.examples])


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _bits(kind: Any) -> Fits:
    """Return the check of a number of bits: `numbers.Integral`, or `numbers.Real` where a fraction is allowed."""
    return lambda value, given, facts: _is_number(value, kind) and 0 <= float(value) < float("inf")


def _picture(value: Any, given: Any, facts: Facts) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 3 and value.shape[-1] in (1, 3) and value.dtype.kind == "f"


def _are_names(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _is_projection(value: Any) -> bool:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(each, (type(None), tf.Operation, tf.Tensor, tf.Variable)) for each in parts)


def _json(value: Any, facts: Facts) -> str | None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return _described(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        return f"what is not JSON ({error})"
    return None


NUMBERS = (FLOAT, INTEGER, BOOL)
_SAME = "a dict with a tensor for each name that it was given, of the same shape and dtype"
_MODEL = ("a keras.Model", _whole(lambda value: isinstance(value, keras.Model)))
_VARIABLES, _NAMES = _dict(_is(lambda: tf.Variable)), _whole(_are_names)
_STEP = _whole(lambda value: _is_number(value, Integral))
_SCALARS = ("a dict of numbers by name: tensors of shape []", _dict(_tensor(NUMBERS, SCALAR)))
_JSON = ("a dict of JSON values, {} for none", _json)

EXPECTED: dict[str, tuple[str, Check]] = {
    "rebuild_model": _MODEL,
    "strip_model": _MODEL,
    "request_taps": ("a dict of inner Keras tensors by name, {} for none", _dict(_is(lambda: keras.KerasTensor))),
    "declare": (
        "a Declaration: state and writes dicts of tf.Variable; frozen, projected and rounded sets of names; "
        "best_from_step a step; Declaration() for none",
        _parts(
            Declaration,
            state=_VARIABLES,
            writes=_VARIABLES,
            frozen=_NAMES,
            projected=_NAMES,
            rounded=_NAMES,
            best_from_step=_STEP,
        ),
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
        _dict(_tensor([BOOL], SCALAR, LIKE_GIVEN), others=False),
    ),
    "transform_weights": (_SAME, _dict(_like_given, all_given=True, others=False)),
    "around_forward": (
        "a context manager, such as nullcontext()",
        _whole(lambda value: isinstance(value, AbstractContextManager)),
    ),
    "transform_state": (_SAME + "; a name may be left out", _dict(_like_given, others=False)),
    "add_losses": (
        "a dict of float tensors by name, of shape [batch] or []",
        _dict(_tensor([FLOAT], SCALAR, PER_EXAMPLE)),
    ),
    "evaluate": (
        "Evaluated: metrics, numbers of shape [batch] or [], and collected tensors [batch, ...], by name",
        _parts(
            Evaluated,
            metrics=_dict(_tensor(NUMBERS, SCALAR, PER_EXAMPLE)),
            collected=_dict(_of_examples),
            split_metrics=_whole(lambda value: value is None or callable(value)),
        ),
    ),
    "split_metrics": _SCALARS,
    "gradient_point": (_SAME, _dict(_like_given, all_given=True, others=False)),
    "transform_gradients": (_SAME + ", or None for no gradient", _dict(_gradient, all_given=True, others=False)),
    "batch_sums": ("a dict of float tensors by name, of fixed shapes", _dict(_sum)),
    "veto": ("a dict of bool tensors of shape [] by name", _dict(_tensor([BOOL], SCALAR))),
    "update_ops": (
        "a list of the ops that assign, [] for none",
        _whole(lambda value: isinstance(value, (list, tuple))),
    ),
    "project": ("None: it assigns, and returns nothing", _whole(_is_projection)),
    "measure": _SCALARS,
    "summary": _JSON,
    "state_dict": _JSON,
    "next_step": ("a step, or None", _whole(lambda value: value is None or _is_number(value, Integral))),
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
"""By stage: what is expected, in words and as a check. Stages that are not here return nothing."""
