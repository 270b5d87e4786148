"""Override the gradient of an op or a layer, and check the results of user-defined forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.ops.graph_walk import ancestors, origins

OVERRIDES = "hookline/overridden_gradients"
"""The graph collection that holds an `Overridden` for each declared override of a traced function."""
FORWARD, DIFFERENTIATE = "forward", "differentiate"
Tensors: TypeAlias = "tuple[tf.Tensor, ...]"


@dataclass(frozen=True, eq=False)
class Overridden:
    """An op of a traced function whose gradient is overridden."""

    name: str  # shown in tables
    inputs: Tensors  # tensors that get the gradients
    outputs: Tensors  # tensors whose gradients the former are computed from
    # the function of the inputs whose derivative the gradient is intended to be; "forward" for the forward pass itself;
    # None if the gradient is changed on purpose
    surrogate: Callable[..., Any] | str | None


def declare_override(
    name: str, inputs: Sequence[tf.Tensor], outputs: Any, surrogate: Callable[..., Any] | str | None
) -> None:
    """Record an op with an overridden gradient in the graph being traced; do nothing in eager execution.

    Args:
        name: name shown in tables.
        inputs: tensors that get the gradients.
        outputs: a tensor, or a tuple of them.
        surrogate: the function of the inputs whose derivative the gradient is intended to be, "forward", or None.
    """
    if not tf.executing_eagerly():
        flat = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
        tf.compat.v1.add_to_collection(OVERRIDES, Overridden(name, tuple(inputs), flat, surrogate))


@dataclass(frozen=True, eq=False)
class Override:
    """The arguments of `override_gradient`."""

    name: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inputs: Tensors
    constants: Tensors = ()
    numpy_output: Any = None
    second_backward: Callable[..., Any] | str | None = None


def override_gradient(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    constants: Sequence[tf.Tensor] = (),
    numpy_output: tf.TensorSpec | Sequence[tf.TensorSpec] | None = None,
    second_backward: Callable[..., Any] | str | None = None,
    surrogate: Callable[..., Any] | str | None = FORWARD,
    name: str = "override_gradient",
) -> Any:
    """Return forward(*inputs), with the gradients that `backward` returns.

    Works eagerly, in a `tf.function`, in `tf.while_loop`, compiled by XLA (a TensorFlow forward only), with
    `tf.GradientTape` and with `tf.gradients`. Every tensor that backward needs must be declared as an input or a
    constant; only inputs get a gradient. It is an error if forward or backward use an undeclared trainable variable, or
    an undeclared float tensor of the surrounding graph. Eager tensors, which have a value, are constants.

    Args:
        forward: called as forward(*inputs); returns a float tensor, or a tuple of them.
        backward: called as backward(upstream, inputs, outputs), where upstream is dL/d(outputs), inputs is a tuple, and
            upstream and outputs are structured as forward returns them (a tensor or a tuple). Made of TensorFlow ops.
            Returns one gradient per input, in its shape and dtype, or None for an input that is not float; a bare
            tensor for one input.
        inputs: tensors, or variables, which are read. Integers get no gradient.
        constants: float tensors that forward or backward use besides the inputs. They get no gradient.
        numpy_output: shape (None if unknown) and dtype of the array that a NumPy forward returns, or several of these.
            Such a forward gets read-only arrays, and XLA cannot compile it.
        second_backward: the second derivative. None: requesting it is an error, also with a persistent tape around a
            `tf.function`. "differentiate": backward is differentiated; it is an error if it uses an argument only
            through ops without a gradient, such as comparisons. A function: the backward pass of `backward`, called as
            second_backward(upstream, (*dL/d(outputs), *inputs, *outputs), gradients); it returns one gradient for each
            tensor of the second argument.
        surrogate: the function of the inputs whose derivative backward is intended to be: "forward" itself, another
            function, or None if it changes the gradient on purpose. It is only recorded, by `declare_override`.
        name: name of this op in messages.

    Raises:
        UserError: forward or backward return something else, or use something undeclared. Shapes that are unknown at
            trace time are checked at run time, and raise `tf.errors.InvalidArgumentError`.
    """
    if isinstance(second_backward, str) and second_backward != DIFFERENTIATE:
        raise unknown_name("second_backward", second_backward, [DIFFERENTIATE])
    if isinstance(surrogate, str) and surrogate != FORWARD:
        raise unknown_name("surrogate", surrogate, [FORWARD])
    tensors = tuple(tf.convert_to_tensor(each) for each in inputs)
    if not any(map(is_differentiable, tensors)):
        raise UserError(f"'{name}' received no float input. Expected at least one: nothing else gets a gradient.")
    outputs = apply_override(
        Override(name, forward, backward, tensors, tuple(constants), numpy_output, second_backward)
    )
    declare_override(name, tensors, outputs, surrogate)
    return outputs


def apply_override(override: Override) -> Any:
    """Return the outputs of an override, with its gradients."""
    result: list[Any] = []  # with the override's gradient, so that backward's use of the outputs is differentiated

    @tf.custom_gradient
    def run(*inputs: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        return _run_forward(override, inputs), lambda *upstream: compute_gradients(
            override, upstream, inputs, result[0]
        )

    result.append(run(*override.inputs))
    return result[0]


def _run_forward(override: Override, inputs: Tensors) -> Any:
    """Return forward's outputs, checked, with its own gradient rather than the overriding one."""
    if override.numpy_output is not None:
        return _run_numpy(override.forward, inputs, override.numpy_output, override.name)
    what = f"The forward pass of '{override.name}'"
    with _watch_declared(what, (*inputs, *override.constants)):
        try:
            outputs = override.forward(*inputs)
        except NotImplementedError as error:
            raise UserError(
                f"{what} cannot work on tensors: {error}. Expected TensorFlow ops; for a forward of NumPy, give "
                "numpy_output=tf.TensorSpec(shape, dtype)."
            ) from error
    return _check_outputs(what, outputs)


