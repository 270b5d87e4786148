"""A function of NumPy inside TensorFlow, with the shapes and dtypes that it declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.ops.gradient_checks import describe, is_differentiable


def run_numpy(
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    output: tf.TensorSpec | Sequence[tf.TensorSpec],
    name: str,
) -> Any:
    """Return function(*arrays) as tensors of the declared shapes and dtypes; it has no gradient.

    `tf.numpy_function` alone forgets the shapes, lets an eager call return another dtype than declared, and shares
    memory: a function that fills one array again and again changes results that it returned before. Here its arrays
    cannot be written to, and what it returns is copied.

    Args:
        function: called with one array for each input, while the graph runs.
        inputs: tensors.
        output: shape and dtype of the array that it returns, None for unknown sizes; several for several arrays.
        name: what messages call it.

    Returns:
        A tensor, or a tuple of them for several.

    Raises:
        UserError: it returned something else; in a graph this is a `tf.errors.InvalidArgumentError` with that message.
    """
    specs = _check_specs(output, name)
    several = not isinstance(output, tf.TensorSpec)

    def call(*arrays: np.ndarray) -> list[np.ndarray]:
        views = [np.asarray(array).view() for array in arrays]
        for view in views:
            view.flags.writeable = False
        returned = function(*views)
        listed = list(returned) if several and isinstance(returned, list | tuple) else [returned]
        if len(listed) != len(specs):
            raise UserError(
                f"The NumPy forward of '{name}' returned {len(listed)} arrays. Expected {len(specs)}, as declared in "
                "numpy_output."
            )
        return [_check_array(each, spec, name) for each, spec in zip(listed, specs, strict=True)]

    dtypes = [spec.dtype for spec in specs]
    tensors = tf.numpy_function(call, list(inputs), dtypes, name="numpy_forward")
    tensors = [tensors] if tf.is_tensor(tensors) else tensors  # eagerly, a list of one is none
    shaped = tuple(tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(tensors, specs, strict=True))
    return shaped if several else shaped[0]


def _check_specs(output: Any, name: str) -> list[tf.TensorSpec]:
    specs = list(output) if isinstance(output, list | tuple) else [output]
    if not specs or not all(isinstance(spec, tf.TensorSpec) and is_differentiable(spec) for spec in specs):
        raise UserError(
            f"'{name}' received numpy_output={output!r}. Expected a float tf.TensorSpec(shape, dtype), or several."
        )
    return specs


def _check_array(value: Any, spec: tf.TensorSpec, name: str) -> np.ndarray:
    if tf.is_tensor(value) or not isinstance(value, np.ndarray | np.generic):
        raise UserError(
            f"The NumPy forward of '{name}' returned a {type(value).__name__}. Expected a NumPy array, "
            f"{describe(spec)}."
        )
    array = np.asarray(value)
    found = tf.TensorSpec(array.shape, _dtype(array))
    if found.dtype != spec.dtype:
        raise UserError(
            f"The NumPy forward of '{name}' returned {describe(found)}. Expected {describe(spec)}, as declared in "
            f"numpy_output: end it with .astype('{spec.dtype.name}'), or declare {found.dtype.name}."
        )
    if not found.shape.is_compatible_with(spec.shape):
        raise UserError(
            f"The NumPy forward of '{name}' returned {describe(found)}. Expected {describe(spec)}, as declared in "
            "numpy_output: return that shape, or declare the other."
        )
    return array.copy()


def _dtype(array: np.ndarray) -> tf.DType:
    try:
        return tf.as_dtype(array.dtype)
    except TypeError:
        return tf.variant  # no dtype of TensorFlow, such as an array of objects: fits none that is declared
