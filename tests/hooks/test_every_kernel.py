"""Kernels of attention, einsums, embeddings, recurrent cells, convolutions: covered by "*" or reported as left out."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.bop import Bop
from hookline.hooks.frozen_mask import FrozenMask
from hookline.hooks.incremental_quantization import IncrementalQuantization
from hookline.hooks.prune import Prune
from hookline.hooks.quantization_aware_training import QuantizationAwareTraining
from hookline.hooks.weight_clustering import WeightClustering
from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from tests.support.hooked import named
from tests.support.masking import build_hooks, small_network
from tests.support.toy import BATCH, CLASSES, build_context, network_of, toy_loop, values_of

WORDS, LENGTH, WIDTH = 12, 2, 8


class Positions(keras.layers.Layer):
    """Add a table that is no kernel by any naming convention."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, inputs):
        return inputs + self.table


class Tied(keras.layers.Layer):
    """Apply the transposed kernel of another layer."""

    def __init__(self, source, **options):
        super().__init__(**options)
        self.kernel = source.kernel

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.transpose(self.kernel))


def sequence_network() -> Network:
    """Return a word network with many kinds of kernels, a custom table and biases with two axes."""
    layers = keras.layers
    words = keras.Input((LENGTH,), dtype="int32")
    x = Positions(name="positions")(layers.Embedding(WORDS, WIDTH, name="words")(words))
    x = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    einsum = layers.EinsumDense("abc,cd->abd", (None, WIDTH), name="einsum")
    x = einsum(x)
    x = Tied(einsum, name="tied")(x)
    x = layers.SeparableConv1D(WIDTH, 3, padding="same", name="separable")(x)
    x = layers.Conv1DTranspose(WIDTH, 3, padding="same", name="transposed")(x)
    x = layers.GRU(4, unroll=True, name="gru")(x)
    return network_of(keras.Model(words, layers.Dense(CLASSES, name="logits")(x)))


def word_batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
    words = tf.random.stateless_uniform([BATCH, LENGTH], tf.stack([step, 0]), 0, WORDS, tf.int32)
    return {"inputs": words, "targets": tf.cast(words[:, 0] % CLASSES, tf.int64)}


def kernels_of(network: Network) -> dict[str, np.ndarray]:
    return {
        name: value
        for name, value in values_of(network).items()
        if name in network.trainable_variables and value.ndim > 1 and "bias" not in name and "positions" not in name
    }


def test_kernels_of_every_layer_are_covered_and_counted():
    network = sequence_network()
    hook = named(Prune(schedule="one_shot", final_sparsity=0.75), "prune")
    loop = toy_loop([hook], network=network, batch=word_batch)
    loop.run(0, 3)
    kernels = kernels_of(network)
    assert len(kernels) == 12
    assert {each.rpartition("/")[2] for each in kernels} >= {"embeddings", "recurrent_kernel", "pointwise_kernel"}
    for name, kernel in kernels.items():
        assert (kernel == 0).sum() == round(0.75 * kernel.size), name
    entries = sum(each.size for each in kernels.values())
    share = sum((each == 0).sum() for each in kernels.values()) / (entries + LENGTH * WIDTH)
    assert loop.accumulators.read()["sparsity/network"] == pytest.approx(share, rel=1e-5)
    summary = hook.summary()
    assert summary["network"]["entries"] == entries + LENGTH * WIDTH
    assert summary["network"]["sparsity"] == pytest.approx(share, abs=1e-6)
    for other in (IncrementalQuantization(), FrozenMask()):
        other.build(build_context(network))
        assert other.declare().projected == set(kernels)


def test_kernels_left_out_by_a_star_are_reported_with_their_share(run_of):
    network = sequence_network()
    for hook, said in (
        (Prune(), "leaves 16 of 868 kernel entries dense: positions/table"),
        (IncrementalQuantization(), "leaves 16 of 868 "),
        (FrozenMask(), "leaves 16 of 868 "),
        (BnnRounding(input_quantizer=None, all_binary=True), "leaves 576 of 868 "),
        (Prune(layers=["gru_cell", "logits"]), None),
    ):
        hook.build(build_context(network))
        lines = [line for line in hook.advise(run_of(network, 100)) if "kernel entries" in line]
        assert [said in line for line in lines] == ([] if said is None else [True]), lines


def test_hook_that_undoes_another_is_reported(run_of):
    network = sequence_network()
    splicing = named(Prune(schedule="splicing", layers="logits"), "prune")
    following = named(FrozenMask(masks="hook", hook="prune", begin_epoch=0.5), "frozen_mask")
    signs = named(BnnRounding(input_quantizer=None, all_binary=True), "bnn_rounding")
    ternary = named(BnnRounding(input_quantizer=None, all_binary=True, kernel_quantizer="ste_tern"), "ternary")
    hooks = build_hooks([signs, splicing, following, ternary], network)
    run = replace(run_of(network, 1000), hooks=hooks)
    (line,) = (line for line in splicing.advise(run) if "splicing" in line)
    assert "from step 2 on" in line
    assert "hooks.frozen_mask.begin_epoch=49.9." in line
    assert ["its zeros become" in line for line in signs.advise(run) if "prune" in line] == [True]
    assert not [line for line in ternary.advise(run) if "prune" in line]
    clusters = named(WeightClustering(), "weight_clustering")
    small = small_network(keras.optimizers.SGD(0.1))
    hooks = build_hooks([clusters, named(QuantizationAwareTraining(), "quantization_aware_training")], small)
    assert "without a codebook" in clusters.advise(replace(run_of(small, 1000), hooks=hooks))[0]
    with pytest.raises(UserError, match="'frozen_mask' masks '"):
        build_hooks([named(FrozenMask(), "frozen_mask"), named(Bop(all_binary=True), "bop")], network)


def test_structures_apply_only_where_the_axes_are_known():
    network = sequence_network()
    for structure, layers in (({"n_m": [2, 4]}, ["attention/query", "einsum", "transposed"]), ({"block": [4, 4]}, "*")):
        hook = named(Prune(layers=layers, structure=structure, schedule="one_shot"), "prune")
        hook.build(build_context(network))
        latent = {name: tf.convert_to_tensor(each.value) for name, each in network.trainable_variables.items()}
        names = sorted(hook.declare().projected, key=list(latent).index)
        chosen = hook._selector(latent, {name: tf.ones(latent[name].shape, tf.bool) for name in names}, tf.constant(0))
        for name, mask in zip(names, map(np.array, chosen), strict=True):
            assert mask.any(), name
            if layers != "*":
                matrix = mask.transpose(0, 2, 1) if "transposed" in name else mask.reshape(-1, mask.shape[-1])
                inputs = mask.reshape(WIDTH, -1) if "query" in name else matrix.reshape(-1, matrix.shape[-1])
                assert (inputs.reshape(-1, 4, inputs.shape[1]).sum(1) == 2).all(), name  # of 4 inputs per output
    for structure, layers, word in (
        ({"n_m": [2, 4]}, "words", "embeddings"),
        ({"n_m": [2, 4]}, "separable", "depthwise"),
        ("channel", "gru_cell", "GRUCell"),
    ):
        with pytest.raises(UserError, match=word):
            Prune(layers=layers, structure=structure, schedule="one_shot").build(build_context(network))
