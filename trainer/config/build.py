"""Build a part from its `_target_` and arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from hookline.trainer.config.overrides import show
from hookline.trainer.config.parts import KINDS, check_path, describe_missing, is_part
from hookline.trainer.config.schema import TARGET, describe, fits, like, walk
from hookline.trainer.deferred import NeedsFramework
from hookline.trainer.errors import UserError, check_choice, did_you_mean


def resolve(path: Any, *, group: str | None = None, plugins: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the class or function at an import path."""
    check_path(path, group=group, plugins=plugins)
    module_path, _, name = path.rpartition(".")
    module = _import(module_path, path)
    target = getattr(module, name, None)
    if target is None:
        public = [each for each, value in vars(module).items() if each[0] != "_" and not inspect.ismodule(value)]
        raise UserError(f"_target_={path}: the module '{module_path}' has no '{name}'.{did_you_mean(name, public)}")
    if not is_part(target, group=group, plugins=plugins):
        raise UserError(
            f"_target_={path} is not allowed: it is not a {KINDS.get(group or '', 'class or function')} that "
            f"{module_path.partition('.')[0]} provides for configs. Expected the import path of one."
        )
    return target


def _import(module_path: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if not f"{module_path}.".startswith(f"{error.name}."):
            raise  # a dependency of the module is missing: the traceback shows where
        raise UserError(f"_target_={path}: {describe_missing(str(error.name))}") from error


PLAIN = (type(None), bool, int, float, str, list, Mapping)


def bind(
    node: Mapping[str, Any],
    *,
    group: str | None = None,
    kind: type | None = None,
    plugins: Sequence[str] = (),
    injected: Iterable[str] | None = None,
) -> None:
    """Check recursively that a node's `_target_` exists and takes the node's arguments, without calling it."""
    target, path = _target(node, group, plugins), node[TARGET]
    if kind is not None and inspect.isclass(target) and not issubclass(target, kind):
        raise UserError(f"_target_={path} does not derive from {kind.__name__}. Expected a class that does.")
    parameters, takes_any = parameters_of(target)
    given = {name: value for name, value in node.items() if name != TARGET}
    for name, value in given.items():
        if name in parameters:
            annotation = parameters[name].annotation
            is_object = isinstance(value, Mapping) and TARGET in value  # of a type that is not known yet
            if isinstance(value, PLAIN) and not is_object and not fits(value, annotation):
                raise UserError(f"{name}={show(value)} received for {path}. Expected {describe(annotation)}.")
        elif not takes_any:
            check_choice(f"argument of {path}", name, parameters)
        for _, inner in walk(value):
            if isinstance(inner, Mapping) and TARGET in inner:
                bind(inner, plugins=plugins, injected=())
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if injected is not None and (missing := [name for name in needed if name not in {*given, *injected}]):
        raise UserError(f"{path} needs {' and '.join(missing)}. Expected a value, such as {missing[0]}=<value>.")


def build(
    node: Mapping[str, Any],
    *,
    group: str | None = None,
    kind: type | None = None,
    plugins: Sequence[str] = (),
    **injected: Any,
) -> Any:
    """Build nested nodes, then call a node's `_target_`; return the result, an instance of `kind` if it is given."""
    bind(node, group=group, kind=kind, plugins=plugins, injected=injected)  # the whole node, before anything is called
    target = _target(node, group, plugins)
    parameters, takes_any = parameters_of(target)
    arguments = {name: _build_nested(value, plugins) for name, value in node.items() if name != TARGET}
    arguments = {name: _as_typed(value, parameters.get(name)) for name, value in arguments.items()}
    arguments |= {name: value for name, value in injected.items() if name in parameters or takes_any}
    try:
        part = target(**arguments)
    except ValueError as error:
        constructor = target.__init__ if inspect.isclass(target) else target  # a subclass may inherit Keras's
        if isinstance(error, UserError) or not str(getattr(constructor, "__module__", "")).startswith("keras."):
            raise
        raise UserError(f"{node[TARGET]} refuses its arguments: {str(error).strip().splitlines()[0]}") from error
    if kind is not None and not isinstance(part, kind):
        raise UserError(
            f"_target_={node[TARGET]} returned a value of type {type(part).__name__}. "
            f"Expected {kind.__module__.partition('.')[0]}'s {kind.__name__}."
        )
    return part


def _target(node: Mapping[str, Any], group: str | None, plugins: Sequence[str]) -> Callable[..., Any]:
    if TARGET not in node:
        raise UserError(f"A part without {TARGET} received: {show(node)}. Expected {TARGET}=<import path>.")
    return resolve(node[TARGET], group=group, plugins=plugins)


def _as_typed(value: Any, parameter: inspect.Parameter | None) -> Any:
    """Convert an integer to float if the parameter has no annotation but a float default: Keras rejects momentum=0."""
    # With an annotation, an integer may have its own meaning: a number of examples instead of a fraction.
    if type(value) is not int or parameter is None or parameter.annotation != like(parameter.default):
        return value
    return float(value) if isinstance(parameter.default, float) else value


def _build_nested(value: Any, plugins: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if TARGET in value:
            return build(value, plugins=plugins)
        return {key: _build_nested(item, plugins) for key, item in value.items()}
    if isinstance(value, list):
        return [_build_nested(item, plugins) for item in value]
    return value


def parameters_of(target: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the keyword arguments of a target, and whether it accepts any others.

    A class that passes `**kwargs` to its bases accepts only the arguments that their constructors name.
    """
    parameters: dict[str, inspect.Parameter] = {}
    functions = [target]
    if inspect.isclass(target):
        bases = [base for base in inspect.getmro(target) if base is not object]
        functions = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)]
    for function in functions:
        signature = inspect.signature(function)
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        for name, parameter in signature.parameters.items():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "self":
                parameters.setdefault(name, _parameter(parameter, function))
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return parameters, False
    return parameters, not inspect.isclass(target)


def _parameter(parameter: inspect.Parameter, function: Callable[..., Any]) -> inspect.Parameter:
    """Return a parameter with its evaluated annotation, or with one derived from its default if it has none."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = _evaluated(annotation, inspect.unwrap(function))
    if annotation is parameter.empty:
        annotation = Any if parameter.default is parameter.empty else like(parameter.default)
    return parameter.replace(annotation=annotation)


def _evaluated(annotation: str, function: Callable[..., Any]) -> Any:
    """Evaluate an annotation given as a string; return Any if its names are not imported at run time."""
    probe = type("Probe", (), {"__annotations__": {"value": annotation}, "__module__": function.__module__})
    try:
        return inspect.get_annotations(probe, eval_str=True)["value"]
    except (NameError, AttributeError, TypeError, NeedsFramework):  # a class of Keras, which is not imported yet
        return Any
