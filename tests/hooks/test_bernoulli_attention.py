"""Bernoulli attention in real training steps: draws, gradients, losses, evaluation, other hooks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.frozen_mask import FrozenMask
from hookline.hooks.prune import Prune
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration
from hookline.trainer.run.state import shipped_weights
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from tests.support.attention import BATCH, attention, binary_model, image_loop, image_model, prepare, square_batch
from tests.support.hooked import named
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, toy_network, values_of


def seeded(seed: int, *hooks, **options) -> ChunkLoop:
    """Return a loop with attention, with the seeds set as a run sets them."""
    keras.utils.set_random_seed(seed)
    return image_loop([attention(**options), *hooks])


def network_of(loop: ChunkLoop):
    return loop.trainer.networks["model"]


class Recorder(StatelessHook):
    """Keep the mask of every step."""

    after = ("bernoulli_attention",)

    def build(self, context):
        self.masks = tf.Variable(tf.zeros([6, BATCH, 4, 4, 1]), trainable=False)

    def declare(self):
        return Declaration({"masks": self.masks})

    def update_ops(self, context):
        index = tf.reshape(tf.cast(context.step, tf.int32), [1, 1])
        return [self.masks.scatter_nd_update(index, context.taps["bernoulli_attention/mask"][tf.newaxis])]


def test_each_step_draws_new_masks_from_the_seed_and_trains_the_branch():
    loop = seeded(2, recorder := Recorder("recorder"), branch={"filters": [4], "initial_keep_rate": 0.5})
    before, seeds = values_of(network_of(loop)), []
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        seeds.append(prepare([attention()]).networks["model"].model.get_layer("attention_gate").seed_generator.state)
    assert seeds[0].numpy().tolist() != seeds[1].numpy().tolist()
    loop.run(0, 6)
    masks, measures, after = recorder.masks.numpy(), loop.accumulators.read(), values_of(network_of(loop))
    assert set(np.unique(masks)) == {0.0, 1.0}
    assert len(np.unique(masks.reshape(6 * BATCH, 16), axis=0)) == 6 * BATCH  # no two examples or steps share one
    assert measures["attention/keep_rate"] == pytest.approx(masks.mean(), abs=1e-6)
    assert measures["attention/mean"] == pytest.approx(0.5, abs=0.05)
    assert {name for name in measures if name.startswith("loss/")} == {"loss/cross_entropy", "loss/total"}
    branch = [name for name in network_of(loop).trainable_variables if name.startswith("attention_branch/")]
    assert len(branch) == 4
    assert not any(np.array_equal(after[name], before[name]) for name in branch)
    evaluator = Evaluator(loop.trainer, square_batch, 2)
    assert evaluator.run(0) == evaluator.run(0)
    for name, value in values_of(network_of(loop)).items():  # an evaluation advances no seed
        np.testing.assert_array_equal(value, after[name])


def test_mode_none_keeps_the_model_and_mode_product_draws_nothing():
    model, hook = image_model(), attention(mode=None, supervision={"key": "no_such_map"})
    assert hook.rebuild_model(model) is model
    loop = image_loop([hook], model)
    loop.run(0, 1)
    evaluated = Evaluator(loop.trainer, square_batch, 1).run(0)
    assert not any("attention" in name for name in {*loop.accumulators.read(), *evaluated})
    loop = seeded(0, mode="product")
    loop.run(0, 1)
    assert not any("seed" in name for name in network_of(loop).state_variables)
    assert "attention/keep_rate" not in loop.accumulators.read()


def test_requested_losses_are_added_and_supervision_ends_after_its_epochs():
    asked = {"temperature": 2.0, "keep_rate": {"target": 0.2, "weight": 2.0}, "entropy": 0.5}
    loop = seeded(0, **asked, supervision={"weight": 3.0, "epochs": 0.5})  # 2 of 4 steps
    loop.run(0, 1)
    values = loop.accumulators.read()
    at, target = 0.6, 0.2  # at the start A is the same everywhere
    divergence = target * np.log(target / at) + (1 - target) * np.log((1 - target) / (1 - at))
    entropy = -(at * np.log2(at) + (1 - at) * np.log2(1 - at))
    covered = square_batch(tf.constant(0, tf.int64))["map"].numpy().mean()
    cross_entropy = -(covered * np.log(at) + (1 - covered) * np.log(1 - at))
    assert values["loss/attention_keep_rate"] == pytest.approx(2.0 * divergence, rel=1e-4)
    assert values["loss/attention_entropy"] == pytest.approx(0.5 * entropy, rel=1e-4)
    assert values["loss/attention_supervision"] == pytest.approx(3.0 * cross_entropy, rel=1e-4)
    assert values["attention/entropy"] == pytest.approx(entropy, rel=1e-4)
    assert values["attention/mean"] == pytest.approx(at, rel=1e-4)
    assert values["attention/mass_in_box"] == pytest.approx(covered, rel=1e-4)
    for step, supervised in ((1, True), (2, False)):
        loop.accumulators.reset()
        loop.run(step, 1)
        assert (loop.accumulators.read()["loss/attention_supervision"] > 0.0) == supervised


def test_evaluation_metrics_are_exact_means_over_examples():
    trainer = prepare([attention(branch={"filters": [2]})])
    logits = keras.Model(
        trainer.networks["model"].model.input, trainer.networks["model"].model.get_layer("attention_map").output
    )
    trainer.networks["model"].variables["attention_branch/attention_logits/kernel"].assign(np.ones((1, 1, 2, 1)))

    def padded(index):
        """Return the first 12 examples in batches of 8, the rest marked as padding."""
        rows = index * 8 + tf.range(8, dtype=tf.int64)
        return {**square_batch(index), "weights": tf.cast(rows < 12, tf.float32)}

    values = Evaluator(trainer, padded, 2).run(0)
    batches = [square_batch(tf.constant(index, tf.int64)) for index in range(2)]
    images, maps = (np.concatenate([batch[key] for batch in batches])[:12] for key in ("inputs", "map"))
    a = logits(images).numpy()[..., 0].astype(np.float64)
    covered = maps.reshape(12, 4, 2, 4, 2).mean(axis=(2, 4))
    assert values["metric/attention/mean"] == pytest.approx(a.mean(), rel=1e-5)
    mass = (a * covered).sum(axis=(1, 2)) / a.sum(axis=(1, 2))
    assert values["metric/attention/mass_in_box"] == pytest.approx(mass.mean(), rel=1e-5)
    entropy = -(a * np.log2(a) + (1 - a) * np.log2(1 - a))
    assert values["metric/attention/entropy"] == pytest.approx(entropy.mean(), rel=1e-4)


def test_invalid_options_and_networks_are_named_in_the_error():
    assert_refused("convolution", attention().rebuild_model, toy_network().model)
    assert_refused("supervision.key=mask", seeded, 0, supervision={"key": "mask"})
    inputs = keras.Input((None, None, 1))
    maps = keras.layers.Conv2D(2, 3)(keras.layers.Conv2D(2, 3, name="conv")(inputs))
    with pytest.raises(UserError, match="branch_input=input"):
        attention(branch_input="input").rebuild_model(keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(maps)))


# Together with hooks that round, prune and freeze.


def test_binary_layer_sees_signs_and_zeros_where_the_gate_drops():
    rounding = named(BnnRounding())
    trainer = prepare([attention(), rounding], binary_model())
    assert [hook.name for hook in trainer.hooks] == ["bnn_rounding", "bernoulli_attention"]
    assert set(rounding.summary()["kernel_entries"]) == {"conv_2", "conv_3"}  # but not the branch
    stored = rounding.shipped_bits(shipped_weights(trainer, 0)["model"]).stored
    assert stored.keys() == {"conv_2/kernel", "conv_3/kernel"}
    assert trainer.hooks[1].summary()["layer"] == "conv_2_input_quantizer"
    with pytest.raises(UserError, match="conv_2_input_quantizer"):
        prepare([attention(layer="activation_1"), named(BnnRounding())], binary_model())
    model = trainer.networks["model"].model
    gate = model.get_layer("attention_gate")
    values = keras.Model(model.input, gate.output)(square_batch(tf.constant(0, tf.int64))["inputs"], training=True)
    gated, mask = (value.numpy() for value in values)
    assert set(np.unique(gated)) == {-1.0, 0.0, 1.0}
    np.testing.assert_array_equal(gated == 0, np.broadcast_to(mask == 0, gated.shape))


def test_pruning_and_freezing_leave_the_branch_alone():
    pruning = named(Prune(schedule="one_shot", final_sparsity=0.5), "prune")
    freezing = named(FrozenMask(masks="hook", hook="prune"), "frozen_mask")
    prepare([pruning, freezing, attention()])
    for hook in (pruning, freezing):
        assert len(hook.declare().projected) > 0
        assert not any("attention" in name for name in {*hook.declare().state, *hook.declare().projected})
