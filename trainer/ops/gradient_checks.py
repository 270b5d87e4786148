"""Whether a forward pass and a backward pass return what they must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.errors import UserError


def is_differentiable(tensor: tf.Tensor) -> bool:
    """Return whether a tensor can have a gradient: its entries are float or complex.

    Args:
        tensor: or anything with a dtype of TensorFlow.
    """
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def describe(tensor: Any) -> str:
    """Return a tensor's dtype and shape in a few words, such as "float32 [2, 3]"; "?" where a size is not known.

    Args:
        tensor: or anything with a dtype and a shape of TensorFlow.
    """
    shape = tensor.shape
    sizes = "of unknown shape" if shape.rank is None else [size if size is not None else "?" for size in shape]
    return f"{tensor.dtype.name} {sizes}".replace("'", "")


def check_outputs(what: str, outputs: Any) -> Any:
    """Return what a forward pass returned: a tensor, or a tuple of tensors.

    Args:
        what: begins the messages.
        outputs: as returned.

    Raises:
        UserError: anything but float tensors.
    """
    several = isinstance(outputs, list | tuple)
    for each in outputs if several else (outputs,):
        if not tf.is_tensor(each):
            raise UserError(
                f"{what} returned a {type(each).__name__}. Expected a tensor, or a tuple of them; for a forward of "
                "NumPy, give numpy_output=tf.TensorSpec(shape, dtype)."
            )
        if not is_differentiable(each):
            raise UserError(f"{what} returned {describe(each)}. Expected float: nothing else has a gradient.")
    if several and not outputs:
        raise UserError(f"{what} returned nothing. Expected a tensor, or a tuple of them.")
    return tuple(outputs) if several else outputs


def check_gradients(what: str, gradients: Any, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    """Return one gradient for each input; None for an input that is not float.

    Args:
        what: begins the messages, such as "The backward pass of 'sign'".
        gradients: as returned: a list or tuple, or a bare tensor for a single input.
        inputs: of the forward pass.

    Raises:
        UserError: too few or too many gradients, None, or another shape or dtype than the input's.
    """
    listed = list(gradients) if isinstance(gradients, list | tuple) else [gradients]
    if len(listed) != len(inputs):
        expected = ", ".join(describe(each) for each in inputs)
        raise UserError(
            f"{what} returned {len(listed)} gradient{'' if len(listed) == 1 else 's'} for {len(inputs)} "
            f"input{'' if len(inputs) == 1 else 's'}. Expected one for each, in their order: {expected}."
        )
    return [
        _check_gradient(what, gradient, tensor, f"input {position} of {len(inputs)}")
        for position, (gradient, tensor) in enumerate(zip(listed, inputs, strict=True), start=1)
    ]


def _check_gradient(what: str, gradient: Any, tensor: tf.Tensor, which: str) -> tf.Tensor | None:
    if not is_differentiable(tensor):
        if gradient is not None:
            raise UserError(f"{what} returned a gradient for {which}, {describe(tensor)}. Expected None for it.")
        return None
    if gradient is None:
        raise UserError(
            f"{what} returned None for {which}. Expected a gradient, {describe(tensor)}: tf.zeros_like(...) where it "
            "is 0; a tensor that needs none belongs to constants."
        )
    gradient = tf.convert_to_tensor(gradient)
    if gradient.dtype != tensor.dtype:
        raise UserError(
            f"{what} returned {describe(gradient)} for {which}. Expected {describe(tensor)}: tf.cast it to the "
            "input's dtype."
        )
    if not gradient.shape.is_compatible_with(tensor.shape):
        raise UserError(
            f"{what} returned {describe(gradient)} for {which}. Expected {describe(tensor)}: sum over what forward "
            "broadcast, and broadcast what it summed."
        )
    if gradient.shape.is_fully_defined() and tensor.shape.is_fully_defined():
        return gradient
    message = f"{what} returned another shape than that of {which}."
    with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(gradient), tf.shape(tensor), message)]):
        return tf.ensure_shape(gradient, tensor.shape)
