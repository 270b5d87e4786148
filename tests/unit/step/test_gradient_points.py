"""Where a traced graph has gradients of its own: found once each, in the order of the graph, with their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.ops.override_gradient import override_gradient
from trainer.step.gradient_points import UNDECLARED, Point, find_points

OWN = "TestPointsOwn"


@tf.RegisterGradient(OWN)
def own(operation: tf.Operation, *upstream: tf.Tensor) -> Any:
    """Hand gradients on."""
    return list(upstream)


@tf.custom_gradient
def scaled(a: tf.Tensor, n: tf.Tensor) -> Any:
    """Return a * n; `n` is an integer."""
    return a * tf.cast(n, a.dtype), lambda u: (u, None)


def points_of(function: Callable[[tf.Tensor], Any]) -> tuple[tf.Tensor, list[Point]]:
    """Return the argument of a traced function, and what is found in its graph."""
    graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([3])).graph
    return graph.inputs[0], find_points(graph)


def declared(x: tf.Tensor) -> tf.Tensor:
    return override_gradient(tf.square, lambda u, i, o: u, [x], surrogate=tf.identity, name="declared")


def mapped(x: tf.Tensor, kind: str, make: Callable[[tf.Tensor], Any]) -> Any:
    with tf.compat.v1.get_default_graph().gradient_override_map({kind: OWN}):
        return make(x)


def test_every_override_is_found_once_in_the_order_of_the_graph() -> None:
    _, points = points_of(lambda x: declared(mapped(declared(scaled(x, tf.constant(2))), "Tanh", tf.tanh)))
    assert [point.name for point in points] == ["IdentityN", "declared", "Tanh", "declared"]
    assert [point.surrogate for point in points] == [UNDECLARED, tf.identity, UNDECLARED, tf.identity]


def test_integers_are_no_inputs_and_no_outputs() -> None:
    x, (point,) = points_of(lambda x: -scaled(x, tf.constant(2)))
    assert [each is x for each in point.inputs] == [True]
    assert len(point.outputs) == 1
    x, (point,) = points_of(
        lambda x: override_gradient(lambda n, x: 2.0 * x, lambda u, i, o: [None, u], [tf.constant(2), x])
    )
    assert [each is x for each in point.inputs] == [True]
    assert points_of(lambda x: tf.cast(x, tf.int32) + mapped(tf.cast(x, tf.int32), "Neg", tf.negative))[1] == []


def test_what_is_inside_of_a_branch_is_not_of_this_graph() -> None:
    for inner in (declared, lambda x: -scaled(x, tf.constant(2))):
        assert points_of(lambda x, inner=inner: tf.cond(x[0] > 0.0, lambda: inner(x), lambda: x))[1] == []


def test_a_result_that_nobody_uses_is_no_argument() -> None:
    @tf.custom_gradient
    def with_parts(a: tf.Tensor, b: tf.Tensor) -> Any:
        part = tf.sin(a)
        return (part * b, part, part + 1.0), lambda u, v, w: (u * b * tf.cos(a), u * part)

    x, (point,) = points_of(lambda x: 2.0 * with_parts(x, tf.exp(x))[0])
    assert len(point.outputs) == 1
    assert point.inputs[0] is x
    assert [each.op.type for each in point.inputs] == ["Placeholder", "Exp"]


def test_an_argument_with_a_gradient_of_its_own_stays_beside_what_it_is_computed_from() -> None:
    @tf.custom_gradient
    def product(a: tf.Tensor, b: tf.Tensor) -> Any:
        return a * b, lambda u: (u * b, u * a)

    _, points = points_of(lambda x: -product(mapped(x, "Sign", tf.sign), x))
    assert [each.op.type for each in points[-1].inputs] == ["Sign", "Placeholder"]


def test_an_identity_of_several_tensors_without_arguments_is_none_of_these() -> None:
    assert points_of(lambda x: tf.add_n(mapped(x, "IdentityN", lambda x: tf.identity_n([x, x]))))[1] == []
