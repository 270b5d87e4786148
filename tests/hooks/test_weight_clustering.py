"""Weight clustering: the weights and centroids of TFMOT on the same gradients; its begin, zeros, what is shipped."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.prune import Prune
from hookline.hooks.weight_clustering import WeightClustering, clustered, initial_centroids, nearest
from hookline.trainer.network import Network
from hookline.trainer.run.state import shipped_bits, shipped_weights
from tests.support.hooked import Given, binary_targets, built, hooked, used_by
from tests.support.refusals import assert_refused
from tests.support.toy import build_context, toy_network

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


def kernels(weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [value for name, value in weights.items() if name.endswith("kernel")]


def test_weights_and_centroids_match_tfmot() -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, use_bias=False, name="only")])
    model.weights[0].assign(np.reshape(WEIGHTS, [6, 2]) / 100.0)
    network = Network("model", model, keras.optimizers.SGD(0.1))
    hook = WeightClustering(clusters=4)
    loop = hooked(network, Given(np.divide(GRADIENTS, 10.0)), hook, batch=binary_targets)
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


def test_weights_train_freely_before_the_begin() -> None:
    plain, network = toy_network(), toy_network()
    network.model.set_weights(plain.model.get_weights())
    hook = WeightClustering(clusters=3, begin_epoch=1.0, init="kmeans")  # 4 steps
    loop, free = hooked(network, hook), hooked(plain)
    loop.run(0, 5)
    free.run(0, 5)  # in the step of the begin, the centroids are found
    np.testing.assert_equal(network.model.get_weights(), plain.model.get_weights())
    assert hook.declare().best_from_step == 5
    assert all(np.unique(each).size == 3 for each in kernels(used_by(loop, 5)))
    loop.run(5, 3)
    assert all(np.unique(each).size <= 3 for each in kernels(used_by(loop, 8)))
    values = loop.accumulators.read()
    assert 0.0 < values["weight_clustering/distance"] < 1.0
    assert 0.0 < values["weight_clustering/used"] <= 1.0


def test_preserve_sparsity_keeps_zeros() -> None:
    network = toy_network(optimizer=keras.optimizers.Adam(0.05))
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


def test_pruned_zeros_are_kept_unless_preserve_sparsity_is_false() -> None:
    for hook, zeros in ((WeightClustering(), 0.5), (WeightClustering(preserve_sparsity=False), 0.0)):
        pruning = Prune(final_sparsity=0.5, schedule="one_shot", begin_epoch=0.0)
        loop = hooked(toy_network(), pruning, hook)
        loop.run(0, 4)
        shipped = kernels(used_by(loop, 4))
        assert [(each == 0.0).mean() for each in shipped] == [zeros] * len(shipped)


def test_shipped_bits_count_indices_and_codebook() -> None:
    trainer = built(toy_network(), WeightClustering(clusters=5, layers="hidden"))
    (bits,) = shipped_bits(trainer, shipped_weights(trainer, 0))["model"].stored.values()
    assert bits == pytest.approx(3 + 5 * 32 / 48)  # the kernel is 6 x 8


def test_begin_epoch_none_means_halfway_and_a_late_one_is_refused() -> None:
    hook = WeightClustering(begin_epoch=None)
    hook.build(build_context(toy_network()))  # 100 steps
    assert hook.declare().best_from_step == 51
    assert_refused("clusters", WeightClustering, clusters=2, preserve_sparsity=True)
    assert_refused("begin_epoch=1000", WeightClustering(begin_epoch=1000.0).build, build_context(toy_network()))


NORMAL = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)


def placed(init: str, weights: np.ndarray, count: int) -> np.ndarray:
    """Return the initial centroids by their definition, in float64."""
    flat = np.sort(weights.ravel().astype(np.float64))
    even = np.linspace(flat[0], flat[-1], count)
    if init != "kmeans":
        return even if init == "linear" else np.quantile(flat, np.linspace(0, 1, count))
    for _ in range(50):
        near = np.abs(flat[:, None] - even).argmin(axis=1)
        even = np.array([flat[near == j].mean() if (near == j).any() else even[j] for j in range(count)])
    return even


@pytest.mark.parametrize("init", ["linear", "density", "kmeans"])
def test_initial_centroids_match_their_definition(init: str) -> None:
    made = tf.function(initial_centroids, jit_compile=init == "kmeans")
    np.testing.assert_allclose(made(tf.constant(NORMAL), 6, init), placed(init, NORMAL, 6), atol=1e-5)
    sparse = np.where(np.abs(NORMAL) < 0.7, np.float32(0), NORMAL)
    expected = np.sort([0.0, *placed(init, sparse[sparse != 0], 5)])
    np.testing.assert_allclose(made(tf.constant(sparse), 6, init, with_zero=True), expected, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(-40, 40), min_size=1, max_size=30),
    centroids=st.lists(st.integers(-40, 40), min_size=2, max_size=8, unique=True),
)
def test_nearest_centroid_is_found_in_any_order(weights: list[int], centroids: list[int]) -> None:
    values, codes = np.float32(weights) / 8, np.float32(centroids) / 8
    found = codes[nearest(tf.constant(values), tf.constant(codes)).numpy()]
    np.testing.assert_array_equal(np.abs(values - found), np.abs(values[:, None] - codes).min(axis=1))


def test_clustered_values_are_exact_centroids_and_gradients_pass() -> None:
    codes = tf.constant([0.1, -0.7, 0.3], tf.float32)
    with tf.GradientTape() as tape:
        weights = tf.constant(1e3 * NORMAL)  # far away: w + (c - w) would round
        tape.watch(weights)
        found = clustered(weights, codes)
        loss = tf.reduce_sum(found * NORMAL)
    assert set(np.unique(found)) <= set(codes.numpy())
    np.testing.assert_array_equal(tape.gradient(loss, weights), NORMAL)
