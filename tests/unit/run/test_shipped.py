"""The weights that are shipped, and the smallest form that really holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.bnn_rounding import BnnRounding
from hooks.frozen_mask import FrozenMask
from hooks.incremental_quantization import IncrementalQuantization
from hooks.prune import Prune
from hooks.pruning.report import csr_bytes
from tests.support.command import run_small
from tests.support.masking import masked_loop, small_network
from tests.support.toy import StatelessHook, toy_loop, toy_network
from trainer.hook import GraphHook, Tensors
from trainer.run.shipped import shipped_forms, shipped_weights, stored_bits
from trainer.step.context import StepContext
from trainer.step.trainer import Trainer

HIDDEN, LOGITS = "hidden/kernel", "logits/kernel"
SHAPES = {HIDDEN: (6, 8), LOGITS: (8, 3)}


def named(hook: GraphHook, name: str) -> GraphHook:
    hook.name = name
    return hook


def prune(sparsity: float, **options) -> GraphHook:
    return named(Prune(schedule="one_shot", final_sparsity=sparsity, **options), "prune")


def rounding(quantizer="ste_sign") -> GraphHook:
    return named(BnnRounding(kernel_quantizer=quantizer, input_quantizer=None, all_binary=True), "bnn_rounding")


def quantization() -> GraphHook:
    return named(IncrementalQuantization(shares=[0.5, 1.0], step_epochs=1), "incremental_quantization")


def trained(*hooks: GraphHook) -> Trainer:
    """Return a trainer after 12 steps, in the middle of which the toy's last mask or level is set."""
    loop = masked_loop(hooks, small_network(keras.optimizers.Adam(0.01), units=8))
    loop.run(0, 12)
    return loop.trainer


def bits_of(*hooks: GraphHook) -> dict[str, float]:
    return stored_bits(trained(*hooks), 12)["model"]


def sparse_bits(name: str, sparsity: float) -> float:
    inputs, outputs = SHAPES[name]
    kept = inputs * outputs - round(sparsity * inputs * outputs)
    return 8 * csr_bytes(inputs, outputs, kept) / (inputs * outputs)


def test_what_no_hook_stores_otherwise_is_not_listed():
    assert bits_of() == {}
    assert bits_of(named(FrozenMask(fraction=0.5), "frozen_mask")) == {}


def test_pruned_kernels_are_stored_sparse_or_dense_whichever_is_smaller():
    assert bits_of(prune(0.9)) == {name: sparse_bits(name, 0.9) for name in SHAPES}
    assert max(sparse_bits(name, 0.9) for name in SHAPES) < 32
    assert bits_of(prune(0.1)) == dict.fromkeys(SHAPES, 32.0)


@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_pruned_kernels_under_a_sign_hold_no_zero_and_take_a_bit(sparsity: float):
    trainer = trained(prune(sparsity), rounding())
    shipped = shipped_weights(trainer, 12)["model"]
    for name in SHAPES:
        assert set(np.unique(shipped[name])) <= {-1.0, 1.0}
        latent = trainer.networks["model"].variables[name].numpy()
        assert (latent == 0).sum() == round(sparsity * latent.size)
        assert (shipped[name][latent == 0] == 1).all()
    assert stored_bits(trainer, 12)["model"] == dict.fromkeys(SHAPES, 1.0)


def test_zeros_under_a_sign_give_no_gain_even_where_the_sparse_form_of_the_latent_kernel_would_be_smaller():
    network = small_network(keras.optimizers.SGD(0.01), units=2000)
    loop = masked_loop([prune(1.0), rounding()], network)
    loop.run(0, 2)
    latent_bits = 8 * csr_bytes(6, 2000, 1) / 12_000
    assert latent_bits < 1
    assert stored_bits(loop.trainer, 2)["model"][HIDDEN] == 1.0


def test_zeros_that_a_ternary_quantizer_keeps_are_stored_in_the_smaller_form():
    few = bits_of(prune(0.5), rounding("ste_tern"))
    assert few == dict.fromkeys(SHAPES, 2.0)
    trainer = trained(prune(1.0), rounding("ste_tern"))
    shipped = shipped_weights(trainer, 12)["model"][HIDDEN]
    assert np.count_nonzero(shipped) <= 1
    assert stored_bits(trainer, 12)["model"][HIDDEN] == min(2.0, 8 * csr_bytes(6, 8, np.count_nonzero(shipped)) / 48)


@pytest.mark.parametrize("sparsity", [0.5, 0.95])
def test_powers_of_two_and_pruning_take_the_smaller_of_two_forms_that_both_hold_the_values(sparsity: float):
    hooks = quantization(), prune(sparsity)
    trainer = trained(*hooks)
    for name, value in shipped_weights(trainer, 12)["model"].items():
        if name in SHAPES:
            magnitudes = np.log2(np.abs(value[value != 0]))
            assert (magnitudes == np.round(magnitudes)).all()
            assert (value == 0).sum() >= round(sparsity * value.size)
    found = stored_bits(trainer, 12)["model"]
    for name in SHAPES:
        values = shipped_weights(trainer, 12)["model"][name]
        sparse = 8 * csr_bytes(*SHAPES[name], np.count_nonzero(values)) / values.size
        assert found[name] == min(5.0, sparse)
    assert min(found.values()) == 5.0  # and not the sparse form, whose hook comes later


