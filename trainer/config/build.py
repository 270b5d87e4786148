"""From a config node to an object: `_target_` is called with the node's other entries as keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.config.parts import TARGET
from trainer.config.resolve import resolve
from trainer.config.values import describe, fits, like, show
from trainer.deferred import NeedsFramework
from trainer.errors import UserError, did_you_mean

PLAIN = (type(None), bool, int, float, str, list, Mapping)


@dataclass(frozen=True)
class Parameter:
    """Describe what one argument takes.

    Attributes:
        annotation: the type, or one derived from the default.
        required: whether there is no default.
    """

    annotation: Any
    required: bool


def bind(
    node: Mapping[str, Any],
    *,
    group: str | None = None,
    kind: type | None = None,
    plugins: Sequence[str] = (),
    injected: Iterable[str] | None = None,
) -> None:
    """Check that a node's `_target_` exists and takes the node's arguments, without calling it. Nested nodes, too.

    Args:
        node: `_target_` and keyword arguments.
        group: of `trainer.config.parts.KINDS`; None for a part of a part.
        kind: what a class has to derive from; what a function returns shows when it is called.
        plugins: packages that the user allows beside this project and Keras.
        injected: names that `build` will be given beside the node's; None when they are not known yet, and then
            missing arguments are not looked for.

    Raises:
        UserError: a target that is not allowed, or an unknown, missing or wrong argument.
    """
    target, path = _target(node, group, plugins), node[TARGET]
    if kind is not None and inspect.isclass(target) and not issubclass(target, kind):
        raise UserError(
            f"_target_={path} is a class that does not derive from {kind.__name__}. Expected one that does."
        )
    parameters, takes_any = parameters_of(target)
    given = {name: value for name, value in node.items() if name != TARGET}
    for name, value in given.items():
        if name not in parameters and not takes_any:
            known = ", ".join(parameters) or "none"
            hint = did_you_mean(name, parameters)
            raise UserError(f"Unknown argument '{name}' for {path}.{hint} Expected one of: {known}.")
        if name in parameters:
            _check_value(path, name, value, parameters[name].annotation)
        _bind_nested(value, plugins)
    if injected is not None:
        _check_missing(path, parameters, {*given, *injected})


def build(
    node: Mapping[str, Any],
    *,
    group: str | None = None,
    kind: type | None = None,
    plugins: Sequence[str] = (),
    **injected: Any,
) -> Any:
    """Return what a node's `_target_` returns.

    Nested nodes with a `_target_` are built first. Nothing is called before the whole node is checked.

    Args:
        node: `_target_` and keyword arguments.
        group: as for `bind`.
        kind: as for `bind`.
        plugins: packages that the user allows beside this project and Keras.
        injected: further arguments; each is passed on if the target takes it, and wins over the node's own.

    Raises:
        UserError: as in `bind`, or Keras refuses the arguments.
    """
    bind(node, group=group, kind=kind, plugins=plugins, injected=injected)
    target = _target(node, group, plugins)
    arguments = {name: _build_nested(value, plugins) for name, value in node.items() if name != TARGET}
    parameters, takes_any = parameters_of(target)
    arguments |= {name: value for name, value in injected.items() if name in parameters or takes_any}
    try:
        return target(**arguments)
    except ValueError as error:
        if isinstance(error, UserError) or not _is_keras_constructor(target):
            raise
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise UserError(f"{node[TARGET]} refuses its arguments: {reason}") from error


def _is_keras_constructor(target: Callable[..., Any]) -> bool:
    """Return whether it is Keras that takes the arguments: of its own classes, and of classes that inherit them."""
    constructor = target.__init__ if inspect.isclass(target) else target
    return str(getattr(constructor, "__module__", "")).startswith("keras.")


def _target(node: Mapping[str, Any], group: str | None, plugins: Sequence[str]) -> Callable[..., Any]:
    if TARGET not in node:
        raise UserError(f"A part without {TARGET} received: {show(node)}. Expected {TARGET}=<import path>.")
    return resolve(node[TARGET], group=group, plugins=plugins)


def _bind_nested(value: Any, plugins: Sequence[str]) -> None:
    if isinstance(value, Mapping):
        if TARGET in value:
            bind(value, plugins=plugins, injected=())
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _bind_nested(item, plugins)


def _build_nested(value: Any, plugins: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if TARGET in value:
            return build(value, plugins=plugins)
        return {key: _build_nested(item, plugins) for key, item in value.items()}
    if isinstance(value, list):
        return [_build_nested(item, plugins) for item in value]
    return value


def _check_value(path: str, name: str, value: Any, annotation: Any) -> None:
    is_part = isinstance(value, Mapping) and TARGET in value  # its result is an object, of which nothing is known
    if isinstance(value, PLAIN) and not is_part and not fits(value, annotation):
        raise UserError(f"{name}={show(value)} received for {path}. Expected {describe(annotation)}.")


def _check_missing(path: str, parameters: Mapping[str, Parameter], given: set[str]) -> None:
    missing = [name for name, parameter in parameters.items() if parameter.required and name not in given]
    if missing:
        raise UserError(f"{path} needs {' and '.join(missing)}. Expected a value, such as {missing[0]}=<value>.")


def parameters_of(target: Callable[..., Any]) -> tuple[dict[str, Parameter], bool]:
    """Return what a target takes by keyword, and whether it takes any other keyword, too.

    A class that passes `**kwargs` to its bases takes what their constructors name, and no more.

    Args:
        target: a class or function.
    """
    parameters: dict[str, Parameter] = {}
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


def _parameter(parameter: inspect.Parameter, function: Callable[..., Any]) -> Parameter:
    annotation, required = parameter.annotation, parameter.default is parameter.empty
    if isinstance(annotation, str):
        annotation = _evaluated(annotation, inspect.unwrap(function))
    if annotation is parameter.empty:
        annotation = Any if required else like(parameter.default, optional=False)
    return Parameter(annotation, required)


def _evaluated(annotation: str, function: Callable[..., Any]) -> Any:
    """Return the type that an annotation written as text means; Any where its names are not imported at run time."""
    probe = type("Probe", (), {"__annotations__": {"value": annotation}, "__module__": function.__module__})
    try:
        return inspect.get_annotations(probe, eval_str=True)["value"]
    except (NameError, AttributeError, TypeError, NeedsFramework):  # a class of Keras, which is not imported yet
        return Any
