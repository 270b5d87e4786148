"""Small classic TensorFlow 1 programs, with the values claimed for them, beside this project's equivalents.

Where TensorFlow 2.21 behaves differently, the test states both. Overridden gradients are in `test_seed_toy_network`;
update ops in `tests/trainer/step`, batches and splits in `tests/trainer/input`, and random transformations in
`tests/contract`.
"""

import itertools
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.freeze_layers import FreezeLayers
from hookline.trainer.errors import UserError
from hookline.trainer.objective import Objective, ObjectiveOutput
from hookline.trainer.ops.centers import center_change, center_sums
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import ToyObjective, build_context, network_of, toy_batch, toy_network, values_of

v1 = tf.compat.v1


@contextmanager
def session():
    with tf.Graph().as_default(), v1.Session() as opened:
        yield opened


INPUTS = np.array([[0.5, -1.0], [0.25, 1.5], [-1.0, 0.07864934]], np.float32)  # they sum to 0.32864934
TARGETS = np.arange(12, dtype=np.float32).reshape(3, 4)
TRAINED = np.full((3, 4), 0.67135066)


class OutputMinusTarget(Objective):
    """The sum of output - target over a batch, instead of a mean."""

    def compute(self, forward, batch):
        return ObjectiveOutput({"difference": tf.reduce_sum(forward("model", batch["inputs"]) - batch["targets"])})


def two_layers(middle):
    layers = [keras.layers.Dense(n, use_bias=False, kernel_initializer="ones", name=f"w{n - 2}") for n in (3, 4)]
    model = keras.Sequential([keras.Input((2,)), layers[0], *middle, layers[1]])
    return network_of(model, keras.optimizers.SGD(1.0))


def test_frozen_layer_does_the_same_and_a_blocked_gradient_is_refused():
    def loop(network, hooks):
        for hook in hooks:
            hook.build(build_context(network))
        batch = {"inputs": tf.constant(INPUTS), "targets": tf.constant(TARGETS)}
        return ChunkLoop(Trainer([network], [OutputMinusTarget()], hooks, seed=0), lambda step: batch, xla=False)

    network, hook = two_layers([]), FreezeLayers(layers="w1")
    hook.name = "freeze_layers"
    loop(network, [hook]).run(0, 1)
    w1, w2 = network.model.get_weights()
    np.testing.assert_array_equal(w1, np.ones([2, 3]))
    np.testing.assert_allclose(w2, TRAINED, atol=1e-6)
    with pytest.raises(UserError, match="No gradient reaches .*w1/kernel"):
        loop(two_layers([keras.layers.Lambda(tf.stop_gradient, output_shape=lambda shape: shape)]), [])


PUZZLE = {
    "y = x": (lambda x, added: x, [0, 0, 0, 0, 0]),
    "y = tf.identity(x)": (lambda x, added: tf.identity(x), [1, 2, 3, 4, 5]),
    "y = x_plus_1": (lambda x, added: added, [1, 2, 3, 4, 5]),
}


def test_control_dependency_applies_only_to_ops_created_inside_it():
    for (line, (make, expected)), is_resource in itertools.product(PUZZLE.items(), (False, True)):
        with session() as run:
            x = v1.Variable(0.0, use_resource=is_resource)
            x_plus_1 = v1.assign_add(x, 1)
            with tf.control_dependencies([x_plus_1]):
                y = make(x, x_plus_1)
            run.run(v1.global_variables_initializer())
            assert [float(run.run(y)) for _ in range(5)] == expected, (line, is_resource)


FEATURES = np.array([[1.0, 1.0], [3.0, -1.0], [2.0, 4.0]], np.float32)
CLASSES = np.array([0, 0, 2])
CENTERS = np.array([[0.0, 1.0], [5.0, 5.0], [1.0, 1.0]], np.float32)
MOVED = CENTERS - 0.5 * np.array([[-4 / 3, 2 / 3], [0.0, 0.0], [-1 / 2, -3 / 2]], np.float32)


def test_centers_move_only_when_their_update_is_run():
    with session() as run:
        centers = v1.get_variable("centers", initializer=CENTERS, trainable=False, use_resource=False)
        counts = np.bincount(CLASSES)[CLASSES][:, None]
        difference = 0.5 * (CENTERS[CLASSES] - FEATURES) / (1 + counts)
        update, weight = v1.scatter_sub(centers, CLASSES, difference.astype(np.float32)), v1.Variable(1.0)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(weight**2)
        run.run(v1.global_variables_initializer())
        run.run(train)
        np.testing.assert_array_equal(run.run(centers), CENTERS)
        run.run([train, update])
        np.testing.assert_allclose(run.run(centers), MOVED, atol=1e-6)  # class 0 twice, class 1 not at all
    change = center_change(*center_sums(tf.constant(CENTERS), tf.constant(FEATURES), tf.constant(CLASSES)))
    np.testing.assert_allclose(CENTERS - 0.5 * change, MOVED, atol=1e-6)


def test_networks_trained_in_one_step_do_not_affect_each_other():
    def train(*names):
        networks = []
        for name in names:
            keras.utils.set_random_seed(ord(name))
            networks.append(toy_network(name))
        objectives = [ToyObjective(name, name) for name in names]
        ChunkLoop(Trainer(networks, objectives, [], seed=0), toy_batch, xla=False).run(0, 3)
        return {network.name: values_of(network) for network in networks}

    together = train("a", "b")  # in one graph, once claimed to be impossible
    for left, right in zip(together["b"].values(), train("b")["b"].values(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)
