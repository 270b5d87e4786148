"""What the stages of hooks return: what each may, and the error for anything else. Checked while a step is traced."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook, Hook
from hookline.trainer.objective import SOFT_TARGETS, Batch, Embedding
from hookline.trainer.step.stage import in_stage

Returned = TypeVar("Returned")
DECLARED = ("state", "writes", "frozen", "projected", "best_from_step")
"""Stages that say what a hook is; they are called repeatedly, and checked once."""


@dataclass(frozen=True)
class Facts:
    """Hold what a return value is checked against.

    Attributes:
        given: what the stage was given, or what it speaks of, by name.
        examples: in the batch; None if that is not known, or does not matter.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    examples: int | None = None


Check = Callable[[Any, Facts], "str | None"]
"""Return in words what is wrong with a returned value; None if nothing is."""
Entry = Callable[[Any, Any, Facts], "str | None"]
"""As `Check`, for an entry of a dict and what was given under its name."""


def checked(
    hook: Hook, stage: str, value: Returned, *, given: Mapping[str, Any] | None = None, batch: Batch | None = None
) -> Returned:
    """Return what a stage returned, once it is certain that it fits the stage."""
    examples = tf.nest.flatten(batch["inputs"])[0].shape[0] if batch else None
    expected, wrong = EXPECTED[stage]
    if problem := wrong(value, Facts(given or {}, examples)):
        raise UserError(
            f"The hook '{hook.name or type(hook).__name__}' returned {problem} from {stage}. Expected {expected}."
        )
    return value


def check_declared(hook: GraphHook) -> None:
    """Refuse a hook that declares something else than names and variables, after `build`."""
    for stage in DECLARED:
        with in_stage(hook, stage):
            checked(hook, stage, getattr(hook, stage)())


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if _is_tensor(value) and not isinstance(value, (bool, int, float)):
        return f"{tf.as_dtype(value.dtype).name} {_shape(value)}"
    if isinstance(value, (bool, int, float)):
        return repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _is_tensor(value: Any) -> bool:
    tensors = (tf.Tensor, tf.Variable, tf.IndexedSlices, keras.Variable, np.ndarray, np.generic)
    return isinstance(value, (*tensors, bool, int, float))


def _shape(value: Any) -> tf.TensorShape:
    return tf.TensorShape(getattr(value, "shape", ()))


def _dtype(value: Any) -> tf.DType:
    return tf.as_dtype(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype)


def _a(kind: Callable[[], type]) -> Entry:
    """Return the check of an object; its type is resolved late, as importing Keras takes seconds."""
    return lambda value, given, facts: None if isinstance(value, kind()) else _described(value)


def _whole(entry: Entry) -> Check:
    return lambda value, facts: entry(value, None, facts)


def _dict(entry: Entry, *, all_given: bool = False, others: bool = True) -> Check:
    """Return the check of a dict by name."""

    def check(value: Any, facts: Facts) -> str | None:
        if not isinstance(value, Mapping):
            return _described(value)
        if foreign := [name for name in value if not isinstance(name, str) or not (others or name in facts.given)]:
            return f"the unknown name {_listed(foreign)}"
        if all_given and (missing := [name for name in facts.given if name not in value]):
            return f"nothing for {_listed(missing)}"
        problems = ((name, entry(each, facts.given.get(name), facts)) for name, each in value.items())
        return next((f"{problem} for '{name}'" for name, problem in problems if problem), None)

    return check


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _like_given(value: Any, given: Any, facts: Facts) -> str | None:
    if not _is_tensor(value):
        return _described(value)
    if _shape(value).is_compatible_with(given.shape) and _dtype(value) == tf.as_dtype(given.dtype):
        return None
    return f"{_described(value)} in place of {_described(given)}"


def _gradient(value: Any, given: Any, facts: Facts) -> str | None:
    return None if value is None else _like_given(value, given, facts)