class Scale(StatelessHook):
    """Multiply every kernel in evaluation."""

    after = ("incremental_quantization", "bnn_rounding")
    priority = 100

    def __init__(self, factor: float) -> None:
        super().__init__("scale")
        self.factor = factor

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        return {name: self.factor * value if name in SHAPES else value for name, value in weights.items()}


def test_a_form_that_cannot_hold_what_a_later_hook_leaves_does_not_count():
    assert bits_of(quantization(), Scale(1.0)) == dict.fromkeys(SHAPES, 5.0)
    assert bits_of(quantization(), Scale(1.1)) == {}


class Noise(Scale):
    """Add something to every entry, so that no two are equal."""

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        return {
            name: value + self.factor * tf.reshape(tf.range(math.prod(SHAPES[name]), dtype=tf.float32), SHAPES[name])
            if name in SHAPES
            else value
            for name, value in weights.items()
        }


@pytest.mark.parametrize("quantizer", ["ste_sign", "magnitude_aware_sign", {"name": "dorefa", "k_bit": 3}])
def test_bits_that_cannot_tell_the_values_apart_do_not_count(quantizer):
    assert bits_of(rounding(quantizer), Noise(0.0)).keys() == SHAPES.keys()
    assert bits_of(rounding(quantizer), Noise(0.01)) == {}


class Wasteful(StatelessHook):
    """Store every kernel in 40 bits."""

    def stored_bits(self, shipped: Mapping[str, np.ndarray]) -> dict[str, float]:
        return dict.fromkeys(SHAPES, 40.0)


def test_a_form_larger_than_a_float_is_not_used():
    assert bits_of(Wasteful()) == dict.fromkeys(SHAPES, 32.0)


def test_shipped_weights_are_those_of_evaluation_and_reading_them_changes_nothing():
    trainer = trained(named(BnnRounding(stochastic=True, input_quantizer=None, all_binary=True), "bnn_rounding"))
    network = trainer.networks["model"]
    before = {name: variable.numpy() for name, variable in network.variables.items()}
    shipped = shipped_weights(trainer, 12)["model"]
    assert shipped.keys() == network.trainable_variables.keys()
    for name in SHAPES:
        np.testing.assert_array_equal(shipped[name], np.where(before[name] >= 0, 1.0, -1.0))  # no draw
    np.testing.assert_array_equal(shipped["hidden/bias"], before["hidden/bias"])
    for name, variable in network.variables.items():
        np.testing.assert_array_equal(variable.numpy(), before[name])


def test_moving_statistics_are_shipped_as_evaluation_uses_them_and_seed_state_is_not():
    class Double(StatelessHook):
        def transform_statistics(self, state, context):
            return {name: 2.0 * value if value.dtype.is_floating else value for name, value in state.items()}

    network = toy_network(dropout=0.5)
    loop = toy_loop([], network=network)
    loop.run(0, 3)
    shipped = shipped_weights(Trainer([network], loop.trainer.objectives, [Double()], seed=0), 3)["model"]
    assert shipped.keys() == network.weights.keys() < network.variables.keys()
    for name, value in shipped.items():
        factor = 2.0 if "moving" in name else 1.0
        np.testing.assert_array_equal(value, factor * network.variables[name].numpy(), err_msg=name)


def test_a_run_of_both_recipes_reports_a_size_that_can_be_stored(tmp_path):
    alone = run_small("bnn", "hooks.bnn_rounding.all_binary=true", run_dir=tmp_path / "bnn")
    both = run_small("[bnn,frozen_mask]", "hooks.bnn_rounding.all_binary=true", run_dir=tmp_path / "both")
    assert both["hooks"]["prune"]["total"]["sparsity"] == pytest.approx(0.9, abs=0.01)
    assert both["bytes"] == alone["bytes"]


def forms_of(*hooks: GraphHook):
    return shipped_forms(trained(*hooks), 12)["model"]


def test_weights_are_multiplied_in_the_bits_of_their_hook_and_pruned_ones_as_floats() -> None:
    assert forms_of(rounding()).weight_bits == {HIDDEN: 1, LOGITS: 1}
    assert forms_of(rounding("magnitude_aware_sign")).weight_bits == {HIDDEN: 1, LOGITS: 1}
    assert forms_of(quantization()).weight_bits == {HIDDEN: 5, LOGITS: 5}
    assert forms_of(prune(0.5)).weight_bits == {}


def test_weights_that_a_later_hook_moves_off_their_levels_are_floats() -> None:
    assert forms_of(rounding(), named(Halves(), "halves")).weight_bits == {HIDDEN: 1, LOGITS: 1}
    assert forms_of(rounding(), named(Ramp(), "ramp")).weight_bits == {}


class Halves(StatelessHook):
    priority = 90

    def transform_weights(self, weights, context):
        return {name: 0.5 * value for name, value in weights.items()}


class Ramp(StatelessHook):
    priority = 90

    def transform_weights(self, weights, context):
        return {
            name: value + tf.reshape(tf.range(tf.size(value), dtype=tf.float32), value.shape)
            for name, value in weights.items()
        }
