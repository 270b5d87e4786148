"""Weight clustering: TFMOT's weights and centroids on the same gradients, the begin, zeros, what is shipped."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hook_list import hook_name
from hookline.hooks.ema import Ema
from hookline.hooks.prune import Prune
from hookline.hooks.weight_clustering import WeightClustering
from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.order import order_hooks
from hookline.trainer.run.state import shipped_weights, stored_bits
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import StatelessHook, ToyObjective, build_context, toy_batch, toy_network

# What tfmot 0.8 on TF 2.21 makes of these gradients: 4 clusters, LINEAR, SUM, SGD(0.1) for weights and centroids.
WEIGHTS = (204, -256, 42, -57, -45, -22, -202, -23, -87, 332, 23, -35)  # hundredths
GRADIENTS = (  # tenths
    (-3, -7, -11, -4, 5, -2, 10, -2, 0, 15, 5, -5),
    (-2, 5, 19, -3, -2, 10, -9, -3, 9, 6, 1, 7),
    (-28, 10, -10, -17, 3, 7, -4, -11, 0, -1, 14, 7),
    (2, 11, -2, -9, 6, 6, -2, -8, 2, -25, 7, 5),
)
CENTROIDS_OF_TFMOT = (
    (-2.56, -0.6, 1.36, 3.32),
    (-2.59, -0.57, 1.5, 3.17),
    (-2.55, -0.76, 1.33, 3.11),
    (-2.61, -0.79, 1.71, 3.12),
    (-2.7, -0.86, 1.69, 3.37),
)
MEMBERS_OF_TFMOT = (*[(2, 0, 2, 1, 1, 1, 0, 1, 1, 3, 1, 1)] * 3, (2, 0, 1, 1, 1, 1, 0, 1, 1, 3, 1, 1))
LATENT_OF_TFMOT = (2.35, -2.75, 0.46, -0.24, -0.57, -0.43, -1.97, 0.01, -0.98, 3.37, -0.04, -0.49)


class Given(StatelessHook):
    """Give every step gradients of one's choice."""

    def transform_gradients(self, gradients, context):
        given = tf.constant(np.reshape(GRADIENTS, [-1, 6, 2]) / 10.0, tf.float32)[context.step]
        return dict.fromkeys(gradients, given)


def hooked(network: Network, *hooks: GraphHook, batch: Any = toy_batch) -> ChunkLoop:
    for hook in hooks:
        hook.name = hook.name or hook_name(type(hook))
    ordered = order_hooks(hooks)
    for hook in ordered:
        hook.build(build_context(network))
    if not network.optimizer.built:
        network.optimizer.build(network.model.trainable_variables)
    return ChunkLoop(Trainer([network], [ToyObjective()], ordered, seed=0), batch, xla=False)


def binary_targets(step: tf.Tensor) -> dict[str, tf.Tensor]:
    batch = toy_batch(step)
    return {**batch, "targets": batch["targets"] % 2}


def used_by(loop: ChunkLoop, step: int) -> dict[str, np.ndarray]:
    return shipped_weights(loop.trainer, step)["model"]


def kernels(weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [value for name, value in weights.items() if name.endswith("kernel")]


def test_weights_and_centroids_are_those_of_tfmot() -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, use_bias=False, name="only")])
    model.weights[0].assign(np.reshape(WEIGHTS, [6, 2]) / 100.0)
    network = Network("model", model, keras.optimizers.SGD(0.1))
    hook = WeightClustering(clusters=4)
    loop = hooked(network, Given("given"), hook, batch=binary_targets)
    centroids = next(each for name, each in hook.declare().state.items() if name.startswith("centroids/"))
    for step, members in enumerate(MEMBERS_OF_TFMOT):
        expected = np.array(CENTROIDS_OF_TFMOT[step])
        np.testing.assert_allclose(centroids, expected, atol=1e-6)
        (found,) = used_by(loop, step).values()
        np.testing.assert_allclose(found.ravel(), expected[list(members)], atol=1e-6)
        assert set(found.ravel()) <= set(centroids.numpy())
        loop.run(step, 1)
    np.testing.assert_allclose(centroids, CENTROIDS_OF_TFMOT[-1], atol=1e-6)
    np.testing.assert_allclose(np.ravel(model.weights[0]), LATENT_OF_TFMOT, atol=1e-6)