def _held(value: Any, given: Any, facts: Facts) -> str | None:
    fits = _is_tensor(value) and _dtype(value) == tf.bool
    return None if fits and _fits(_shape(value), [[], given.shape]) else _described(value)


def _fits(shape: tf.TensorShape, allowed: Sequence[Any]) -> bool:
    return any(shape.is_compatible_with(each) for each in allowed)


def _tensor(kind: str, *, each: bool = False, scalar: bool = True) -> Entry:
    """Return the check of a tensor."""

    def check(value: Any, given: Any, facts: Facts) -> str | None:
        if not _is_tensor(value) or not _is_kind(_dtype(value), kind):
            return _described(value)
        allowed: list[list[int | None]] = ([[]] if scalar else []) + ([[facts.examples]] if each else [])
        return None if not allowed or _fits(_shape(value), allowed) else _described(value)

    return check


def _is_kind(dtype: tf.DType, kind: str) -> bool:
    if kind == "number":
        return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)
    return bool(dtype.is_floating if kind == "float" else dtype.is_bool)


def _of_examples(value: Any, given: Any, facts: Facts) -> str | None:
    fits = _is_tensor(value) and _fits(_shape(value)[:1], [[facts.examples]])
    return None if fits else _described(value)


def _fixed(value: Any, given: Any, facts: Facts) -> str | None:
    return _tensor("float", scalar=False)(value, given, facts) or (
        None if _shape(value).is_fully_defined() else _described(value)
    )


def _batch(value: Any, facts: Facts) -> str | None:
    """Check a batch: further entries may come, and shares of classes in place of targets."""
    if isinstance(value, Mapping) and SOFT_TARGETS in value:
        facts = Facts({name: each for name, each in facts.given.items() if name != "targets"})
    return _dict(_batch_entry, all_given=True)(value, facts)


def _batch_entry(value: Any, given: Any, facts: Facts) -> str | None:
    parts = tf.nest.flatten(value)
    if given is None:
        return next((_described(part) for part in parts if not _is_tensor(part)), None)
    before = tf.nest.flatten(given)
    if len(parts) != len(before):
        return f"{len(parts)} tensors in place of {len(before)}"
    for part, was in zip(parts, before, strict=True):
        kept = _is_tensor(part) and _shape(part).is_compatible_with(was.shape)
        if not kept or (was.dtype.is_floating and not _dtype(part).is_floating):
            return f"{_described(part)} in place of {_described(was)}"
    return None


def _names(value: Any, facts: Facts) -> str | None:
    named = (
        isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(each, str) for each in value)
    )
    return None if named else _described(value)


def _bits(kind: Any) -> Entry:
    """Return the check of a number of bits: `numbers.Integral`, or `numbers.Real` where a fraction may be."""

    def check(value: Any, given: Any, facts: Facts) -> str | None:
        fits = isinstance(value, kind) and not isinstance(value, bool) and 0 <= float(value) < float("inf")
        return None if fits else _described(value)

    return check


def _step(value: Any, facts: Facts) -> str | None:
    return None if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else _described(value)


