"""Batch norm over replicas matches the whole batch, and Keras on one replica; refused where it would be wrong."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.synchronized_batch_norm import SynchronizedBatchNorm
from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from tests.support.hooked import named
from tests.support.replicas import assert_same_run, replica_loop, trained
from tests.support.toy import CLASSES, FEATURES, build_context, toy_network


def hooks_of(**options):
    def build(network: Network) -> list[SynchronizedBatchNorm]:
        hook = named(SynchronizedBatchNorm(network="model", **options))
        hook.build(build_context(network))
        return [hook]

    return build


class OwnNorm(keras.layers.BatchNormalization):
    """A batch norm layer with custom moments."""

    def _moments(self, inputs, mask):
        return super()._moments(inputs, mask)


def network_with(layer: keras.layers.Layer) -> Network:
    layers = [keras.layers.Dense(8, name="hidden"), layer, keras.layers.Dense(CLASSES, name="logits")]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers], name="net")
    return Network("model", model, keras.optimizers.SGD(0.1, name="sgd"))


def test_layer_options_are_respected() -> None:
    options = {"scale": False, "center": False, "momentum": 0.5, "epsilon": 0.1}
    network = lambda: network_with(keras.layers.BatchNormalization(name="norm", **options))  # noqa: E731
    expected = trained(1, network=network)
    assert_same_run(trained(1, network=network, hooks=hooks_of()), expected, tolerance=1e-6)
    assert_same_run(trained(2, network=network, hooks=hooks_of()), expected)


def test_nontrainable_layer_keeps_its_moving_statistics() -> None:
    def network() -> Network:
        norm = keras.layers.BatchNormalization(name="norm")
        norm.trainable = False
        return network_with(norm)

    found, _ = trained(2, network=network, hooks=hooks_of())
    np.testing.assert_array_equal(found["network/model/net/norm/moving_mean"], np.zeros(8))


def test_layer_with_custom_statistics_is_refused_on_several_replicas() -> None:
    for layer, word in ((OwnNorm, "OwnNorm"), (partial(keras.layers.BatchNormalization, renorm=True), "renorm")):
        with pytest.raises(UserError, match=word):
            replica_loop(2, network=lambda layer=layer: network_with(layer(name="norm")), hooks=hooks_of())
    trained(1, network=lambda: network_with(OwnNorm(name="norm")), hooks=hooks_of())


def test_layers_are_selected_by_pattern_and_unchanged_outside_a_pass() -> None:
    loop = replica_loop(2, hooks=hooks_of(layers="norm"))
    assert loop.trainer.hooks[0].summary() == {"replicas": 2, "layers": ["norm"]}
    layer = loop.trainer.networks["model"].model.get_layer("norm")
    assert "call" not in vars(layer)
    assert np.isfinite(layer(tf.ones([2, 8]), training=True)).all()
    with pytest.raises(UserError, match="no_such_layer"):
        hooks_of(layers="no_such_layer")(toy_network())
