"""Keras optimizers beside the fused ones of the same name, and one traced apply of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.recipes.optimizers.fused_update import SGD, Adam, AdamW, RMSprop

PAIRS: dict[str, tuple[type, type]] = {
    name: (getattr(keras.optimizers, name), fused)
    for name, fused in {"SGD": SGD, "Adam": Adam, "AdamW": AdamW, "RMSprop": RMSprop}.items()
}
Values = Sequence[np.ndarray]


def variables_of(values: Values, dtype: str = "float32") -> list[keras.Variable]:
    """Return trainable variables "variable_0", ... with these values."""
    return [keras.Variable(value, dtype=dtype, name=f"variable_{place}") for place, value in enumerate(values)]


def built(optimizer: keras.optimizers.Optimizer, values: Values, dtype: str = "float32") -> list[keras.Variable]:
    """Build an optimizer on new variables, and return these."""
    variables = variables_of(values, dtype)
    optimizer.build(variables)
    return variables


def state_of(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    """Return copies of the variables and of all that the optimizer holds."""
    return [np.array(each.value) for each in (*variables, *optimizer.variables)]


def set_state(optimizer: Any, variables: Sequence[keras.Variable], state: Sequence[np.ndarray]) -> None:
    """Put back what `state_of` returned."""
    for each, value in zip((*variables, *optimizer.variables), state, strict=True):
        each.assign(value)


def traced(optimizer: Any, variables: Sequence[keras.Variable], *, xla: bool = False) -> Callable[..., None]:
    """Return the apply as a traced function of a gradient for each variable."""
    return tf.function(lambda *gradients: optimizer.apply(list(gradients), variables), autograph=False, jit_compile=xla)


def operations(optimizer: Any, shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> list[tf.Operation]:
    """Return the ops of a traced apply, without the gradients' placeholders."""
    variables = built(optimizer, [np.zeros(shape) for shape in shapes], dtype)
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    graph = traced(optimizer, variables).get_concrete_function(*specs).graph
    return [each for each in graph.get_operations() if each.type != "Placeholder"]