def _json(value: Any, facts: Facts) -> str | None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return _described(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        return f"what is no JSON ({error})"
    return None


def _operations(value: Any, facts: Facts) -> str | None:
    return None if isinstance(value, (list, tuple)) else _described(value)


def _projection(value: Any, facts: Facts) -> str | None:
    parts = value if isinstance(value, (list, tuple)) else [value]
    written = (type(None), tf.Operation, tf.Tensor, tf.Variable)
    return None if all(isinstance(each, written) for each in parts) else _described(value)


def _context_manager(value: Any, facts: Facts) -> str | None:
    return None if hasattr(value, "__enter__") and hasattr(value, "__exit__") else _described(value)


def _picture(value: Any, given: Any, facts: Facts) -> str | None:
    fits = isinstance(value, np.ndarray) and value.ndim == 3 and value.shape[-1] in (1, 3) and value.dtype.kind == "f"
    return None if fits else _described(value)


def _optional(check: Check) -> Check:
    return lambda value, facts: None if value is None else check(value, facts)


_SAME = "a dict with a tensor for each name that it was given, of the same shape and dtype"
_VARIABLES = "a dict of tf.Variable by name, {} for none"
_NAMES = "a set of names of variables, set() for none"
_SCALARS = "a dict of numbers by name: tensors of shape []"
_BITS = "a dict of numbers of bits by the name of a variable, {} for none"
_EXAMPLES = "a dict of tensors by name, with an entry for each example: [batch, ...]"
_MODEL = "a keras.Model"
_VARIABLES_CHECK = _dict(_a(lambda: tf.Variable))

EXPECTED: dict[str, tuple[str, Check]] = {
    "rebuild_model": (_MODEL, _whole(_a(lambda: keras.Model))),
    "strip_model": (_MODEL, _whole(_a(lambda: keras.Model))),
    "request_taps": ("a dict of inner Keras tensors by name, {} for none", _dict(_a(lambda: keras.KerasTensor))),
    "state": (_VARIABLES, _VARIABLES_CHECK),
    "writes": (_VARIABLES, _VARIABLES_CHECK),
    "frozen": (_NAMES, _names),
    "projected": (_NAMES, _names),
    "best_from_step": ("a step, 0 for the first", _step),
    "stored_bits": (_BITS, _dict(_bits(Real), others=False)),
    "weight_bits": (_BITS, _dict(_bits(Integral), others=False)),
    "input_bits": ("a dict of whole numbers of bits by the path of a layer, {} for none", _dict(_bits(Integral))),
    "transform_batch": (
        "the batch, with each of its names, the same shapes, and float where it was float; further names may come",
        _batch,
    ),
    "frozen_entries": ("a dict of bool tensors by name, of the variable's shape or []", _dict(_held, others=False)),
    "transform_weights": (_SAME, _dict(_like_given, all_given=True, others=False)),
    "transform_statistics": (_SAME, _dict(_like_given, all_given=True, others=False)),
    "around_forward": ("a context manager, such as nullcontext()", _context_manager),
    "transform_state": (_SAME + "; a name may be left out", _dict(_like_given, others=False)),
    "add_losses": ("a dict of float tensors by name, of shape [batch] or []", _dict(_tensor("float", each=True))),
    "evaluate": ("a dict of numbers by name: tensors of shape [batch] or []", _dict(_tensor("number", each=True))),
    "transform_gradients": (
        _SAME + ", or None for no gradient",
        _dict(_gradient, all_given=True, others=False),
    ),
    "batch_sums": ("a dict of float tensors by name, of fixed shapes", _dict(_fixed)),
    "veto": ("a dict of bool tensors of shape [] by name", _dict(_tensor("bool"))),
    "update_ops": ("a list of the ops that assign, [] for none", _operations),
    "project": ("None: it assigns, and returns nothing", _projection),
    "measure": (_SCALARS, _dict(_tensor("number"))),
    "collect": (_EXAMPLES, _dict(_of_examples)),
    "split_metrics": (_SCALARS, _dict(_tensor("number"))),
    "observe": (_EXAMPLES, _dict(_of_examples)),
    "summary": ("a dict of JSON values, {} for none", _json),
    "state_dict": ("a dict of JSON values, {} for none", _json),
    "next_step": ("a step, or None", _optional(_step)),
    "pictures": ("a dict of float arrays by name: [height, width, 1 or 3]", _dict(_picture)),
    "embeddings": ("a dict of Embedding by name, {} for none", _dict(_a(lambda: Embedding))),
    "distributions": ("a dict of arrays by name, {} for none", _dict(_tensor("number", scalar=False))),
    "advise": ("a list of lines, () for none", _names),
    "warning": ("a line, or None", _optional(_whole(_a(lambda: str)))),
}
"""By stage: what is expected, in words and as a check. Stages that are not here return nothing."""
