"""Ranges and combinations that types cannot say. Pure; free of TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

from trainer.config.parts import check_tree
from trainer.config.schema import BALANCED, NAMED, TrainConfig, TrainerConfig
from trainer.config.values import fits, show
from trainer.errors import UserError, did_you_mean
from trainer.input.shares import batch_sizes_for, check_class_parts


def validate(config: Mapping[str, Any]) -> None:
    """Check a composed config whose names and types are right already.

    Args:
        config: plain values, resolved; keys as in `TrainConfig`.

    Raises:
        UserError: a value out of range, or values that do not go together.
    """
    _check_fields(TrainConfig, config, "")
    _check_fields(TrainerConfig, config["trainer"], "trainer.")
    _check_duration(config["trainer"])
    _check_classes_per_batch(config["trainer"])
    _check_class_numbers(config["trainer"])
    _check_accumulation(config["trainer"])
    _check_replicas(config["trainer"])
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
        lower = size - size % classes
        multiples = " or ".join(f"trainer.batch_size={each}" for each in (lower, lower + classes) if each)
        raise UserError(
            f"trainer.batch_size={size} is no multiple of trainer.classes_per_batch={classes}. "
            f"Expected equally many examples of each class: use {multiples}, or another number of classes."
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


def _check_accumulation(trainer: Mapping[str, Any]) -> None:
    size, steps, classes = trainer["batch_size"], trainer["accumulation_steps"], trainer["classes_per_batch"]
    if size % steps:
        raise UserError(
            f"trainer.batch_size={size} is no multiple of trainer.accumulation_steps={steps}. Expected as many "
            f"examples in each micro batch: use {batch_sizes_for(size, steps)}, or another number of steps."
        )
    received = f"trainer.accumulation_steps={steps}"
    check_class_parts(classes, steps, received=received, where="in each micro batch", fewer="steps")


def _check_replicas(trainer: Mapping[str, Any]) -> None:
    """Check that replicas, where their number is given, can share a batch, and each its part among micro batches."""
    replicas, steps, classes = (trainer[key] for key in ("replicas", "accumulation_steps", "classes_per_batch"))
    if replicas is None or replicas == 1:
        return
    size, parts = trainer["batch_size"], replicas * steps
    received = f"trainer.replicas={replicas}{f' times trainer.accumulation_steps={steps}' if steps > 1 else ''}"
    if size % parts:
        raise UserError(
            f"trainer.batch_size={size} is no multiple of {received}. Expected an equal part of the batch for each: "
            f"use {batch_sizes_for(size, parts)}, or another number of replicas."
        )
    check_class_parts(classes, parts, received=received, where="for each part of the batch", fewer="replicas")


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
