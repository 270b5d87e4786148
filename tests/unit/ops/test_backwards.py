"""The catalogue of named backward passes, and how one is put on a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import UserError
from trainer.ops.backward import Backward, modify_gradients, with_backward
from trainer.ops.backwards import (
    BACKWARDS,
    clip,
    guided_relu,
    hard_tanh_through,
    identity,
    reverse,
    round_through,
    scale,
)
from trainer.ops.overridden import OVERRIDES

X = np.array([-2.0, -1.0, -0.25, 0.0, 0.5, 1.0, 3.0], np.float32)
UPSTREAM = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 7.0], np.float32)


def gradient_of(function: Callable[[tf.Tensor], Any], *, jit: bool = False, dtype: str = "float32") -> np.ndarray:
    def traced(x: tf.Tensor) -> tf.Tensor:
        return tf.gradients(function(x), x, grad_ys=tf.constant(UPSTREAM, dtype))[0]

    found = tf.function(traced, autograph=False, jit_compile=jit)(tf.constant(X, dtype))
    assert found.dtype == tf.as_dtype(dtype)
    return tf.cast(found, tf.float32).numpy()


FORMULAS: dict[str, tuple[Backward, Callable[[tf.Tensor], tf.Tensor], Any]] = {
    "identity": (identity(), tf.floor, UPSTREAM),
    "round_through": (round_through(), tf.round, UPSTREAM),
    "hard_tanh_through": (hard_tanh_through(), tf.sign, [0, -2, 3, 4, -5, 6, 0]),
    "hard_tanh_through, limit": (hard_tanh_through(limit=0.25), tf.sign, [0, 0, 3, 4, 0, 0, 0]),
    "guided_relu": (guided_relu(), tf.nn.relu, [0, 0, 0, 0, 0, 6, 7]),
    "clip": (clip(limit=2.0), lambda x: 3.0 * x, [2, -2, 2, 2, -2, 2, 2]),
    "clip, one": (clip(), lambda x: 0.25 * x, [0.25, -0.5, 0.75, 1, -1, 1, 1]),
    "reverse": (reverse(), lambda x: 3.0 * x, -3.0 * UPSTREAM),
    "reverse, factor": (reverse(factor=0.5), lambda x: 3.0 * x, -1.5 * UPSTREAM),
    "scale": (scale(factor=0.5), lambda x: 3.0 * x, 1.5 * UPSTREAM),
}


@pytest.mark.parametrize("jit", [False, True], ids=["function", "xla"])
@pytest.mark.parametrize("case", FORMULAS)
def test_forward_stays_and_the_gradient_follows_the_formula(case: str, jit: bool) -> None:
    backward, forward, expected = FORMULAS[case]
    assert backward.name == case.partition(",")[0]
    np.testing.assert_array_equal(with_backward(forward, backward, [tf.constant(X)]), forward(tf.constant(X)))
    np.testing.assert_allclose(gradient_of(lambda x: with_backward(forward, backward, [x]), jit=jit), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("case", FORMULAS)
def test_the_dtype_stays(case: str, dtype: str) -> None:
    backward, forward, expected = FORMULAS[case]
    found = gradient_of(lambda x: with_backward(lambda y: tf.cast(forward(y), dtype), backward, [x]), dtype=dtype)
    np.testing.assert_allclose(found, expected)


def test_the_catalogue_has_seven_by_their_names() -> None:
    assert sorted(BACKWARDS) == [
        *("clip", "guided_relu", "hard_tanh_through", "identity", "reverse", "round_through", "scale")
    ]
    for name, make in BACKWARDS.items():
        assert make().name == name
        assert make.__doc__


@pytest.mark.parametrize("name", [name for name, make in BACKWARDS.items() if make().surrogate is not None])
def test_the_gradient_is_that_of_the_declared_surrogate(name: str) -> None:
    backward = BACKWARDS[name]()
    found = gradient_of(lambda x: with_backward(tf.round, backward, [x]))
    np.testing.assert_array_equal(found, gradient_of(backward.surrogate))


def test_those_without_a_surrogate_change_the_gradient_on_purpose() -> None:
    assert {name for name, make in BACKWARDS.items() if make().surrogate is None} == {
        *("clip", "guided_relu", "reverse", "scale")
    }


def test_a_factor_may_be_a_tensor_of_the_graph() -> None:
    @tf.function(autograph=False)
    def traced(x: tf.Tensor, step: tf.Tensor) -> list[tf.Tensor]:
        factor = tf.cast(step, tf.float32) / 4.0
        return [tf.gradients(with_backward(tf.identity, make(factor=factor), [x]), x)[0] for make in (reverse, scale)]

    reversed_, scaled = traced(tf.constant(X), tf.constant(3))
    np.testing.assert_array_equal(reversed_, np.full_like(X, -0.75))
    np.testing.assert_array_equal(scaled, np.full_like(X, 0.75))


def test_gradients_of_several_inputs_are_modified_and_integers_pass() -> None:
    @tf.function(autograph=False)
    def traced(a: tf.Tensor, b: tf.Tensor) -> tuple[Any, Any]:
        rows = tf.constant([1, 0])
        y = with_backward(lambda a, rows, b: tf.gather(a, rows) * b, reverse(factor=2.0), [a, rows, b])
        return y, tf.gradients(y, [a, b])

    y, (to_a, to_b) = traced(tf.constant([1.0, 3.0]), tf.constant([5.0, 7.0]))
    np.testing.assert_array_equal(y, [15, 7])
    np.testing.assert_array_equal(to_a, [-14, -10])
    np.testing.assert_array_equal(to_b, [-6, -2])


def test_what_comes_after_and_variables_inside_keep_their_gradients() -> None:
    weight = tf.Variable(3.0)
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = with_backward(lambda x: weight * x, reverse(), [x])
    to_x, to_weight = tape.gradient(y, [x, weight])
    assert (float(to_x), float(to_weight)) == (-3.0, 2.0)


def test_a_forward_of_numpy_takes_a_backward_that_replaces_and_refuses_one_that_modifies() -> None:
    spec = tf.TensorSpec(X.shape, tf.float32)
    found = gradient_of(lambda x: with_backward(np.sign, hard_tanh_through(), [x], numpy_output=spec))
    np.testing.assert_array_equal(found, [0, -2, 3, 4, -5, 6, 0])
    with pytest.raises(UserError, match="'clip' modifies the gradients .* NumPy has none"):
        with_backward(np.sign, clip(), [tf.constant(X)], numpy_output=spec)


def test_a_layer_that_changes_the_shape_takes_no_identity() -> None:
    with pytest.raises(UserError, match=r"'identity' returned float32 \[\] for input 1 of 1. Expected float32 \[7\]"):
        tf.function(lambda x: tf.gradients(with_backward(tf.reduce_sum, identity(), [x]), x), autograph=False)(
            tf.constant(X)
        )


def test_an_own_backward_gets_what_it_needs_and_no_more() -> None:
    seen = {}

    def function(upstream: Any, **given: Any) -> Any:
        seen.update(given)
        return upstream

    for needs in ((), ("inputs",), ("outputs",), ("outputs", "inputs")):
        seen.clear()
        gradient_of(lambda x, needs=needs: with_backward(tf.identity, Backward("own", function, needs), [x]))
        assert sorted(seen) == sorted(needs)
        assert isinstance(seen.get("inputs", ()), tuple)


def test_needs_that_there_are_not_are_refused() -> None:
    with pytest.raises(UserError, match=r"'own' needs \['weights'\]. Expected some of \['inputs', 'outputs'\]"):
        Backward("own", tf.identity, ("weights",))
    with pytest.raises(UserError, match=r"'own' needs \['outputs'\]"):
        Backward("own", tf.identity, ("outputs",), modifies=True)
    with pytest.raises(UserError, match="'own' modifies gradients and declares a surrogate"):
        Backward("own", tf.identity, modifies=True, surrogate=tf.identity)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: clip(limit=0.0), "Invalid limit 0.0 for clip. Expected a number above 0"),
        (lambda: clip(limit=True), "Invalid limit True"),
        (lambda: hard_tanh_through(limit=float("inf")), "Invalid limit inf for hard_tanh_through"),
        (lambda: reverse(factor="0.5"), "Invalid factor '0.5' for reverse"),
        (lambda: scale(factor=float("nan")), "Invalid factor nan for scale"),
        (lambda: scale(factor=tf.ones([2])), "factor of float32 .*Expected a float scalar"),
        (lambda: scale(factor=tf.constant(2)), "factor of int32 .*Expected a float scalar"),
    ],
)
def test_wrong_arguments_are_one_line(make: Callable[[], Backward], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_second_derivatives_are_those_of_linear_backwards_and_refused_elsewhere() -> None:
    def second(backward: Backward, forward: Callable[[tf.Tensor], tf.Tensor]) -> np.ndarray:
        def traced(x: tf.Tensor) -> tf.Tensor:
            return tf.gradients(tf.gradients(with_backward(forward, backward, [x]), x)[0], x)[0]

        return tf.function(traced, autograph=False)(tf.constant(X)).numpy()

    # g = -2 f'(x'), where x' = x has a gradient of -2 g itself: 4 f''.
    np.testing.assert_allclose(second(reverse(factor=2.0), lambda x: x**3), 4.0 * 6.0 * X)
    for backward in (guided_relu(), hard_tanh_through()):
        with pytest.raises(UserError, match=f"second derivative of '{backward.name}' was asked for"):
            second(backward, lambda x: x**3)


def test_what_was_overridden_is_recorded_under_the_name_that_was_given() -> None:
    def traced(x: tf.Tensor) -> tf.Tensor:
        (y,) = modify_gradients(reverse(), [x], name="domain head")
        return with_backward(tf.round, round_through(), [y])

    graph = tf.function(traced, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph
    first, second = graph.get_collection(OVERRIDES)
    assert (first.name, first.surrogate) == ("domain head", None)
    assert (second.name, second.surrogate) == ("round_through", tf.identity)
