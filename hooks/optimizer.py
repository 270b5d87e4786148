"""What a Keras optimizer does to a variable beside the update: weight decay, moving average."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

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
