"""The bytes that live at once, counted by hand in small graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from trainer.plan.live_bytes import LiveBytes, live_bytes

ROW = 4 * 100  # bytes of a float32 tensor [100]
VECTOR = tf.TensorSpec([100], tf.float32)


def graph_of(function: Callable, *specs: tf.TensorSpec, xla: bool = False) -> tf.Graph:
    return tf.function(function, autograph=False, jit_compile=xla).get_concrete_function(*specs).graph


def peak(function: Callable, *specs: tf.TensorSpec) -> int:
    return live_bytes(graph_of(function, *specs), open_size=1).peak


def test_a_chain_holds_what_goes_into_an_op_and_what_comes_out():
    assert peak(lambda x: tf.exp(tf.exp(tf.exp(tf.exp(x)))), VECTOR) == 2 * ROW


def test_what_a_later_op_needs_lives_until_then():
    def keep(x):
        kept = [tf.exp(x)]
        for _ in range(3):
            kept.append(tf.sin(kept[-1]))
        return tf.add_n(kept)

    assert peak(keep, VECTOR) == 5 * ROW


def test_a_backward_pass_keeps_the_activations_of_the_forward_pass():
    def step(x):
        layers = [x]
        for _ in range(4):
            layers.append(tf.tanh(layers[-1]))
        return tf.gradients(layers[-1], [x])

    # Four activations and the gradient of the output, from which the gradient of the last one comes.
    assert peak(step, VECTOR) == 6 * ROW


@pytest.mark.parametrize(
    "alias",
    [
        tf.identity,
        tf.stop_gradient,
        lambda x: tf.reshape(x, [10, 10]),
        lambda x: tf.expand_dims(x, 0),
        lambda x: tf.ensure_shape(x, [100]),
    ],
)
def test_an_op_that_gives_back_its_input_takes_nothing(alias: Callable):
    small = 64  # the shape that reshape takes, the axis of expand_dims
    assert 2 * ROW <= peak(lambda x: tf.exp(alias(alias(tf.exp(x)))), VECTOR) <= 2 * ROW + small


def test_an_alias_keeps_what_it_stands_for():
    def keep(x):
        first = tf.exp(x)
        alias = tf.identity(first)
        return tf.sin(tf.sin(tf.sin(first))) + alias

    assert peak(keep, VECTOR) == 3 * ROW


def test_inputs_and_variables_are_not_counted():
    variable = tf.Variable(tf.zeros([100]))

    def use(x):
        return tf.exp(x + variable)

    assert peak(use, VECTOR) == 2 * ROW


def test_an_open_dimension_counts_as_the_batch_and_types_by_their_size():
    def use(x):
        return tf.cast(tf.exp(x), tf.float64)

    graph = graph_of(use, tf.TensorSpec([None, 5], tf.float32))
    assert live_bytes(graph, open_size=7) == LiveBytes(7 * 5 * 4 + 7 * 5 * 8, 0)


def test_a_loop_counts_with_one_pass_of_its_body():
    def loop(x):
        return tf.while_loop(lambda i, x: i < 50, lambda i, x: (i + 1, tf.exp(tf.sin(x))), [0, x])[1]

    scalars = 64
    assert 2 * ROW <= peak(loop, VECTOR) <= 2 * ROW + scalars


def test_of_two_branches_the_larger_counts():
    def branch(flag, x):
        def large():
            return tf.add_n([tf.exp(x), tf.sin(x), tf.cos(x)])

        return tf.cond(flag, large, lambda: tf.exp(x))

    assert 4 * ROW <= peak(branch, tf.TensorSpec([], tf.bool), VECTOR) <= 4 * ROW + 8


def test_what_lives_around_a_call_adds_to_what_lives_in_it():
    inner = tf.function(lambda x: tf.exp(tf.sin(x)), autograph=False)

    def call(x):
        before = tf.cos(x)
        return inner(x) + before

    graph = graph_of(call, VECTOR)
    assert "PartitionedCall" in {operation.type for operation in graph.get_operations()}
    assert live_bytes(graph, open_size=1).peak == 3 * ROW


def test_a_function_that_xla_compiles_is_walked_too():
    compiled = tf.function(lambda x: tf.exp(tf.sin(x)), autograph=False, jit_compile=True)
    assert peak(lambda x: compiled(x), VECTOR) >= 2 * ROW


def test_what_is_counted_elsewhere_is_left_out():
    held: list[tf.Tensor] = []

    def use(x):
        held.append(tf.exp(x))
        return tf.sin(held[0]) + held[0]

    graph = graph_of(use, VECTOR)
    assert live_bytes(graph, open_size=1).peak == 3 * ROW
    assert live_bytes(graph, open_size=1, leave_out={id(held[0])}).peak == 2 * ROW


def test_what_is_counted_elsewhere_is_left_out_inside_of_calls_too():
    held: list[tf.Tensor] = []

    def inner(x):
        held.append(tf.exp(x))
        return tf.sin(tf.cos(held[-1]) + held[-1])

    called = tf.function(inner, autograph=False)
    graph = graph_of(lambda x: called(x), VECTOR)
    assert live_bytes(graph, open_size=1).peak == 3 * ROW
    assert live_bytes(graph, open_size=1, leave_out={id(each) for each in held}).peak == 2 * ROW


def test_lists_whose_length_shows_later_are_left_out_and_counted():
    def collect(x):
        array = tf.TensorArray(tf.float32, 3).write(0, x)
        return array.stack()

    found = live_bytes(graph_of(collect, VECTOR), open_size=1)
    assert found.unsized >= 1
    assert found.peak < 10 * ROW


def test_tensors_of_unknown_rank_are_left_out_and_counted_inside_of_calls_too():
    anything = tf.TensorSpec(None, tf.float32)
    assert live_bytes(graph_of(tf.exp, anything), open_size=9) == LiveBytes(0, 1)
    called = tf.function(lambda x: tf.exp(tf.exp(x)), autograph=False)
    assert live_bytes(graph_of(lambda x: called(x), anything), open_size=9) == LiveBytes(0, 3)


def test_what_a_function_returns_lives_to_its_end():
    assert peak(lambda x: (tf.exp(x), tf.sin(tf.sin(tf.sin(tf.sin(x))))), VECTOR) == 3 * ROW


def test_a_loop_that_is_differentiated_takes_lists_that_were_made_after_it():
    def step(x):
        found = tf.while_loop(lambda i, x: i < 50, lambda i, x: (i + 1, tf.exp(tf.sin(x))), [0, x])[1]
        return tf.gradients(found, [x])

    graph = graph_of(step, VECTOR)
    operations = graph.get_operations()
    (loop, *_) = [each for each in operations if each.type in ("While", "StatelessWhile")]
    assert any(operations.index(each.op) > operations.index(loop) for each in loop.inputs)
    found = live_bytes(graph, open_size=1)
    assert 2 * ROW <= found.peak <= 8 * ROW
    assert found.unsized >= 2
