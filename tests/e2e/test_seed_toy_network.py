"""A toy network with an overridden gradient, worked out by hand, by every route; and Python functions in a graph.

d = b + c, e = c + k, a = d * e, and the softmax cross-entropy of a. By the chain rule, with g = dL/da:
dL/dc = (e + d) g and dL/dk = d g. Where TensorFlow 2.21 behaves differently from what was claimed, the test states
both. The case of a Bernoulli mask is in `tests/trainer/ops/test_estimators.py`.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import Objective, ObjectiveOutput
from hookline.trainer.ops.override_gradient import override_gradient
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import network_of

v1 = tf.compat.v1
NUMBERS = itertools.count()

B, C, K = (np.array(values, np.float32) for values in ([1.0, 2.0], [0.06, -0.03], [-0.08, 0.11]))
LABELS = np.array([0.0, 1.0], np.float32)
D, E = B + C, C + K
SOFTMAX = np.exp(D * E) / np.exp(D * E).sum()
TO_A = SOFTMAX - LABELS
CHAIN_RULE = {"c": (E + D) * TO_A, "k": D * TO_A}


def partials(upstream, inputs, outputs):
    """Return the derivatives of c + k, where d is an input only because it was declared."""
    return [upstream, upstream, tf.zeros_like(inputs[2])]


def totals(upstream, inputs, outputs):
    """Return ((e + d) g, d g, e g): the derivatives of the whole network for g = dL/da."""
    c, k, d = inputs
    e = tf.add(c, k)
    return (e + d) * upstream, d * upstream, e * upstream


def by_custom_gradient(forward, backward, c, k, d):
    return override_gradient(forward, backward, [c, k, d])


def by_numpy_forward(forward, backward, c, k, d):
    return override_gradient(forward, backward, [c, k, d], numpy_output=tf.TensorSpec([2], tf.float32))


def by_override_map(forward, backward, c, k, d):
    name = f"TestToyNetwork{next(NUMBERS)}"  # a random number is not unique if NumPy is seeded

    @tf.RegisterGradient(name)
    def gradient(operation, upstream):
        return backward(upstream, tuple(operation.inputs), None)

    with v1.get_default_graph().gradient_override_map({"PyFunc": name}):
        (result,) = v1.py_func(forward, [c, k, d], [tf.float32])
    return tf.ensure_shape(result, [2])


ROUTES = {f.__name__: f for f in (by_custom_gradient, by_override_map, by_numpy_forward)}


def toy_logits(c, k, route, kind):
    """Return a = d * e of the toy network, with only the add overridden, or all of it."""
    d = B + c
    if kind == "the add":
        return d * route(lambda c, k, d: c + k, partials, c, k, d)
    return route(lambda c, k, d: (c + k) * d, totals, c, k, tf.stop_gradient(d))


def toy_gradients(logits):
    def traced(c, k):
        loss = tf.nn.softmax_cross_entropy_with_logits(LABELS, logits(c, k))
        return tf.gradients(loss, [c, k])

    found = tf.function(traced, autograph=False)(tf.constant(C), tf.constant(K))
    return dict(zip("ck", (each.numpy() for each in found), strict=True))


class ToyLogits(keras.layers.Layer):
    """The toy network as a Keras layer with the weights c and k; its input has no effect."""

    def __init__(self, route):
        super().__init__()
        self.route = route

    def build(self, shape):
        self.c = self.add_weight((2,), name="c")
        self.k = self.add_weight((2,), name="k")

    def call(self, inputs):
        logits = toy_logits(tf.convert_to_tensor(self.c), tf.convert_to_tensor(self.k), self.route, "the add")
        return logits + 0.0 * inputs


class ToyLoss(Objective):
    def compute(self, forward, batch):
        logits = forward("model", batch["inputs"])
        return ObjectiveOutput({"loss": tf.nn.softmax_cross_entropy_with_logits(batch["targets"], logits)})


@pytest.mark.parametrize("route", ROUTES)
def test_gradients_match_the_chain_rule_by_every_route(route):
    for kind in ("the add", "all of it"):
        found = toy_gradients(lambda c, k, kind=kind: toy_logits(c, k, ROUTES[route], kind))
        for name, expected in CHAIN_RULE.items():
            np.testing.assert_allclose(found[name], expected, atol=1e-6, rtol=0, err_msg=kind)
    # The same in the trainer's own step: at a learning rate of 1 a weight moves by its gradient.
    model = keras.Sequential([keras.Input((2,), batch_size=1), ToyLogits(ROUTES[route])])
    model.set_weights([C, K])
    network = network_of(model, keras.optimizers.SGD(1.0))
    batch = {"inputs": tf.zeros([1, 2]), "targets": tf.constant(LABELS[None])}
    ChunkLoop(Trainer([network], [ToyLoss()], [], seed=0), lambda step: batch, xla=False).run(0, 1)
    for before, after, expected in zip((C, K), model.get_weights(), CHAIN_RULE.values(), strict=True):
        np.testing.assert_allclose(before - after, expected, atol=1e-6, rtol=0)


def test_total_derivatives_given_for_the_add_count_twice():
    # The gradient that arrives at the add is dL/de = d dL/da, and the product with d passes one to d as well.
    found = toy_gradients(lambda c, k: (B + c) * by_custom_gradient(lambda c, k, d: c + k, totals, c, k, B + c))
    to_e = D * TO_A
    np.testing.assert_allclose(found["c"], E * TO_A + (E + D) * to_e + E * to_e, atol=1e-6)
    np.testing.assert_allclose(found["k"], D * to_e, atol=1e-6)
    assert np.abs(found["c"] - CHAIN_RULE["c"]).max() > 0.1
    assert np.abs(found["k"] - CHAIN_RULE["k"]).max() > 0.1


def test_classic_program_trains_with_an_overridden_function():
    with tf.Graph().as_default(), v1.Session() as run:
        data, labels = v1.placeholder(tf.float32, [2]), v1.placeholder(tf.int32, [2])
        c, k = v1.Variable(C), v1.Variable(K)
        d = tf.add(data, c)
        e = by_override_map(lambda c, k, d: np.add(c, k).astype(np.float32), partials, c, k, d)
        loss = v1.losses.softmax_cross_entropy(logits=tf.multiply(d, e), onehot_labels=labels)
        optimizer = v1.train.AdamOptimizer(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=0.1)
        pairs = list(optimizer.compute_gradients(loss, v1.trainable_variables()))
        apply = optimizer.apply_gradients(pairs)
        run.run(v1.global_variables_initializer())
        feed = {data: B, labels: [0, 1]}
        for (gradient, _), expected in zip(run.run(pairs, feed), CHAIN_RULE.values(), strict=True):
            np.testing.assert_allclose(gradient, expected, atol=1e-6)
        first = run.run([loss, apply], feed)[0]
        assert run.run(loss, feed) < first


def test_python_functions_have_no_gradient_and_compute_with_numpy():
    def traced(x):
        return tf.gradients(tf.numpy_function(lambda x: x + 1, [x], tf.float32), x)

    assert tf.function(traced, autograph=False)(tf.constant(1.0)) == [None]
    with tf.Graph().as_default(), v1.Session() as run:
        assert run.run(v1.py_func(lambda x: tf.add(x, 1.0), [tf.constant(1.0)], tf.float32)) == 2.0
    with pytest.raises(UserError, match="returned a .*Tensor. Expected a NumPy array"):
        by_numpy_forward(lambda c, k, d: tf.add(c, k), partials, tf.constant(C), tf.constant(K), tf.constant(D))


def test_python_function_must_return_the_declared_dtype():
    with tf.Graph().as_default(), v1.Session() as run:
        wrong = v1.py_func(lambda x: x.astype(np.float64), [tf.constant(1.0)], tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="is double, but expects float"):
            run.run(wrong)
    # Called eagerly, TensorFlow 2.21 silently returns a dtype other than the declared one; here it is an error.
    assert tf.numpy_function(lambda x: x.astype(np.float64), [tf.constant(1.0)], tf.float32).dtype == tf.float64
    with pytest.raises(UserError, match=r"returned float64 \[2\]. Expected float32 \[2\]"):
        by_numpy_forward(lambda c, k, d: np.add(c, k, dtype=np.float64), partials, *map(tf.constant, (C, K, D)))
