"""Bop: the flips of Larq's optimizer on the same gradients, binary kernels everywhere, other hooks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.bop import Bop
from hookline.hooks.ema import Ema
from hookline.hooks.freeze_layers import FreezeLayers
from hookline.trainer.network import Network
from hookline.trainer.run.state import shipped_bits, shipped_weights
from tests.support.hooked import Given, binary_targets, hooked, used_by
from tests.support.toy import StatelessHook, build_context

# What larq.optimizers.Bop(threshold=0.02, gamma=0.1) of Larq 0.13.3 makes of these gradients, in hundredths.
BEGIN = "---+++--+++-"
GRADIENTS = (
    (-96, 160, 20, -173, -8, -116, -63, -49, -71, 55, -6, -59),
    (41, 83, -164, -26, -98, -17, -129, 2, -4, -30, -105, -40),
    (-109, -136, 22, -111, 117, 72, -200, 27, -110, 3, 4, -199),
    (-23, -26, 96, -118, 74, -110, -33, -84, 145, 57, 243, 64),
    (84, 84, -61, -7, 135, -40, 19, -2, 61, -36, -15, 24),
    (10, -86, 90, -130, -120, -128, 97, -36, -97, -114, 42, -105),
)
OF_LARQ = ("+--++++++-++", "+-+++++++-++", "+-++-++++-++", "+-++-++++--+", "+-++-+++---+", "+--+-+++++-+")
MOMENTUM_OF_LARQ = (
    *(-0.042277928441762924, 0.018330693244934082, 0.033107392489910126, -0.4320123791694641),
    *(0.07771126925945282, -0.2802625298500061, -0.18026776611804962, -0.11377881467342377),
    *(-0.04938918352127075, -0.08524905145168304, 0.1558125764131546, -0.23771390318870544),
)


def signs(text: str) -> np.ndarray:
    return np.array([1.0 if each == "+" else -1.0 for each in text], np.float32).reshape(6, 2)


def test_updates_match_larq() -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, use_bias=False, name="only")])
    network = Network("model", model, keras.optimizers.Adam(0.1))
    model.weights[0].assign(0.3 * signs(BEGIN))  # binary from the beginning, whatever its magnitude was
    bop = Bop(threshold=0.02, gamma=0.1, all_binary=True)
    loop = hooked(network, Given(np.divide(GRADIENTS, 100.0)), bop, batch=binary_targets)
    momentum, weight = np.zeros([6, 2], np.float32), signs(BEGIN)
    np.testing.assert_array_equal(model.weights[0], weight)
    for step, gradient in enumerate(np.float32(GRADIENTS).reshape(-1, 6, 2) / np.float32(100)):
        loop.run(step, 1)
        momentum = momentum + np.float32(0.1) * (gradient - momentum)
        flips = (np.abs(momentum) >= 0.02) & (np.sign(momentum) == np.sign(weight))
        weight = np.where(flips, -weight, weight)
        np.testing.assert_array_equal(model.weights[0], weight)
        np.testing.assert_array_equal(model.weights[0], signs(OF_LARQ[step]))
    (state,) = bop.declare().state.values()
    np.testing.assert_allclose(np.ravel(state), MOMENTUM_OF_LARQ, atol=1e-7)
    assert loop.accumulators.read()["bop/flip_ratio"] == pytest.approx(2 / 12)


def deep_network(optimizer: keras.optimizers.Optimizer | None = None) -> Network:
    """Return a network in which only the layer "middle" is binary."""
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(8, name="first"),
        keras.layers.Dense(8, name="middle"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(3, name="last"),
    ]
    return Network("model", keras.Sequential(layers, name="deep"), optimizer or keras.optimizers.Adam(0.01))


def kernel_of(network: Network, layer: str = "middle") -> np.ndarray:
    return np.array(network.model.get_layer(layer).kernel)


@pytest.mark.parametrize("quantizer", ["approx_sign", None])
def test_kernels_flip_with_and_without_a_kernel_quantizer(quantizer: str | None) -> None:
    network = deep_network(keras.optimizers.AdamW(0.01, weight_decay=0.1))
    rounding = BnnRounding(kernel_quantizer=quantizer, clip=0.5 if quantizer else 1.0)
    loop = hooked(network, rounding, Ema(), Bop(gamma=0.1))
    begun, first = kernel_of(network), kernel_of(network, "first")
    loop.run(0, 8)
    found = kernel_of(network)
    assert set(np.unique(found)) == {-1.0, 1.0}
    assert 0.0 < (found != begun).mean() < 1.0
    assert not np.array_equal(kernel_of(network, "first"), first)
    shipped = used_by(loop, 8)
    (name,) = (name for name in shipped if name.endswith("middle/kernel"))
    assert set(np.unique(shipped[name])) == {-1.0, 1.0}
    assert shipped_bits(loop.trainer, shipped_weights(loop.trainer, 8))["model"].stored[name] == 1.0


def test_frozen_layer_keeps_its_signs() -> None:
    network = deep_network()
    loop = hooked(network, FreezeLayers(layers="middle"), Bop(gamma=0.5))
    begun = kernel_of(network)
    loop.run(0, 5)
    np.testing.assert_array_equal(kernel_of(network), begun)


class Broken(StatelessHook):
    """Put NaN into the gradients of the binary kernel."""

    def transform_gradients(self, gradients, context):
        broken = {name: g * float("nan") for name, g in gradients.items() if "middle/kernel" in name}
        return {**gradients, **broken}


def test_nan_gradient_holds_the_step_back() -> None:
    network = deep_network()
    loop = hooked(network, Broken("broken"), bop := Bop())
    step, vetoes = loop.run(0, 3)
    assert step == 0
    assert len(vetoes) == 1
    assert vetoes[0].startswith("gradient/")
    assert all(np.isfinite(each).all() for each in bop.declare().state.values())


def test_gamma_decays_exponentially() -> None:
    bop = Bop(gamma=1e-2, final_gamma=1e-4)
    bop.build(build_context(deep_network()))  # 100 steps
    found = [float(bop._gamma_at(tf.constant(step, tf.int64))) for step in (0, 50, 100, 150)]
    assert found == pytest.approx([1e-2, 1e-3, 1e-4, 1e-4])  # the same in a later fit
