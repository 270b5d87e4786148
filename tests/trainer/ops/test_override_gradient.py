"""A forward pass with a custom backward pass, for every way to take gradients; what the functions may return."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.ops.override_gradient import override_gradient
from tests.support.refusals import assert_refused

X = np.array([[-1.5, 0.25, 2.0], [0.5, -0.75, 3.0]], np.float32)


def cube(x, **options):
    """Return x^3 with the gradient 5 x, which no other function has, so that a test recognizes it."""
    return override_gradient(
        lambda x: x**3, lambda upstream, inputs, outputs: 5.0 * inputs[0] * upstream, [x], **options
    )


def cube_of_numpy(x, **options):
    return cube(x, numpy_output=tf.TensorSpec(x.shape, x.dtype), **options)


def with_tape(function, x, *, persistent=False):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape(persistent=persistent) as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)


def with_gradients(function, x, *, jit=False):
    def traced(x):
        y = function(x)
        return y, tf.gradients(y, x)[0]

    return tf.function(traced, autograph=False, jit_compile=jit)(tf.constant(x))


WAYS = {
    "tape": with_tape,
    "persistent tape": lambda function, x: with_tape(function, x, persistent=True),
    "tf.gradients": with_gradients,
    "tape in a function": lambda function, x: tf.function(lambda x: with_tape(function, x), autograph=False)(x),
    "function in a tape": lambda function, x: with_tape(tf.function(function, autograph=False), x),
    "xla": lambda function, x: with_gradients(function, x, jit=True),
    "xla in a tape": lambda function, x: with_tape(tf.function(function, autograph=False, jit_compile=True), x),
}


@pytest.mark.parametrize("way", WAYS)
def test_value_comes_from_forward_and_gradient_from_backward(way):
    for op in (cube, cube_of_numpy)[: 1 if "xla" in way else 2]:
        y, gradient = WAYS[way](op, X)
        assert (y.dtype, y.shape) == (tf.float32, X.shape)
        np.testing.assert_allclose(y, X**3, rtol=1e-6)
        np.testing.assert_allclose(gradient, 5.0 * X, rtol=1e-6)


@pytest.mark.parametrize("op", [cube, cube_of_numpy])
def test_half_precision_is_kept_and_sparse_upstream_arrives_dense(op):
    y, gradient = with_gradients(op, tf.cast(X, "bfloat16"))
    assert y.dtype == gradient.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), 5.0 * X, rtol=1e-2)
    _, gradient = with_gradients(lambda x: tf.gather(op(x), [1]), X)
    np.testing.assert_allclose(gradient, [[0, 0, 0], 5.0 * X[1]])


def test_every_float_input_gets_its_gradient_and_integers_get_none():
    def backward(upstream, inputs, outputs):
        rows = inputs[1]
        return [tf.scatter_nd(rows[:, None], upstream, [2, 3]), None, 7.0 * tf.reduce_sum(upstream, axis=0)]

    def gather(values, bias):
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


def test_several_outputs_have_upstream_gradients_and_unused_ones_get_zero():
    def both(x):
        return override_gradient(
            lambda x: (x + 1.0, 2.0 * x), lambda upstream, inputs, outputs: 3.0 * upstream[0] + 10.0 * upstream[1], [x]
        )

    factor = tf.Variable(2.0, trainable=False)  # may be read; backward also receives the outputs
    _, gradient = with_tape(lambda x: override_gradient(lambda x: x * factor, lambda u, i, o: u * factor * o, [x]), X)
    np.testing.assert_array_equal(gradient, 4.0 * X)
    for way in (with_tape, with_gradients):
        _, gradient = way(lambda x: 2.0 * both(x)[0] + both(x)[1], X)
        np.testing.assert_array_equal(gradient, np.full_like(X, 16.0))
        _, gradient = way(lambda x: both(x)[1], X)
        np.testing.assert_array_equal(gradient, np.full_like(X, 10.0))


def test_variable_input_gets_its_gradient():
    variable, weight = tf.Variable(X), keras.Variable(X)
    for given, source in ((variable, variable), (weight, weight.value)):
        with tf.GradientTape() as tape:
            y = cube(given)
        np.testing.assert_allclose(tape.gradient(y, source), 5.0 * X)


def product(backward, forward=tf.multiply):
    return lambda x: override_gradient(forward, backward, [x, x], name="mine")


def one(forward, backward=lambda u, i, o: u):
    return lambda x: override_gradient(forward, backward, [x], name="mine")


WEIGHT = tf.Variable(2.0, name="weight")
WRONG = {
    "too few": (product(lambda u, i, o: [u]), "returned 1 gradient.* for 2 input"),
    "none": (product(lambda u, i, o: [u, None]), "returned None for input 2"),
    "shape": (product(lambda u, i, o: [u, u[:, :1]]), r"\[2, 1\] for input 2"),
    "dtype": (product(lambda u, i, o: [u, tf.cast(u, tf.float64)]), "returned float64"),
    "integer forward": (one(lambda x: tf.cast(x, tf.int32)), "'mine' returned int32"),
    "array": (one(lambda x: X), "'mine' returned a ndarray.*numpy_output"),
    "variable in forward": (one(lambda x: x * WEIGHT), "forward pass of 'mine' reads .* weight"),
    "variable in backward": (one(lambda x: x, lambda u, i, o: u * WEIGHT), "backward pass of 'mine' reads .* weight"),
    "unknown surrogate": (lambda x: cube(x, surrogate="forwards"), "'forwards'"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_error_names_the_function_and_the_input(fault):
    function, match = WRONG[fault]
    for way in ("tape", "tf.gradients"):
        assert_refused(match, WAYS[way], function, X)


def test_shape_unknown_at_trace_time_is_checked_at_run_time():
    mean = one(lambda x: 2.0 * x, lambda u, i, o: tf.reduce_mean(u, axis=0, keepdims=True))
    spec = [tf.TensorSpec([None, 3])]
    function = tf.function(lambda x: tf.gradients(mean(x), x)[0], autograph=False, input_signature=spec)
    assert function(X[:1]).shape == (1, 3)  # with one row, the shape is correct
    with pytest.raises(tf.errors.InvalidArgumentError, match="backward pass of .*mine.* returned another shape"):
        function(X)
    n = tf.constant(3)
    with pytest.raises(UserError, match="input 2 of 2, int32"):
        with_gradients(lambda x: override_gradient(lambda x, n: x + 1.0, lambda u, i, o: [u, u], [x, n]), X)
    assert_refused("no float input", override_gradient, lambda n: tf.cast(n, tf.float32), lambda u, i, o: [None], [n])


def test_outer_tensor_is_refused_unless_declared():
    def using(outer, declared=False, backward=False):
        def function(x):
            other = outer(x)
            step = (lambda x: x, lambda u, i, o: u * other) if backward else (lambda x: x + other, lambda u, i, o: u)
            return override_gradient(*step, [x], constants=[other] if declared else [])

        return function

    def looped(x):
        inner = using(lambda _: 3.0 * x, declared=True)
        return tf.while_loop(lambda step, _: step < 2, lambda step, y: (step + 1, inner(y)), [0, x])[1]

    triple = lambda x: 3.0 * x  # noqa: E731
    for function in (using(triple), using(triple, backward=True)):
        assert_refused("uses the tensor mul:0.* of the outer graph", with_gradients, function, X)
    with_gradients(using(triple, declared=True), X)
    with_gradients(using(lambda x: tf.stop_gradient(3.0 * x)), X)
    with_tape(using(triple), X)  # an eager tensor has a value
    y, gradient = with_gradients(looped, X)
    np.testing.assert_allclose(y, 7.0 * X)
    np.testing.assert_array_equal(gradient, np.ones_like(X))


def test_reused_numpy_buffer_does_not_change_earlier_results():
    memory = np.zeros(64 + 16, np.float32)
    start = (-memory.ctypes.data % 64) // 4  # TensorFlow shares memory with this alignment
    array = memory[start : start + 64]

    def fill(x):
        array[:] = x
        return array

    @tf.function(autograph=False)
    def twice(x):
        spec = tf.TensorSpec([64], tf.float32)
        first = override_gradient(fill, lambda u, i, o: u, [x], numpy_output=spec)
        with tf.control_dependencies([first]):
            second = override_gradient(fill, lambda u, i, o: u, [x + 1.0], numpy_output=spec)
        with tf.control_dependencies([second]):
            return [tf.identity(first), second]

    first, second = twice(tf.zeros([64]))
    np.testing.assert_array_equal(first, np.zeros(64))
    np.testing.assert_array_equal(second, np.ones(64))


def test_invalid_array_is_refused_eagerly_and_in_a_graph():
    spec = tf.TensorSpec(X.shape, tf.float32)
    for forward, match in (
        (lambda x: x.astype(np.float64), "float64"),
        (lambda x: x[:1], r"\[1, 3\]"),
        (lambda x: x.tolist(), "list"),
        (lambda x: np.full(x.shape, None), "string"),
    ):
        wrong = lambda x, f=forward: override_gradient(f, lambda u, i, o: u, [x], numpy_output=spec, name="w")  # noqa: E731
        assert_refused(f"'w' returned .*{match}", wrong, tf.constant(X))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"UserError: .*'w' returned .*{match}"):
            tf.function(wrong, autograph=False)(tf.constant(X))
    with pytest.raises(UserError, match="1 arrays. Expected 2"):
        override_gradient(lambda x: x, lambda u, i, o: u[0], [tf.constant(X)], numpy_output=[spec, spec])
    with pytest.raises(UserError, match="numpy_output="):
        override_gradient(lambda x: x, lambda u, i, o: u, [tf.constant(X)], numpy_output=(2, 3))
    with pytest.raises(ValueError, match="read-only"):
        override_gradient(lambda x: x.fill(0), lambda u, i, o: u, [tf.constant(X)], numpy_output=spec)


def second_of(function, way):
    x = tf.constant(X)
    if way == "tf.gradients":

        def traced(x):
            return tf.gradients(tf.gradients(function(x), x)[0], x)[0]

        return tf.function(traced, autograph=False)(x)
    called = tf.function(function, autograph=False)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = called(x)
        gradient = inner.gradient(y, x)
    return outer.gradient(gradient, x)


SECONDS = ("tf.gradients", "function")


@pytest.mark.parametrize("way", SECONDS)
def test_backward_is_differentiated_if_declared(way):
    for op in (cube, cube_of_numpy):
        second = second_of(lambda x, op=op: op(x, second_backward="differentiate"), way)
        np.testing.assert_allclose(second, np.full_like(X, 5.0))

    def through(x):
        return override_gradient(tf.round, lambda u, i, o: u, [x], second_backward="differentiate")

    second = second_of(lambda x: through(x) * x, way)  # d/dx (round(x) + x) = 1 + 1
    np.testing.assert_array_equal(second, np.full_like(X, 2.0))

    def squared(x):
        return override_gradient(lambda x: x * x, lambda u, i, o: u * o, [x], second_backward="differentiate")

    # dy/dx = y, so the second derivative is dy/dx = y again, for upstream gradients of 1; and so is the third.
    np.testing.assert_allclose(second_of(squared, way), X**2, rtol=1e-6)
    once = lambda x: tf.gradients(squared(x), x)[0]  # noqa: E731
    np.testing.assert_allclose(second_of(once, "tf.gradients"), X**2, rtol=1e-6)


def test_second_backward_is_used():
    def second_backward(upstream, inputs, outputs):
        (above,), (given, x, y) = upstream, inputs
        assert len(outputs) == 1
        return [5.0 * x * above, 11.0 * given * above, tf.zeros_like(y)]

    second = second_of(lambda x: cube(x, second_backward=second_backward), "tf.gradients")
    np.testing.assert_array_equal(second, np.full_like(X, 11.0))


def gated(x):
    """Return sign(x) with a gated gradient, whose comparison must not be differentiated to an accidental zero."""
    gate = lambda u, i, o: tf.where(tf.abs(i[0]) <= 1.0, u, tf.zeros_like(u))  # noqa: E731
    return override_gradient(tf.sign, gate, [x], second_backward="differentiate", name="mine")


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (gated, "second derivative of 'mine'.*argument 2"),
        (lambda x: cube(x, name="mine"), "second derivative of 'mine' was requested"),
        (lambda x: cube_of_numpy(x, name="mine"), "second derivative of 'mine' was requested"),
        (lambda x: cube(x, second_backward=lambda u, i, o: u[0], name="mine"), "'mine' returned 1 gradient.* for 3"),
        (lambda x: cube(x, second_backward="diferentiate"), "'differentiate'"),
    ],
)
def test_undefined_second_derivative_is_refused(function, match):
    for way in SECONDS:
        assert_refused(match, second_of, function, way)
