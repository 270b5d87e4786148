"""Optimizers of a trainer: resolved from its arguments, and copied for further fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from hookline.recipes.optimizers.fused_update import SGD, Adam, AdamW, RMSprop
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.network import inner_of
from hookline.trainer.rate_schedules import ScaledRate

FUSED = {each.__name__.lower(): each for each in (Adam, AdamW, RMSprop, SGD)}
"""The optimizers of configs/optimizer by these names: the formulas of Keras, one kernel per variable."""
EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


def resolve_optimizer(given: Any) -> keras.optimizers.Optimizer:
    """Return an optimizer with any learning rate schedule wrapped, so that it can be lowered later."""
    if isinstance(given, str) and given.lower() in FUSED:
        return FUSED[given.lower()]()
    if isinstance(given, str):
        try:
            return keras.optimizers.get(given)
        except ValueError:
            known = [each.__name__.lower() for each in keras.optimizers.Optimizer.__subclasses__()]
            raise unknown_name("optimizer", given, {*FUSED, *known, "adagrad", "lion", "nadam"}) from None
    if not isinstance(given, keras.optimizers.Optimizer):
        raise UserError(f"optimizer is a {type(given).__name__}. Expected a name such as 'adam', or a Keras optimizer.")
    check_new(given, ())
    inner = inner_of(given)
    rate = inner._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) and not isinstance(rate, ScaledRate):
        inner._learning_rate = ScaledRate(rate)
    return given


def check_new(optimizer: keras.optimizers.Optimizer, variables: Iterable[keras.Variable]) -> None:
    """Refuse an optimizer that has made steps or was built for other variables."""
    own, inner = {id(each) for each in variables}, inner_of(optimizer)
    if inner.built and (inner._iterations.numpy() or any(id(each) not in own for each in inner._trainable_variables)):
        raise UserError(
            f"The optimizer {type(optimizer).__name__} has been built for another training. Expected a new one: "
            "type(optimizer).from_config(optimizer.get_config())."
        )


def resolve_optimizers(given: Any, models: Mapping[str, keras.Model]) -> dict[str, keras.optimizers.Optimizer]:
    """Return the optimizer of each network."""
    if isinstance(given, Mapping):
        if given.keys() != models.keys():
            raise UserError(f"optimizer names {', '.join(given)}. Expected {', '.join(models)}.")
        return {name: resolve_optimizer(each) for name, each in given.items()}
    if len(models) > 1 and not isinstance(given, str):
        raise UserError("One optimizer received for several networks. Expected one for each: {name: optimizer}.")
    return {name: resolve_optimizer(given) for name in models}


def config_of(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Return an optimizer's config with the schedule object itself, since a custom one may lack `get_config`."""
    inner = inner_of(optimizer)
    rate = inner._learning_rate
    if not isinstance(rate, ScaledRate):
        return optimizer.get_config()
    vars(inner)["_learning_rate"] = 0.0
    try:
        config = optimizer.get_config()
    finally:
        vars(inner)["_learning_rate"] = rate
    (config if inner is optimizer else config["inner_optimizer"]["config"])["learning_rate"] = rate
    return config


def copied(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return an unbuilt optimizer with the same settings, which shares the step count and learning rate."""
    config = config_of(optimizer)
    copy = type(optimizer).from_config(config)
    told, new = vars(inner_of(optimizer)), inner_of(copy)
    for name in ("_iterations", "_learning_rate"):  # setting one sets both
        if isinstance(told[name], keras.Variable):
            new._untrack_variable(vars(new)[name])
            new._track_variable(told[name])
    shared = ("_iterations", "_learning_rate", *EXCLUSIONS)
    vars(new).update({key: told[key] for key in shared if key in told})
    return copy
