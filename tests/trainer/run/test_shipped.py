"""The shipped weights, and the smallest form that stores them exactly."""

import math

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.frozen_mask import FrozenMask
from hookline.hooks.incremental_quantization import IncrementalQuantization
from hookline.hooks.prune import Prune
from hookline.hooks.pruning.report import csr_bytes
from hookline.trainer.run.state import shipped_bits, shipped_weights
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.hooked import built, named
from tests.support.masking import small_network
from tests.support.toy import StatelessHook, toy_batch, toy_loop, toy_network, values_of

HIDDEN, LOGITS = "hidden/kernel", "logits/kernel"
SHAPES = {HIDDEN: (6, 8), LOGITS: (8, 3)}


def prune(sparsity, **options):
    return named(Prune(schedule="one_shot", final_sparsity=sparsity, **options), "prune")


def rounding(quantizer="ste_sign"):
    return named(BnnRounding(kernel_quantizer=quantizer, input_quantizer=None, all_binary=True), "bnn_rounding")


def quantization():
    return named(IncrementalQuantization(shares=[0.5, 1.0], step_epochs=1), "incremental_quantization")


def trained(*hooks):
    """Return a trainer after 12 steps, during which the last mask or level is set, if hooks have any."""
    trainer = built(small_network(keras.optimizers.Adam(0.01), units=8), *hooks, total_steps=1000)
    if any(hook.declare().state for hook in hooks):
        ChunkLoop(trainer, toy_batch, xla=False).run(0, 12)
    return trainer


def stored_bits(trainer):
    return shipped_bits(trainer, shipped_weights(trainer, 12))["model"].stored


def bits_of(*hooks):
    return stored_bits(trained(*hooks))


def test_pruned_kernels_are_stored_sparse_or_dense_whichever_is_smaller():
    assert bits_of() == bits_of(named(FrozenMask(fraction=0.5), "frozen_mask")) == {}
    kept = {name: math.prod(shape) - round(0.9 * math.prod(shape)) for name, shape in SHAPES.items()}
    expected = {name: (8 * csr_bytes(*SHAPES[name], kept[name]) / math.prod(SHAPES[name])) for name in SHAPES}
    assert bits_of(prune(0.9)) == expected
    assert max(expected.values()) < 32
    assert bits_of(prune(0.1)) == dict.fromkeys(SHAPES, 32.0)


def test_binarized_pruned_kernels_contain_no_zero_and_take_one_bit():
    trainer = trained(prune(0.9), rounding())
    shipped = shipped_weights(trainer, 12)["model"]
    for name in SHAPES:
        latent = trainer.networks["model"].variables[name].numpy()
        assert (latent == 0).sum() == round(0.9 * latent.size)
        assert set(np.unique(shipped[name])) <= {-1.0, 1.0}
        assert (shipped[name][latent == 0] == 1).all()
    assert stored_bits(trainer) == dict.fromkeys(SHAPES, 1.0)


class Later(StatelessHook):
    after, priority = ("incremental_quantization", "bnn_rounding"), 100

    def __init__(self, factor, ramp=0.0):
        super().__init__("later")
        self.factor, self.ramp = factor, ramp

    def transform_weights(self, weights, context):
        ramps = {name: tf.reshape(tf.range(math.prod(SHAPES[name]), dtype=tf.float32), SHAPES[name]) for name in SHAPES}
        return {**weights, **{name: self.factor * weights[name] + self.ramp * ramps[name] for name in SHAPES}}


def test_compact_form_is_dropped_if_a_later_hook_leaves_its_levels():
    for quantizer in ("ste_sign", {"name": "dorefa", "k_bit": 3}):
        assert bits_of(rounding(quantizer), Later(1.0)).keys() == SHAPES.keys()
        assert bits_of(rounding(quantizer), Later(1.0, 0.01)) == {}
    assert bits_of(quantization(), Later(1.0)) == dict.fromkeys(SHAPES, 5.0)
    assert bits_of(quantization(), Later(1.1)) == {}


def test_weights_have_the_bit_width_of_their_hook():
    def weight_bits(*hooks):
        trainer = trained(*hooks)
        return shipped_bits(trainer, shipped_weights(trainer, 12))["model"].weights

    assert weight_bits(rounding("magnitude_aware_sign")) == {HIDDEN: 1, LOGITS: 1}
    assert weight_bits(quantization()) == {HIDDEN: 5, LOGITS: 5}
    assert weight_bits(prune(0.5)) == {}
    assert weight_bits(rounding(), Later(0.5)) == {HIDDEN: 1, LOGITS: 1}
    assert weight_bits(rounding(), Later(1.0, 1.0)) == {}  # off their levels


def test_shipped_weights_equal_those_of_evaluation():
    trainer = trained(named(BnnRounding(stochastic=True, input_quantizer=None, all_binary=True), "bnn_rounding"))
    network = trainer.networks["model"]
    before = values_of(network)
    shipped = shipped_weights(trainer, 12)["model"]
    assert shipped.keys() == network.trainable_variables.keys()
    for name in SHAPES:
        np.testing.assert_array_equal(shipped[name], np.where(before[name] >= 0, 1.0, -1.0))  # no draw
    np.testing.assert_array_equal(shipped["hidden/bias"], before["hidden/bias"])
    np.testing.assert_equal(values_of(network), before)


def test_moving_statistics_are_shipped_as_used_in_evaluation():
    class Double(StatelessHook):
        def transform_weights(self, weights, context):
            return weights | {name: 2.0 * each for name, each in context.state.items() if each.dtype.is_floating}

    network = toy_network(dropout=0.5)
    loop = toy_loop([], network=network)
    loop.run(0, 3)
    shipped = shipped_weights(Trainer([network], loop.trainer.objectives, [Double()], seed=0), 3)["model"]
    assert shipped.keys() == network.weights.keys() < network.variables.keys()
    for name, value in shipped.items():
        factor = 2.0 if "moving" in name else 1.0
        np.testing.assert_array_equal(value, factor * network.variables[name].numpy(), err_msg=name)
