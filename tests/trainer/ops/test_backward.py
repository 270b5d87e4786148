"""The catalogue of named backward passes, and how one is applied to a forward pass."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.ops.backward import (
    BACKWARDS,
    Backward,
    clip,
    guided_relu,
    hard_tanh_through,
    identity,
    modify_gradients,
    reverse,
    round_through,
    scale,
)
from hookline.trainer.ops.override_gradient import override_gradient
from tests.support.refusals import assert_refused

X = np.array([-2.0, -1.0, -0.25, 0.0, 0.5, 1.0, 3.0], np.float32)
UPSTREAM = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 7.0], np.float32)


def with_backward(forward, backward, inputs, **options):
    if not backward.modifies:
        declared = {"constants": backward.constants, "second_backward": backward.second_backward}
        declared |= {"name": backward.name, "surrogate": backward.surrogate}
        return override_gradient(forward, backward, inputs, **declared, **options)
    return forward(*modify_gradients(backward, inputs, **options))


def gradients_of(*functions, jit=False, dtype="float32"):
    def traced(x):
        return [tf.gradients(function(x), x, grad_ys=tf.constant(UPSTREAM, dtype))[0] for function in functions]

    found = tf.function(traced, autograph=False, jit_compile=jit)(tf.constant(X, dtype))
    assert {each.dtype for each in found} == {tf.as_dtype(dtype)}
    return [tf.cast(each, tf.float32).numpy() for each in found]


FORMULAS = {
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


@pytest.mark.parametrize(("jit", "dtype"), [(False, "float32"), (True, "bfloat16")], ids=["function", "xla"])
def test_forward_is_unchanged_and_gradient_follows_the_formula(jit, dtype):
    def function_of(backward, forward):
        return lambda x: with_backward(forward, backward, [x])

    for case, (backward, forward, _) in FORMULAS.items():
        assert backward.name == case.partition(",")[0]
        np.testing.assert_array_equal(function_of(backward, forward)(tf.constant(X)), forward(tf.constant(X)))
    functions = [function_of(backward, forward) for backward, forward, _ in FORMULAS.values()]
    found = gradients_of(*functions, jit=jit, dtype=dtype)
    for case, gradient in zip(FORMULAS, found, strict=True):
        np.testing.assert_allclose(gradient, FORMULAS[case][2], err_msg=case)


def test_only_linear_backwards_have_second_derivatives():
    def second(backward, forward):
        def traced(x):
            return tf.gradients(tf.gradients(with_backward(forward, backward, [x]), x)[0], x)[0]

        return tf.function(traced, autograph=False)(tf.constant(X)).numpy()

    # g = -2 f'(x'), where x' = x has a gradient of -2 g itself: 4 f''.
    np.testing.assert_allclose(second(reverse(factor=2.0), lambda x: x**3), 4.0 * 6.0 * X)
    for backward in (guided_relu(), hard_tanh_through()):
        assert_refused(f"second derivative of '{backward.name}' was requested", second, backward, lambda x: x**3)


def test_surrogates_have_the_gradient_of_their_backward_pass():
    surrogates = {name: make().surrogate for name, make in BACKWARDS.items()}
    changed = {name for name, surrogate in surrogates.items() if surrogate is None}
    assert changed == {"clip", "guided_relu", "reverse", "scale"}
    assert surrogates.keys() == {case.partition(",")[0] for case in FORMULAS}
    for name in surrogates.keys() - changed:
        own = lambda x, name=name: with_backward(tf.round, BACKWARDS[name](), [x])  # noqa: E731
        np.testing.assert_array_equal(*gradients_of(own, surrogates[name]))


def test_reverse_handles_several_inputs_variables_and_a_graph_factor():
    weight = tf.Variable(2.0)

    @tf.function(autograph=False)
    def traced(a, b, step):
        rows, factor = tf.constant([1, 0]), tf.cast(step, tf.float32) / 4.0
        y = with_backward(lambda a, rows, b: weight * tf.gather(a, rows) * b, reverse(factor=factor), [a, rows, b])
        return y, tf.gradients(y, [a, b, weight])

    y, (to_a, to_b, to_weight) = traced(tf.constant([1.0, 3.0]), tf.constant([5.0, 7.0]), tf.constant(4))
    np.testing.assert_array_equal(y, [30, 14])
    np.testing.assert_array_equal(to_a, [-14, -10])
    np.testing.assert_array_equal(to_b, [-6, -2])
    assert float(to_weight) == 22.0


def test_backward_receives_what_it_needs_and_invalid_use_is_refused():
    seen = {}

    def function(upstream, **given):
        seen.update(given)
        return upstream

    for needs in ((), ("outputs",), ("outputs", "inputs")):
        seen.clear()
        gradients_of(lambda x, needs=needs: with_backward(tf.identity, Backward("own", function, needs), [x]))
        assert sorted(seen) == sorted(needs)
    spec = tf.TensorSpec(X.shape, tf.float32)
    (found,) = gradients_of(lambda x: with_backward(np.sign, hard_tanh_through(), [x], numpy_output=spec))
    np.testing.assert_array_equal(found, [0, -2, 3, 4, -5, 6, 0])
    for wrong, match in (
        (lambda: gradients_of(lambda x: x * with_backward(tf.reduce_sum, identity(), [x])), "'identity'"),
        (lambda: clip(limit=0.0), "limit of clip=0.0"),
        (lambda: scale(factor=float("nan")), "factor of scale=nan"),
    ):
        assert_refused(match, wrong)
