"""Values that a user types, checked."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from hookline.trainer.config.parts import check_tree
from hookline.trainer.config.schema import BALANCED, NAMED, TrainConfig, TrainerConfig
from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.input.shares import batch_sizes_for, check_class_parts

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
    """Return whether a value from a config fits an annotation. Annotations other than the simple ones fit all."""
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
    """Return an annotation in words, such as "a whole number or null"."""
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

    Integers and floats are interchangeable, since only the signature knows better; in place of a text, a list or a part
    with a `_target_` is accepted, too.
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
    """Return a value as it is written on the command line."""
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
    """Return a value as `show` does, an empty text in quotes."""
    return show(value) if value != "" else "''"


def is_interpolation(value: Any) -> bool:
    """Return whether a value refers to another one, as "${trainer.epochs}" does; after a backslash it does not."""
    return isinstance(value, str) and REFERENCE.search(value) is not None


def validate(config: Mapping[str, Any]) -> None:
    """Check a composed config whose names and types are right already."""
    _check_fields(TrainConfig, config, "")
    _check_fields(TrainerConfig, config["trainer"], "trainer.")
    _check_duration(config["trainer"])
    _check_classes_per_batch(config["trainer"])
    _check_class_numbers(config["trainer"])
    _check_parts(config["trainer"])
    _check_optimizer(config["optimizer"])
    _check_plugins(config["plugins"])
    for section in NAMED:
        for name, part in config[section].items():
            if part is not None:
                _check_target(f"{section}.{name}", part)
    check_tree(config, config["plugins"])


def _check_fields(schema: type, values: Mapping[str, Any], prefix: str) -> None:
    for field in dataclasses.fields(schema):
        value, key = values[field.name], prefix + field.name
        if field.metadata.get("target"):
            _check_target(key, value)
        elif value is not None:
            _check_limits(key, value, field.metadata)


def _check_limits(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key}={show(value)} received. Expected a finite number.")
    if "minimum" in limits and value < limits["minimum"]:
        raise UserError(f"{key}={value} received. Expected at least {limits['minimum']}.")
    if "maximum" in limits and value > limits["maximum"]:
        raise UserError(f"{key}={value} received. Expected at most {limits['maximum']}.")
    if "choices" in limits and value not in limits["choices"]:
        choices = limits["choices"]
        raise UserError(f"{key}={value} received.{did_you_mean(value, choices)} Expected one of: {', '.join(choices)}.")
    if value == "":
        raise UserError(f"{key} is empty. Expected a text; to leave it out, write {key}=null.")


def _check_target(key: str, section: Any) -> None:
    if not isinstance(section, Mapping):
        raise UserError(f"{key}={show(section)} received. Expected a mapping with a _target_.")
    target = section.get("_target_")
    if not isinstance(target, str) or not target:
        raise UserError(f"{key} has no _target_. Expected {key}._target_=<import path of what it builds>.")


def _check_duration(trainer: Mapping[str, Any]) -> None:
    epochs, steps = trainer["epochs"], trainer["steps"]
    if epochs is not None and steps is not None:
        raise UserError(
            f"trainer.epochs={epochs} and trainer.steps={steps} are both set. "
            "Expected exactly one: add trainer.epochs=null or trainer.steps=null."
        )
    if epochs is None and steps is None:
        raise UserError("Neither trainer.epochs nor trainer.steps is set. Expected one, such as trainer.epochs=20.")


def _check_classes_per_batch(trainer: Mapping[str, Any]) -> None:
    size, classes = trainer["batch_size"], trainer["classes_per_batch"]
    if classes is not None and size % classes:
        raise UserError(
            f"trainer.batch_size={size} is not a multiple of trainer.classes_per_batch={classes}. "
            f"Expected equally many examples of each class: use {batch_sizes_for(size, classes)}, or another number of "
            "classes."
        )


def _check_class_numbers(trainer: Mapping[str, Any]) -> None:
    _check_numbers("class_weights", trainer["class_weights"], "a weight of at least 0, such as {0:2.0}", math.inf)
    _check_numbers("class_sampling", trainer["class_sampling"], "a share above 0 and below 1, such as {0:0.5}", 1.0)
    orders = {key: trainer[key] for key in ("class_sampling", "classes_per_batch") if trainer[key] is not None}
    if len(orders) > 1:
        received = " and ".join(f"trainer.{key}={show(value)}" for key, value in orders.items())
        raise UserError(f"{received} received: both say which classes a batch holds. Expected one, the other null.")
    if orders and trainer["class_weights"] == BALANCED:
        (key, value), *_ = orders.items()
        raise UserError(
            f"trainer.class_weights=balanced received with trainer.{key}={show(value)}, which changes how often "
            "classes come: the weights would correct it a second time. Expected one of them, or weights by class."
        )


def _check_numbers(name: str, setting: Any, expected: str, limit: float) -> None:
    """Check a setting that is null, "balanced" or a mapping from classes to numbers."""
    if setting is None or setting == BALANCED:
        return
    if not isinstance(setting, Mapping) or not setting:
        hint = did_you_mean(setting, (BALANCED,)) if isinstance(setting, str) else ""
        raise UserError(
            f"trainer.{name}={show(setting)} received.{hint} Expected null, {BALANCED}, or for each class {expected}."
        )
    for label, value in setting.items():
        within = fits(value, float) and 0 <= value < limit and (value > 0 or limit == math.inf)
        if not within:
            raise UserError(f"trainer.{name}={{{label}:{show(value)}}} received. Expected {expected}.")


def _check_parts(trainer: Mapping[str, Any]) -> None:
    """Check that micro batches, and replicas where their number is given, have equal parts of a batch."""
    size, steps, classes = (trainer[key] for key in ("batch_size", "accumulation_steps", "classes_per_batch"))
    replicas = trainer["replicas"] or 1
    times = f" times trainer.accumulation_steps={steps}" if steps > 1 else ""
    for received, parts, where, fewer in (
        (f"trainer.accumulation_steps={steps}", steps, "in each micro batch", "steps"),
        (f"trainer.replicas={replicas}{times}", replicas * steps, "for each part of the batch", "replicas"),
    ):
        if size % parts:
            raise UserError(
                f"trainer.batch_size={size} is not a multiple of {received}. Expected an equal part of the batch for "
                f"each: use {batch_sizes_for(size, parts)}, or another number of {fewer}."
            )
        check_class_parts(classes, parts, received=received, where=where, fewer=fewer)


def _check_optimizer(optimizer: Mapping[str, Any]) -> None:
    rate: Any = optimizer.get("learning_rate")
    if not fits(rate, float) or not math.isfinite(rate) or rate <= 0:
        raise UserError(f"optimizer.learning_rate={show(rate)} received. Expected a number above 0, such as 0.001.")
    if (steps := optimizer.get("gradient_accumulation_steps")) is not None:
        raise UserError(
            f"optimizer.gradient_accumulation_steps={show(steps)} received: hooks would update with every batch, the "
            f"optimizer would not. Expected trainer.accumulation_steps={show(steps)} in its place, with the whole "
            "batch as trainer.batch_size."
        )


def _check_plugins(plugins: list[str]) -> None:
    for name in plugins:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"plugins holds {name!r}. Expected names of packages, such as plugins=[my_package].")
        if name.partition(".")[0] in sys.stdlib_module_names:
            raise UserError(f"plugins holds '{name}', a module of Python itself. Expected a package of your own.")
