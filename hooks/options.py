"""Shared by hooks: checks of options, epochs as steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name


def check_flag(name: str, value: Any) -> bool:
    """Return True or False.

    Args:
        name: of the option.
        value: that was given.

    Raises:
        UserError: anything else, 0 and 1 included.
    """
    if not isinstance(value, bool):
        raise UserError(f"Invalid {name}: {value!r}. Expected true or false.")
    return value


def check_integer(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
    """Return a whole number in a range.

    Args:
        name: of the option.
        value: that was given.
        minimum: smallest value allowed.
        maximum: largest value allowed; None for any.

    Raises:
        UserError: anything else, 2.0 and true included.
    """
    if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
        bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise UserError(f"Invalid {name}: {value!r}. Expected a whole number {bounds}.")
    return value


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above_minimum: bool = False,
    expected: str | None = None,
) -> float:
    """Return a finite number in a range as a float.

    Args:
        name: of the option.
        value: that was given.
        minimum: smallest value allowed.
        maximum: largest value allowed.
        above_minimum: whether the minimum itself is out of range.
        expected: what the message asks for; None for a number in that range.

    Raises:
        UserError: anything else, text such as "1" and true included.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not minimum <= value <= maximum or (above_minimum and value == minimum):
        wanted = expected or _range_in_words(minimum, maximum, above_minimum)
        raise UserError(f"Invalid {name}: {value!r}. Expected {wanted}.")
    return float(value)


def _range_in_words(minimum: float, maximum: float, above_minimum: bool) -> str:
    if maximum < math.inf:
        return f"a number in {'(' if above_minimum else '['}{minimum:g}, {maximum:g}]"
    if minimum > -math.inf:
        return f"a number {'above' if above_minimum else 'of at least'} {minimum:g}"
    return "a finite number"


def check_choice(name: str, value: Any, known: Sequence[str]) -> str:
    """Return one of several names.

    Args:
        name: of the option.
        value: that was given.
        known: the names that exist.

    Raises:
        UserError: another one; suggests the nearest.
    """
    if not isinstance(value, str) or value not in known:
        raise unknown_name(name, str(value), known)
    return value


def check_patterns(name: str, value: Any) -> str | list[str]:
    """Return one pattern on paths, or a list of them.

    Args:
        name: of the option.
        value: that was given.

    Raises:
        UserError: an empty text or list, or other things in it.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        patterns = list(value)
        if all(isinstance(pattern, str) and pattern for pattern in patterns):
            return patterns
    raise UserError(f"Invalid {name}: {value!r}. Expected a pattern such as '*', or a list of patterns.")


def epoch_start(epoch: float, steps_per_epoch: float) -> int:
    """Return the first step before which this many epochs have been drawn.

    Args:
        epoch: 0 or more.
        steps_per_epoch: perhaps a fraction.
    """
    return math.ceil(epoch * steps_per_epoch - 1e-6)  # 0.1 * 3 is a little more than 0.3


AVERAGE = "_model_variables_moving_average"
"""The optimizer's attribute that holds the moving averages; its other lists of variables are slots."""


def decays_weight(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Return whether the optimizer applies its weight decay to a variable.

    Args:
        optimizer: any Keras optimizer, perhaps inside a LossScaleOptimizer.
        variable: any variable.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return bool(inner.weight_decay) and inner._use_weight_decay(variable)


def keeps_averages(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer keeps a moving average of every variable (`use_ema`).

    Args:
        optimizer: any Keras optimizer, perhaps inside a LossScaleOptimizer.
    """
    return bool(getattr(optimizer, "inner_optimizer", optimizer).use_ema)


def moving_average(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> keras.Variable | None:
    """Return the average that an optimizer with `use_ema` keeps of a variable, or None.

    Args:
        optimizer: built; any Keras optimizer, perhaps inside a LossScaleOptimizer.
        variable: one that it trains.
    """
    if not keeps_averages(optimizer):
        return None
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    pairs = zip(inner._trainable_variables, inner._model_variables_moving_average, strict=True)
    return next((average for trained, average in pairs if trained is variable), None)


def project_with_average(
    optimizer: keras.optimizers.Optimizer, variable: keras.Variable, project: Callable[[tf.Tensor], tf.Tensor]
) -> None:
    """Put a variable and its moving average back into a set.

    The average was taken before the variable was put back, and may replace the variable later.

    Args:
        optimizer: built; any Keras optimizer, perhaps inside a LossScaleOptimizer.
        variable: one that it trains.
        project: takes the values of either and returns those to assign, of the same shape and dtype.
    """
    for each in (variable, moving_average(optimizer, variable)):
        if each is not None:
            each.value.assign(project(tf.convert_to_tensor(each.value)))
