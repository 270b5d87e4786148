"""Checks of hand-written gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError


def is_differentiable(tensor: tf.Tensor) -> bool:
    """Return whether a tensor, or anything with a dtype of TensorFlow, can have a gradient: it is float or complex."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def describe(tensor: Any) -> str:
    """Return a tensor's dtype and shape in a few words, such as "float32 [2, 3]"; "?" where a size is not known."""
    shape = tensor.shape
    sizes = "of unknown shape" if shape.rank is None else [size if size is not None else "?" for size in shape]
    return f"{tensor.dtype.name} {sizes}".replace("'", "")


def check_outputs(what: str, outputs: Any) -> Any:
    """Return the outputs of a forward pass, checked: a float tensor, or a tuple of them."""
    several = isinstance(outputs, list | tuple)
    if several and not outputs:
        raise UserError(f"{what} returned nothing. Expected a tensor, or a tuple of them.")
    for each in outputs if several else (outputs,):
        if not tf.is_tensor(each):
            raise UserError(
                f"{what} returned a {type(each).__name__}. Expected a tensor, or a tuple of them; for a forward of "
                "NumPy, give numpy_output=tf.TensorSpec(shape, dtype)."
            )
        if not is_differentiable(each):
            raise UserError(f"{what} returned {describe(each)}. Expected float: nothing else has a gradient.")
    return tuple(outputs) if several else outputs


def check_gradients(what: str, gradients: Any, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    """Return the gradients that a backward pass returned, checked: one for each input, None for one that is not float.

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
            f"{what} returned {len(listed)} gradient(s) for {len(inputs)} input(s). Expected one for each, in their "
            f"order: {expected}."
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
    if gradient.dtype != tensor.dtype or not gradient.shape.is_compatible_with(tensor.shape):
        raise UserError(
            f"{what} returned {describe(gradient)} for {which}. Expected {describe(tensor)}, as the input is: tf.cast "
            "it, sum over what forward broadcast, and broadcast what it summed."
        )
    if gradient.shape.is_fully_defined() and tensor.shape.is_fully_defined():
        return gradient
    message = f"{what} returned another shape than that of {which}."
    with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(gradient), tf.shape(tensor), message)]):
        return tf.ensure_shape(gradient, tensor.shape)


CONSTANT_OPS = ("Const", "StopGradient")
REMEDY = "Expected it among the inputs, where it gets a gradient, or among the constants"


@contextmanager
def watch_declared(what: str, declared: Sequence[tf.Tensor]) -> Iterator[None]:
    """Refuse trainable variables, and float tensors of the outer graph, that the block uses undeclared."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = len(graph.get_operations()) if graph is not None else 0
    with tf.GradientTape() as tape:  # it sees every trainable variable that is read
        yield
    if variables := sorted(variable.name for variable in tape.watched_variables()):
        raise UserError(
            f"{what} reads the trainable variable {variables[0]}, and no gradient would reach it. {REMEDY}: give it "
            "as an argument."
        )
    if graph is not None and (tensor := _undeclared(graph, before, declared)) is not None:
        raise UserError(f"{what} uses the tensor {tensor.name}, {describe(tensor)}, of the outer graph. {REMEDY}.")


def _undeclared(graph: tf.Graph, before: int, declared: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Return a tensor that the ops after the first `before` ones use, and that is not declared."""
    created = set(graph.get_operations()[before:])
    known = {id(each) for tensor in declared for each in _origins(tensor)}
    for operation in created:
        captured = operation.type == "Placeholder"
        for tensor in operation.outputs if captured else operation.inputs:
            if (captured or tensor.op not in created) and not any(id(each) in known for each in _origins(tensor)):
                origin = _origins(tensor)[-1]
                if _may_need_gradient(origin):
                    return origin
    return None


def _may_need_gradient(tensor: Any) -> bool:
    if not isinstance(getattr(tensor, "graph", None), tf.Graph):  # an eager tensor: it has its value
        return False
    return is_differentiable(tensor) and tensor.op.type not in CONSTANT_OPS


def _origins(tensor: Any) -> list[Any]:
    """Return a tensor, and the tensors of outer graphs that it was captured from, the outermost last."""
    found = [tensor]
    while isinstance(graph := getattr(tensor, "graph", None), tf.__internal__.FuncGraph):
        captured = {id(internal): external for external, internal in graph.captures}
        if id(tensor) not in captured:
            break
        tensor = captured[id(tensor)]
        found.append(tensor)
    return found


def run_numpy(
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    output: tf.TensorSpec | Sequence[tf.TensorSpec],
    name: str,
) -> Any:
    """Return function(*arrays) as tensors of the declared shapes and dtypes; it has no gradient.

    `tf.numpy_function` alone forgets the shapes, lets an eager call return another dtype than declared, and shares
    memory: a function that fills one array again and again changes results that it returned before. Here its arrays
    cannot be written to, and what it returns is copied. In a graph, its errors are `tf.errors.InvalidArgumentError`.
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
    tensors = [tensors] if tf.is_tensor(tensors) else tensors  # eagerly, a list of one tensor is not a tensor
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
    found = tf.TensorSpec(array.shape, array.dtype)
    if found.dtype != spec.dtype or not found.shape.is_compatible_with(spec.shape):
        raise UserError(
            f"The NumPy forward of '{name}' returned {describe(found)}. Expected {describe(spec)}, as declared in "
            "numpy_output: return that, with .astype where the dtype differs, or declare the other."
        )
    return array.copy()


def differentiate(
    name: str, backward: Callable[..., Sequence[tf.Tensor]], tensors: Sequence[tf.Tensor], upstream: Any
) -> list[tf.Tensor | None]:
    """Return the gradients of backward(*tensors), given dL/d(backward(*tensors)), one for each tensor.

    None for one that is not float, zeros for one that backward does not use. One that it uses only through ops without
    a gradient is refused: a 0 would be an accident.
    """
    copies = [tf.identity(each) for each in tensors]  # the tape looks at these alone
    floats = [each for each in copies if is_differentiable(each)]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        gradients = backward(*copies)
    found = iter(tape.gradient(gradients, floats, output_gradients=list(upstream)))
    derivatives = [next(found) if is_differentiable(each) else None for each in copies]
    used = used_arguments(backward, tensors) if any(each is None for each in derivatives) else []
    for position, (tensor, derivative) in enumerate(zip(tensors, derivatives, strict=True)):
        if derivative is None and is_differentiable(tensor):
            if used[position]:
                raise UserError(
                    f"A second derivative of '{name}' was asked for, but its backward pass uses argument "
                    f"{position + 1} (of upstream, inputs and outputs) only through ops without a gradient, such as "
                    "comparisons. Expected a function as second_backward."
                )
            derivatives[position] = tf.zeros_like(tensor)
    return derivatives


def used_arguments(function: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> list[bool]:
    """Return for each argument whether a function's result depends on it; the function is traced for that."""
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    waiting = [tensor.op for tensor in graph.outputs]
    found = set(waiting)
    while waiting:
        operation = waiting.pop()
        for parent in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return [placeholder.op in found for placeholder in graph.inputs[: len(tensors)]]