def compute_gradients(override: Override, upstream: Tensors, inputs: Tensors, outputs: Any) -> list[tf.Tensor | None]:
    """Return one checked gradient per input; differentiating them gives the second derivative, or raises an error.

    The upstream gradients are a tuple even for a single output; the outputs are structured as forward returned them.
    """
    is_single = not isinstance(outputs, tuple)
    outputs = (outputs,) if is_single else outputs
    # Some ops return a gradient as slices; a backward function gets it dense. The identity captures tensors of the
    # forward function's graph in this one: the next derivative, built in yet another graph, could not find them there.
    given = tuple(tf.identity(tf.convert_to_tensor(each)) for each in (*upstream, *inputs, *outputs))
    what = f"The backward pass of '{override.name}'"

    def backward(*tensors: tf.Tensor) -> Tensors:
        above, rest = tensors[: len(upstream)], tensors[len(upstream) :]
        middle, below = rest[: len(inputs)], rest[len(inputs) :]
        with _watch_declared(what, (*tensors, *override.constants)):
            gradients = override.backward(above[0] if is_single else above, middle, below[0] if is_single else below)
        return tuple(each for each in check_gradients(what, gradients, middle) if each is not None)

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[Tensors, Callable[..., Any]]:
        gradients = backward(*tensors)
        return gradients, lambda *above: _second_gradients(override, backward, above, tensors, gradients)

    found = iter(run(*given))
    return [next(found) if is_differentiable(each) else None for each in inputs]


def _second_gradients(
    override: Override, backward: Callable[..., Tensors], upstream: Tensors, tensors: Tensors, gradients: Tensors
) -> list[tf.Tensor | None]:
    """Return the gradients of an override's backward pass, or raise an error if none are defined."""
    if override.second_backward == DIFFERENTIATE:
        return _differentiate(override.name, backward, tensors, upstream)
    if not callable(override.second_backward):
        raise UserError(
            f"A second derivative of '{override.name}' was requested, but none is defined. Expected first derivatives "
            'only, or second_backward="differentiate", or a function for it.'
        )
    found = override.second_backward(tuple(map(tf.convert_to_tensor, upstream)), tensors, gradients)
    return check_gradients(f"The second backward pass of '{override.name}'", found, tensors)


