"""Functions, paths and epochs given by options, and the variables of optimizers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice, user_path
from hookline.trainer.network import Network, inner_of
from hookline.trainer.step.context import BuildContext


def parse_named(
    option: str, given: Any, known: Mapping[str, Callable[..., Any]], hidden: Collection[str] = ()
) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a known function from an option such as "a" or {name: a, b: 1}."""
    arguments = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = check_choice(option, arguments.pop("name", None), list(known))
    parameters = inspect.signature(known[name]).parameters.keys() - hidden
    for argument in arguments:
        check_choice(f"argument of {option} {name}", argument, parameters)
    return name, arguments


def check_place(key: str, path: str) -> None:
    """Raise a UserError if the path that an option gives does not exist."""
    if not user_path(path, key).exists():
        raise UserError(
            f"{key}={path} does not exist. Expected a run or a file. If it has moved since the run began, put it back, "
            f"or resume with resume=<run> {key}=<its new path>."
        )


def epoch_start(epoch: float, steps_per_epoch: float) -> int:
    """Return the first step after this many epochs."""
    return math.ceil(epoch * steps_per_epoch - 1e-6)  # 0.1 * 3 is a little more than 0.3


def begin_step(epoch: float, context: BuildContext, option: str = "begin_epoch") -> int:
    """Return the first step after `begin_epoch`, or after another option's epoch; it must lie within the run."""
    step = epoch_start(epoch, context.steps_per_epoch)
    if step >= context.total_steps:
        epochs = context.total_steps / context.steps_per_epoch
        raise UserError(f"{option}={epoch:g} is not before the end of the run, epoch {epochs:g}. Set an earlier one.")
    return step


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the count of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


AVERAGE = "_model_variables_moving_average"
"""The optimizer's attribute that holds the moving averages; its other lists of variables are slots."""


def exclude_from_decay(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> None:
    """Exclude a variable from weight decay, even after the optimizer is built, when Keras no longer allows it."""
    inner = inner_of(optimizer)
    excluded: set[int] = getattr(inner, "_exclude_from_weight_decay", set())
    inner._exclude_from_weight_decay = {*excluded, inner._var_key(variable)}
    inner._exclude_from_weight_decay_cache = {}


def moving_average(network: Network, name: str) -> keras.Variable | None:
    """Return the moving average of a variable in an optimizer with `use_ema`, or None."""
    averaged = inner_of(network.optimizer).use_ema and name in network.trainable_variables
    return network.optimizer_slots(name)[AVERAGE] if averaged else None


def project_with_average(network: Network, name: str, project: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Project a variable and its moving average, which was computed before the projection and may replace it later."""
    for each in (network.variables[name], moving_average(network, name)):
        if each is not None:
            each.value.assign(project(tf.convert_to_tensor(each.value)))