def test_weights_are_free_before_the_begin() -> None:
    plain, network = toy_network(), toy_network()
    for mine, theirs in zip(network.model.weights, plain.model.weights, strict=True):
        mine.assign(theirs)
    hook = WeightClustering(clusters=3, begin_epoch=1.0, init="kmeans")  # 4 steps
    loop, free = hooked(network, hook), hooked(plain)
    loop.run(0, 5)
    free.run(0, 5)  # in the step of the begin, the centroids are found
    for mine, theirs in zip(network.model.weights, plain.model.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert hook.declare().best_from_step == 5
    assert all(np.unique(each).size == 3 for each in kernels(used_by(loop, 5)))
    loop.run(5, 3)
    assert all(np.unique(each).size <= 3 for each in kernels(used_by(loop, 8)))
    values = loop.accumulators.read()
    assert 0.0 < values["weight_clustering/distance"] < 1.0
    assert 0.0 < values["weight_clustering/used"] <= 1.0


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam(0.05), keras.optimizers.SGD(0.1, momentum=0.9)])
def test_zeros_stay_zeros(optimizer: keras.optimizers.Optimizer) -> None:
    network = toy_network(optimizer=optimizer)
    kernel = network.model.get_layer("hidden").kernel
    dropped = np.random.default_rng(1).random(kernel.shape) < 0.5
    kernel.assign(np.where(dropped, 0.0, kernel))
    hook = WeightClustering(clusters=4, preserve_sparsity=True)
    loop = hooked(network, hook)
    loop.run(0, 10)
    shipped = kernels(used_by(loop, 10))[0]
    assert (np.array(kernel)[dropped] == 0.0).all()
    assert (shipped[dropped] == 0.0).all()
    assert np.unique(shipped).size <= 4
    assert (shipped != 0.0).any()
    for name, centroids in hook.declare().state.items():
        assert not name.startswith("centroids/") or (centroids.numpy() == 0.0).sum() == 1


def test_a_pruned_network_has_zeros_and_a_codebook_also_under_averages() -> None:
    network = toy_network(optimizer=keras.optimizers.Adam(0.05))
    pruning = Prune(schedule="constant", final_sparsity=0.5)
    hook = WeightClustering(clusters=4, preserve_sparsity=True, begin_epoch=1.0)
    loop = hooked(network, Ema(decay=0.9), pruning, hook)
    loop.run(0, 10)
    for shipped in kernels(used_by(loop, 10)):
        assert (shipped == 0.0).mean() >= 0.5
        assert np.unique(shipped).size <= 4


def test_shipped_bits_are_those_of_indices_and_codebook() -> None:
    network = toy_network()
    loop = hooked(network, WeightClustering(clusters=5, layers="hidden"))
    (bits,) = stored_bits(loop.trainer, 0)["model"].values()
    assert bits == pytest.approx(3 + 5 * 32 / 48)  # the kernel is 6 x 8


def test_without_an_epoch_it_begins_halfway() -> None:
    hook = WeightClustering(begin_epoch=None)
    hook.build(build_context(toy_network()))  # 100 steps
    assert hook.declare().best_from_step == 51


def test_bad_values_are_refused() -> None:
    for options in (
        {"clusters": 1},
        {"clusters": 2, "preserve_sparsity": True},
        {"init": "random"},
        {"centroid_rate": -1},
    ):
        with pytest.raises(UserError):
            WeightClustering(**options)
    with pytest.raises(UserError, match="begin_epoch=1000"):
        WeightClustering(begin_epoch=1000.0).build(build_context(toy_network()))
