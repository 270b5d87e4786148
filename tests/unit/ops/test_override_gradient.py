"""A forward pass with a backward pass of one's own: gradients, and the checks of what is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import WAYS, X, cube, cube_of_numpy, with_gradients, with_tape
from trainer.errors import UserError
from trainer.ops.overridden import OVERRIDES
from trainer.ops.override_gradient import override_gradient


@pytest.mark.parametrize("way", WAYS)
def test_the_forward_is_forwards_and_the_gradient_backwards(way: str) -> None:
    y, gradient = WAYS[way](cube, X)
    np.testing.assert_allclose(y, X**3, rtol=1e-6)
    np.testing.assert_allclose(gradient, 5.0 * X, rtol=1e-6)


@pytest.mark.parametrize("way", [way for way in WAYS if "xla" not in way])
def test_a_forward_of_numpy_gives_the_same_with_its_shape_and_dtype(way: str) -> None:
    y, gradient = WAYS[way](cube_of_numpy, X)
    assert y.dtype == tf.float32
    assert y.shape == X.shape
    np.testing.assert_allclose(y, X**3, rtol=1e-6)
    np.testing.assert_allclose(gradient, 5.0 * X, rtol=1e-6)


@pytest.mark.parametrize("op", [cube, cube_of_numpy])
def test_the_gradient_goes_through_a_traced_loop(op: Callable[..., Any]) -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda step, _: step < 2, lambda step, y: (step + 1, op(y)), [0, x])[1]

    y, gradient = with_gradients(loop, X)
    np.testing.assert_allclose(y, X**9, rtol=1e-5)
    np.testing.assert_allclose(gradient, 5.0 * X**3 * 5.0 * X, rtol=1e-5)


def test_the_gradient_is_taken_inside_a_traced_loop() -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        def body(step: int, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return step + 1, x - 0.1 * tf.gradients(cube(x), x)[0]

        return tf.while_loop(lambda step, _: step < 3, body, [0, x])[1]

    np.testing.assert_allclose(tf.function(loop, autograph=False)(tf.constant(X)), X * 0.5**3, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_dtypes_stay_what_they_are(dtype: str) -> None:
    for op in (cube, cube_of_numpy):
        y, gradient = with_gradients(op, tf.cast(X, dtype))
        assert y.dtype == gradient.dtype == tf.as_dtype(dtype)
        np.testing.assert_allclose(tf.cast(gradient, tf.float32), 5.0 * X, rtol=1e-2)


def test_every_input_gets_its_own_gradient_and_integers_none() -> None:
    def backward(upstream: Any, inputs: Any, outputs: Any) -> list[Any]:
        rows = inputs[1]
        return [tf.scatter_nd(rows[:, None], upstream, [2, 3]), None, 7.0 * tf.reduce_sum(upstream, axis=0)]

    def gather(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        rows = tf.constant([1, 1])
        return override_gradient(lambda v, r, b: tf.gather(v, r) + b, backward, [values, rows, bias])

    values, bias = tf.constant(X), tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch([values, bias])
        y = gather(values, bias)
    to_values, to_bias = tape.gradient(y, [values, bias])
    np.testing.assert_allclose(y, X[[1, 1]] + bias.numpy())
    np.testing.assert_array_equal(to_values, [[0, 0, 0], [2, 2, 2]])
    np.testing.assert_array_equal(to_bias, [14, 14, 14])
    traced = tf.function(lambda v, b: tf.gradients(gather(v, b), [v, b]), autograph=False)(values, bias)
    np.testing.assert_array_equal(traced[0], to_values)
    np.testing.assert_array_equal(traced[1], to_bias)


def test_several_outputs_have_several_upstream_gradients_and_an_unused_one_is_zero() -> None:
    def both(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return override_gradient(
            lambda x: (x + 1.0, 2.0 * x),
            lambda upstream, inputs, outputs: 3.0 * upstream[0] + 10.0 * upstream[1],
            [x],
        )

    for way in (with_tape, with_gradients):
        _, gradient = way(lambda x: 2.0 * both(x)[0] + both(x)[1], X)
        np.testing.assert_array_equal(gradient, np.full_like(X, 16.0))
        _, gradient = way(lambda x: both(x)[1], X)
        np.testing.assert_array_equal(gradient, np.full_like(X, 10.0))


def test_several_arrays_of_numpy_are_several_tensors() -> None:
    specs = [tf.TensorSpec([2], tf.float32), tf.TensorSpec([None, 3], tf.float32)]
    first, second = override_gradient(
        lambda x: (x.sum(axis=1), x[:1]),
        lambda upstream, inputs, outputs: upstream[0][:, None] + tf.pad(upstream[1], [[0, 1], [0, 0]]),
        [tf.constant(X)],
        numpy_output=specs,
    )
    np.testing.assert_allclose(first, X.sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(second, X[:1])


def test_backward_sees_upstream_inputs_and_outputs() -> None:
    def backward(upstream: Any, inputs: Any, outputs: Any) -> Any:
        assert isinstance(inputs, tuple)
        return upstream * outputs + inputs[0]

    for way in (with_tape, with_gradients):
        _, gradient = way(lambda x: 2.0 * override_gradient(lambda x: x * x, backward, [x]), X)
        np.testing.assert_allclose(gradient, 2.0 * X**2 + X, rtol=1e-6)


def test_an_upstream_of_slices_arrives_whole() -> None:
    _, gradient = with_gradients(lambda x: tf.gather(cube(x), [1]), X)
    np.testing.assert_allclose(gradient, [[0, 0, 0], 5.0 * X[1]])


def test_a_variable_among_the_inputs_gets_its_gradient() -> None:
    variable, weight = tf.Variable(X), keras.Variable(X)
    for given, source in ((variable, variable), (weight, weight.value)):
        with tf.GradientTape() as tape:
            y = cube(given)
        np.testing.assert_allclose(tape.gradient(y, source), 5.0 * X)


# What is returned is checked.

BAD_GRADIENTS = {
    "too few": (lambda u, i, o: [u], "returned 1 gradient for 2 inputs"),
    "too few, bare": (lambda u, i, o: u, "returned 1 gradient for 2 inputs"),
    "too many": (lambda u, i, o: [u, u, u], "returned 3 gradients for 2 inputs"),
    "none": (lambda u, i, o: [u, None], "returned None for input 2 of 2"),
    "rank": (lambda u, i, o: [tf.reduce_sum(u), u], r"returned float32 \[\] for input 1 of 2"),
    "shape": (lambda u, i, o: [u, u[:, :1]], r"returned float32 \[2, 1\] for input 2 of 2"),
    "dtype": (lambda u, i, o: [u, tf.cast(u, tf.float64)], "returned float64"),
}


@pytest.mark.parametrize("fault", BAD_GRADIENTS)
@pytest.mark.parametrize("way", ["tape", "tf.gradients", "function in a tape", "xla"])
def test_a_wrong_gradient_is_one_line_that_says_what_was_expected(fault: str, way: str) -> None:
    backward, received = BAD_GRADIENTS[fault]

    def product(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(lambda a, b: a * b, backward, [x, x], name="product")

    with pytest.raises(UserError, match=f"The backward pass of 'product' {received}.*Expected") as caught:
        WAYS[way](product, X)
    assert "\n" not in str(caught.value)
    assert "float32 [2, 3]" in str(caught.value)


def test_a_gradient_for_an_integer_is_refused() -> None:
    def shifted(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(lambda x, n: x + 1.0, lambda u, i, o: [u, tf.zeros([])], [x, tf.constant(3)])

    with pytest.raises(UserError, match="a gradient for input 2 of 2, int32"):
        with_gradients(shifted, X)


def test_a_shape_that_only_the_run_knows_is_checked_there() -> None:
    def mean(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(
            lambda x: 2.0 * x, lambda u, i, o: tf.reduce_mean(u, axis=0, keepdims=True), [x], name="mean"
        )

    def traced(x: tf.Tensor) -> tf.Tensor:
        return tf.gradients(mean(x), x)[0]

    function = tf.function(traced, autograph=False, input_signature=[tf.TensorSpec([None, 3])])
    assert function(X[:1]).shape == (1, 3)  # there, one row is right
    with pytest.raises(tf.errors.InvalidArgumentError, match="backward pass of .*mean.* returned another shape"):
        function(X)


@pytest.mark.parametrize("way", ["tape", "tf.gradients"])
def test_a_forward_that_returns_no_float_tensor_is_refused(way: str) -> None:
    def returning(value: Callable[[tf.Tensor], Any]) -> Callable[[tf.Tensor], Any]:
        return lambda x: override_gradient(value, lambda u, i, o: u, [x], name="mine")

    for value, message in (
        (lambda x: tf.cast(x, tf.int32), r"'mine' returned int32 \[2, 3\]"),
        (lambda x: None, "'mine' returned a NoneType"),
        (lambda x: X, "'mine' returned a ndarray.*numpy_output"),
        (lambda x: (), "'mine' returned nothing"),
    ):
        with pytest.raises(UserError, match=message):
            WAYS[way](returning(value), X)


def test_a_forward_of_numpy_that_is_not_declared_gets_the_remedy() -> None:
    with pytest.raises(UserError, match="cannot work on tensors.*numpy_output"):
        with_gradients(lambda x: override_gradient(lambda x: np.multiply(x, 2), lambda u, i, o: u, [x]), X)


def test_nothing_to_differentiate_is_refused() -> None:
    with pytest.raises(UserError, match="no float input"):
        override_gradient(lambda n: tf.cast(n, tf.float32), lambda u, i, o: [None], [tf.constant(3)])


# What no gradient would reach is refused.


@pytest.mark.parametrize("way", ["tape", "tf.gradients", "function in a tape"])
def test_a_trainable_variable_that_was_not_given_is_refused(way: str) -> None:
    weight = tf.Variable(2.0, name="weight")
    forward = (lambda x: override_gradient(lambda x: x * weight, lambda u, i, o: u, [x], name="mine"), "forward")
    backward = (lambda x: override_gradient(lambda x: x, lambda u, i, o: u * weight, [x], name="mine"), "backward")
    for function, role in (forward, backward):
        with pytest.raises(UserError, match=f"The {role} pass of 'mine' reads the trainable variable weight:0"):
            WAYS[way](function, X)


def test_a_variable_that_is_not_trained_may_be_read() -> None:
    factor = tf.Variable(2.0, trainable=False)
    for way in (with_tape, with_gradients):
        y, gradient = way(lambda x: override_gradient(lambda x: x * factor, lambda u, i, o: u * factor, [x]), X)
        np.testing.assert_array_equal(y, 2.0 * X)
        np.testing.assert_array_equal(gradient, np.full_like(X, 2.0))


def test_a_tensor_from_outside_is_refused_unless_it_is_declared_or_has_no_gradient() -> None:
    def using(constants: Callable[[tf.Tensor], list[tf.Tensor]], outer: Callable[[tf.Tensor], tf.Tensor]) -> Any:
        def function(x: tf.Tensor) -> tf.Tensor:
            other = outer(x)
            return override_gradient(lambda x: x * other, lambda u, i, o: u, [x], constants=constants(other))

        return function

    def triple(x: tf.Tensor) -> tf.Tensor:
        return 3.0 * x

    with pytest.raises(UserError, match=r"uses the tensor mul:0, float32 \[2, 3\], from outside"):
        with_gradients(using(lambda other: [], triple), X)
    with_gradients(using(lambda other: [other], triple), X)
    with_gradients(using(lambda other: [], lambda x: tf.stop_gradient(3.0 * x)), X)
    with_gradients(using(lambda other: [], lambda x: tf.constant(3.0)), X)
    with_tape(using(lambda other: [], triple), X)  # eagerly it has its value


def test_a_tensor_from_outside_is_found_in_backward_and_in_a_loop() -> None:
    def backward_uses(x: tf.Tensor) -> tf.Tensor:
        other = 3.0 * x
        return override_gradient(lambda x: x + 1.0, lambda u, i, o: u * other, [x], name="mine")

    with pytest.raises(UserError, match="The backward pass of 'mine' uses the tensor mul:0"):
        with_gradients(backward_uses, X)

    def in_loop(x: tf.Tensor, declared: bool) -> tf.Tensor:
        other = 3.0 * x

        def body(step: int, y: tf.Tensor) -> tuple[int, tf.Tensor]:
            constants = [other] if declared else []
            return step + 1, override_gradient(lambda y: y + other, lambda u, i, o: u, [y], constants=constants)

        return tf.while_loop(lambda step, _: step < 2, body, [0, x])[1]

    with pytest.raises(UserError, match="uses the tensor mul:0"):
        with_gradients(lambda x: in_loop(x, declared=False), X)
    y, gradient = with_gradients(lambda x: in_loop(x, declared=True), X)
    np.testing.assert_allclose(y, 7.0 * X)
    np.testing.assert_array_equal(gradient, np.ones_like(X))


def test_a_keras_weight_that_stands_for_a_tensor_is_found() -> None:
    weight = keras.Variable(np.float32([2.0, 3.0, 4.0]), name="weight")

    def traced(x: tf.Tensor) -> tf.Tensor:
        value = 1.0 * tf.convert_to_tensor(weight.value)
        with keras.StatelessScope(state_mapping=[(weight, value)]):
            return override_gradient(lambda x: x * weight, lambda u, i, o: u, [x])

    with pytest.raises(UserError, match="uses the tensor .*from outside"):
        tf.function(traced, autograph=False)(tf.constant(X))


def test_every_override_of_a_traced_function_is_recorded_with_its_surrogate() -> None:
    def traced(x: tf.Tensor) -> tf.Tensor:
        y = cube(cube(x, name="exact"), surrogate=tf.identity, name="through")
        records = tf.compat.v1.get_collection(OVERRIDES)
        assert [(record.name, record.surrogate) for record in records] == [
            ("exact", "forward"),
            ("through", tf.identity),
        ]
        assert records[0].inputs[0] is x
        assert records[1].inputs[0] is records[0].outputs[0]
        assert records[1].outputs[0] is y
        return tf.gradients(y, x)[0]  # its own parts are not overrides of the user's

    graph = tf.function(traced, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph
    assert len(graph.get_collection(OVERRIDES)) == 2
    with pytest.raises(UserError, match="Unknown surrogate 'forwards'"):
        cube(tf.constant(X), surrogate="forwards")