def _differentiate(
    name: str, backward: Callable[..., Tensors], tensors: Tensors, upstream: Tensors
) -> list[tf.Tensor | None]:
    """Return the gradients of backward(*tensors), given dL/d(backward(*tensors)): zeros for a tensor it does not use.

    A tensor that it uses only through ops without a gradient is an error: a gradient of 0 would be unintended.
    """
    copies = [tf.identity(each) for each in tensors]  # the tape watches only these
    floats = [each for each in copies if is_differentiable(each)]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        gradients = backward(*copies)
    found = iter(tape.gradient(gradients, floats, output_gradients=list(map(tf.convert_to_tensor, upstream))))
    derivatives = [next(found) if is_differentiable(each) else None for each in copies]
    used = _used_arguments(backward, tensors) if any(each is None for each in derivatives) else []
    for position, (tensor, derivative) in enumerate(zip(tensors, derivatives, strict=True)):
        if derivative is None and is_differentiable(tensor):
            if used[position]:
                raise UserError(
                    f"A second derivative of '{name}' was requested, but its backward pass uses argument "
                    f"{position + 1} (of upstream, inputs and outputs) only through ops without a gradient, such as "
                    "comparisons. Expected a function as second_backward."
                )
            derivatives[position] = tf.zeros_like(tensor)
    return derivatives


def _used_arguments(function: Callable[..., Any], tensors: Tensors) -> list[bool]:
    """Return for each argument whether a function's result depends on it, found by tracing the function."""
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    found = {each for tensor in graph.outputs for each in (tensor.op, *ancestors(tensor.op))}
    return [placeholder.op in found for placeholder in graph.inputs[: len(tensors)]]


def is_differentiable(tensor: tf.Tensor) -> bool:
    """Return whether a tensor, or any object with a TensorFlow dtype, can have a gradient: it is float or complex."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def _describe(tensor: Any) -> str:
    """Return a tensor's dtype and shape, such as "float32 [2, 3]", with "?" for an unknown size."""
    shape = tensor.shape
    sizes = "of unknown shape" if shape.rank is None else [size if size is not None else "?" for size in shape]
    return f"{tensor.dtype.name} {sizes}".replace("'", "")


def _check_outputs(what: str, outputs: Any) -> Any:
    """Check and return the outputs of a forward pass: a float tensor, or a tuple of them."""
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
            raise UserError(f"{what} returned {_describe(each)}. Expected float: nothing else has a gradient.")
    return tuple(outputs) if several else outputs


def check_gradients(what: str, gradients: Any, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    """Check and return the gradients from a backward pass: one for each input, None for one that is not float.

    Args:
        what: start of the messages, such as "The backward pass of 'sign'".
        gradients: as returned: a list or tuple, or a bare tensor for a single input.
        inputs: inputs of the forward pass.

    Raises:
        UserError: wrong number of gradients, wrong shape or dtype, None for a float input, or a gradient for another.
    """
    listed = list(gradients) if isinstance(gradients, list | tuple) else [gradients]
    if len(listed) != len(inputs):
        expected = ", ".join(_describe(each) for each in inputs)
        raise UserError(f"{what} returned {len(listed)} gradients for {len(inputs)} inputs. Expected: {expected}.")
    return [
        _check_gradient(what, gradient, tensor, f"input {position} of {len(inputs)}")
        for position, (gradient, tensor) in enumerate(zip(listed, inputs, strict=True), start=1)
    ]


def _check_gradient(what: str, gradient: Any, tensor: tf.Tensor, which: str) -> tf.Tensor | None:
    if not is_differentiable(tensor):
        if gradient is not None:
            raise UserError(f"{what} returned a gradient for {which}, {_describe(tensor)}. Expected None for it.")
        return None
    if gradient is None:
        raise UserError(
            f"{what} returned None for {which}. Expected a gradient, {_describe(tensor)}: tf.zeros_like(...) where it "
            "is 0; a tensor that needs none belongs to constants."
        )
    gradient = tf.convert_to_tensor(gradient)
    if gradient.dtype != tensor.dtype or not gradient.shape.is_compatible_with(tensor.shape):
        raise UserError(
            f"{what} returned {_describe(gradient)} for {which}. Expected {_describe(tensor)}, as the input is: "
            "tf.cast it, sum over what forward broadcast, and broadcast what it summed."
        )
    if gradient.shape.is_fully_defined() and tensor.shape.is_fully_defined():
        return gradient
    message = f"{what} returned another shape than that of {which}."
    with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(gradient), tf.shape(tensor), message)]):
        return tf.ensure_shape(gradient, tensor.shape)


