"""Peak bytes of live tensors in small graphs, compared with counts by hand."""

import pytest
import tensorflow as tf

from hookline.scripts.planning.trace import live_bytes

ROW = 4 * 100  # bytes of a float32 tensor [100]
VECTOR = tf.TensorSpec([100], tf.float32)
INNER = tf.function(lambda x: tf.exp(tf.sin(x)), autograph=False)
COMPILED = tf.function(lambda x: tf.exp(tf.sin(x)), autograph=False, jit_compile=True)


def graph_of(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs).graph


def backward(x):
    layers = [x]
    for _ in range(4):
        layers.append(tf.tanh(layers[-1]))
    return tf.gradients(layers[-1], [x])


def aliased(x):
    first = tf.exp(x)
    alias = tf.identity(first)
    return tf.sin(tf.sin(tf.sin(first))) + alias


def branch(x):
    return tf.cond(x[0] > 0, lambda: tf.add_n([tf.exp(x), tf.sin(x), tf.cos(x)]), lambda: tf.exp(x))


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda x: tf.exp(tf.exp(tf.exp(tf.exp(x)))), 2),  # the input and the output of an op
        (backward, 6),  # four activations, the gradient of the output, and the next one computed from it
        (aliased, 3),  # an alias keeps its tensor alive
        (lambda x: tf.exp(tf.reshape(tf.stop_gradient(tf.exp(x)), [10, 10])), 2),  # and takes no bytes
        (lambda x: tf.while_loop(lambda i, x: i < 50, lambda i, x: (i + 1, tf.exp(tf.sin(x))), [0, x])[1], 2),
        (branch, 4),  # the larger of two branches counts
        (lambda x: INNER(x) + tf.cos(x), 3),  # tensors alive during a call add to those inside it
        (lambda x: (tf.exp(x), tf.sin(tf.sin(tf.sin(tf.sin(x))))), 3),  # outputs live to the end
    ],
)
def test_peak_matches_count_by_hand(function, rows):
    found, _ = live_bytes(graph_of(function, VECTOR), open_size=1)
    assert rows * ROW <= found <= rows * ROW + 64  # plus some scalars


def test_variables_are_not_counted_but_xla_compiled_functions_are():
    variable = tf.Variable(tf.zeros([100]))
    assert live_bytes(graph_of(lambda x: tf.exp(x + variable), VECTOR), open_size=1)[0] == 2 * ROW
    assert live_bytes(graph_of(lambda x: COMPILED(x), VECTOR), open_size=1)[0] >= 2 * ROW


def test_bytes_depend_on_dtype_and_open_dimensions_take_the_given_size():
    graph = graph_of(lambda x: tf.cast(tf.exp(x), tf.float64), tf.TensorSpec([None, 5], tf.float32))
    assert live_bytes(graph, open_size=7) == (7 * 5 * 4 + 7 * 5 * 8, 0)


def test_tensors_of_unknown_size_are_left_out_and_counted():
    anything = tf.TensorSpec(None, tf.float32)
    called = tf.function(lambda x: tf.exp(tf.exp(x)), autograph=False)
    assert live_bytes(graph_of(lambda x: called(x), anything), open_size=9) == (0, 3)
    function = graph_of(lambda x: tf.TensorArray(tf.float32, 3).write(0, x).stack(), VECTOR)
    peak, left_out = live_bytes(function, open_size=1)
    assert left_out >= 1
    assert peak < 10 * ROW


def test_differentiated_loop_with_inputs_traced_after_it_is_counted():
    def step(x):
        found = tf.while_loop(lambda i, x: i < 50, lambda i, x: (i + 1, tf.exp(tf.sin(x))), [0, x])[1]
        return tf.gradients(found, [x])

    graph = graph_of(step, VECTOR)
    operations = graph.get_operations()
    (loop, *_) = [each for each in operations if each.type in ("While", "StatelessWhile")]
    assert any(operations.index(each.op) > operations.index(loop) for each in loop.inputs)
    peak, left_out = live_bytes(graph, open_size=1)
    assert 2 * ROW <= peak <= 8 * ROW
    assert left_out >= 2