REMEDY = "Expected it among the inputs, where it gets a gradient, or among the constants"


@contextmanager
def _watch_declared(what: str, declared: Sequence[tf.Tensor]) -> Iterator[None]:
    """Raise an error if the block uses undeclared trainable variables or float tensors of the outer graph."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = len(graph.get_operations()) if graph is not None else 0
    with tf.GradientTape() as tape:  # records every trainable variable that is read
        yield
    if variables := sorted(variable.name for variable in tape.watched_variables()):
        raise UserError(f"{what} reads the trainable variable {variables[0]}, which gets no gradient. {REMEDY}.")
    if graph is not None and (tensor := _undeclared(graph, before, declared)) is not None:
        raise UserError(f"{what} uses the tensor {tensor.name}, {_describe(tensor)}, of the outer graph. {REMEDY}.")


def _undeclared(graph: tf.Graph, before: int, declared: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Return an undeclared float tensor that the ops after the first `before` ones use; None if there is none."""
    created = set(graph.get_operations()[before:])
    known = {id(each) for tensor in declared for each in origins(tensor)}
    for operation in created:
        captured = operation.type == "Placeholder"
        for tensor in operation.outputs if captured else operation.inputs:
            if (captured or tensor.op not in created) and not any(id(each) in known for each in origins(tensor)):
                origin = origins(tensor)[-1]
                in_graph = isinstance(getattr(origin, "graph", None), tf.Graph)  # an eager tensor is a constant
                if in_graph and is_differentiable(origin) and origin.op.type not in ("Const", "StopGradient"):
                    return origin
    return None


def _run_numpy(
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    output: tf.TensorSpec | Sequence[tf.TensorSpec],
    name: str,
) -> Any:
    """Return function(*arrays) as tensors of the declared shapes and dtypes, without a gradient.

    `tf.numpy_function` alone loses the shapes, allows an eager call to return another dtype than declared, and shares
    memory: a function that reuses one array for its results would change those it returned before. Here the function
    gets read-only arrays, and its results are copied.
    """
    several = not isinstance(output, tf.TensorSpec)
    specs: list[Any] = list(output) if isinstance(output, list | tuple) else [output]
    if not specs or not all(isinstance(spec, tf.TensorSpec) and is_differentiable(spec) for spec in specs):
        raise UserError(
            f"'{name}' received numpy_output={output!r}. Expected a float tf.TensorSpec(shape, dtype), or several."
        )

    def call(*arrays: np.ndarray) -> list[np.ndarray]:
        views = [np.asarray(array).view() for array in arrays]
        for view in views:
            view.flags.writeable = False
        returned = function(*views)
        listed = list(returned) if several and isinstance(returned, list | tuple) else [returned]
        if len(listed) != len(specs):
            raise UserError(f"The NumPy forward of '{name}' returned {len(listed)} arrays. Expected {len(specs)}.")
        return [_check_array(each, spec, name) for each, spec in zip(listed, specs, strict=True)]

    tensors = tf.numpy_function(call, list(inputs), [spec.dtype for spec in specs], name="numpy_forward")
    tensors = [tensors] if tf.is_tensor(tensors) else tensors  # eagerly, a list of one tensor is not a tensor
    shaped = tuple(tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(tensors, specs, strict=True))
    return shaped if several else shaped[0]


def _check_array(value: Any, spec: tf.TensorSpec, name: str) -> np.ndarray:
    if tf.is_tensor(value) or not isinstance(value, np.ndarray | np.generic):
        raise UserError(f"'{name}' returned a {type(value).__name__}. Expected a NumPy array, {_describe(spec)}.")
    array = np.asarray(value)
    found = tf.TensorSpec(array.shape, array.dtype)
    if found.dtype != spec.dtype or not found.shape.is_compatible_with(spec.shape):
        raise UserError(
            f"The NumPy forward of '{name}' returned {_describe(found)}. Expected {_describe(spec)}, as declared in "
            "numpy_output: return that, with .astype where the dtype differs, or declare the other."
        )
    return array.copy()
