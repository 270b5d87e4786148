"""Bernoulli attention beside hooks that round, prune and freeze, and from a config."""

from __future__ import annotations

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from omegaconf import OmegaConf

from hooks.added_layers import is_added
from hooks.bernoulli_attention import BernoulliAttention
from hooks.bnn_rounding import BnnRounding
from hooks.frozen_mask import FrozenMask
from hooks.incremental_quantization import IncrementalQuantization
from hooks.prune import Prune
from hooks.quantization.kernel_layers import is_kernel_layer
from hooks.quantization.selection import choose_kernel_layers
from tests.support.attention import CLASSES, SIDE, attention, image_loop, image_model, prepare, square_batch
from tests.support.command import run_small
from tests.support.masking import build_hooks
from tests.support.toy import ToyObjective
from trainer.config.build import bind, build
from trainer.errors import UserError
from trainer.network import Network
from trainer.order import order_hooks
from trainer.run.shipped import shipped_weights
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "hooks" / "bernoulli_attention.yaml"
layers = keras.layers


def named(hook, name: str):
    hook.name = name
    return hook


def binary_model() -> keras.Model:
    """Return three convolutions with batch norm and hard_tanh, and a dense layer: the middle ones become binary."""
    inputs = x = keras.Input((SIDE, SIDE, 1), name="image")
    for number in (1, 2, 3):
        x = layers.Conv2D(4, 3, padding="same", use_bias=False, name=f"conv_{number}")(x)
        x = layers.BatchNormalization(name=f"norm_{number}")(x)
        x = layers.Activation("hard_tanh", name=f"activation_{number}")(x)
    x = layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="logits")(x), name="net")


@pytest.mark.parametrize("branch_input", ["features", "input"])
@pytest.mark.parametrize("join", ["replace", "concatenate"])
def test_rounding_leaves_the_branch_in_full_precision_and_the_network_as_binary_as_without(join, branch_input):
    alone = choose_kernel_layers(BnnRounding().rebuild_model(binary_model()), "*", all_binary=False)
    rounding = named(BnnRounding(), "bnn_rounding")
    trainer = prepare([attention(join=join, branch_input=branch_input), rounding], binary_model())
    assert [hook.name for hook in trainer.hooks] == ["bnn_rounding", "bernoulli_attention"]
    assert set(rounding.summary()["kernel_entries"]) == set(alone.layers) == {"conv_2", "conv_3"}
    assert set(rounding.summary()["full_precision"]) == {"conv_1", "logits"}
    shipped = shipped_weights(trainer, 0)["model"]
    assert rounding.stored_bits(shipped).keys() == {"conv_2/kernel", "conv_3/kernel"}
    assert trainer.hooks[1].summary()["layer"] == "conv_2_input_quantizer"


def test_a_binary_layer_sees_signs_and_zeros_where_the_gate_drops():
    trainer = prepare([attention(), named(BnnRounding(), "bnn_rounding")], binary_model())
    model = trainer.networks["model"].model
    gate = model.get_layer("attention_gate")
    values = keras.Model(model.input, gate.output)(square_batch(tf.constant(0, tf.int64))["inputs"], training=True)
    gated, mask = (value.numpy() for value in values)
    assert set(np.unique(gated)) == {-1.0, 0.0, 1.0}
    np.testing.assert_array_equal(gated == 0, np.broadcast_to(mask == 0, gated.shape))
    loop = ChunkLoop(trainer, square_batch, xla=False)
    loop.run(0, 3)
    assert np.isfinite(loop.accumulators.read()["loss/total"])


def test_a_gate_before_a_quantizer_is_refused():
    with pytest.raises(UserError, match="Expected layer=conv_2_input_quantizer, or one with a batch norm between"):
        prepare([attention(layer="activation_1"), named(BnnRounding(), "bnn_rounding")], binary_model())


def test_pruning_and_freezing_leave_the_branch_alone():
    hooks = [
        named(Prune(schedule="one_shot", final_sparsity=0.5), "prune"),
        named(FrozenMask(masks="hook", hook="prune"), "frozen_mask"),
        attention(),
    ]
    loop = image_loop_with_states(hooks)
    loop.run(0, 3)
    network = loop.trainer.networks["model"]
    for name, variable in network.trainable_variables.items():
        zeros = float(np.mean(variable.numpy() == 0.0))
        if name.endswith("/kernel") and "attention" not in name:
            assert zeros == pytest.approx(0.5, abs=0.05), name
        elif name.endswith("/kernel"):
            assert zeros < 0.2, name
    assert not any("attention" in name for hook in hooks for name in hook.state())


def test_quantizing_step_by_step_leaves_the_branch_alone():
    hook = named(IncrementalQuantization(), "incremental_quantization")
    loop = image_loop_with_states([hook, attention()])
    assert hook.state()
    loop.run(0, 2)
    shipped = shipped_weights(loop.trainer, 2)["model"]
    assert any("attention" in name for name in shipped)
    assert not any("attention" in name for name in (*hook.state(), *hook.stored_bits(shipped)))


def image_loop_with_states(hooks) -> ChunkLoop:
    """Return a loop in which hooks read one another's states, as a run gives them."""
    network = Network("model", image_model(), keras.optimizers.Adam(0.01))
    for hook in order_hooks(hooks):
        network.model = hook.rebuild_model(network.model)
        network.taps |= hook.request_taps(network.model)
    network.optimizer.build(network.model.trainable_variables)
    return ChunkLoop(Trainer([network], [ToyObjective()], build_hooks(hooks, network), seed=0), square_batch, xla=False)


def test_only_the_branch_is_marked_as_added():
    model = attention().rebuild_model(image_model())
    added = {layer.name for layer in model._flatten_layers() if is_added(layer) and layer.weights}
    assert added == {"attention_branch", "attention_conv_1", "attention_logits"}
    assert not any(is_kernel_layer(layer) for layer in model.get_layer("attention_branch").layers)
    assert is_kernel_layer(model.get_layer("conv_1"))


def test_a_gate_after_every_convolution_can_run_beside_another():
    low, high = attention(), named(attention(layer="conv_2"), "high")
    loop = image_loop([low, high])
    loop.run(0, 1)
    assert {"attention/mean", "high/mean"} <= set(loop.accumulators.read())


def test_a_branch_is_built_from_an_import_path():
    node = {
        "_target_": "hooks.bernoulli_attention.BernoulliAttention",
        "branch": {"_target_": "tests.support.attention.own_branch", "kernel_size": 5},
    }
    with pytest.raises(UserError, match="own_branch is not allowed.*add plugins=.tests."):
        bind(node, group="hooks")
    hook = build(node, group="hooks", plugins=["tests"])
    assert isinstance(hook, BernoulliAttention)
    assert "own/kernel" in {variable.path for variable in hook.rebuild_model(image_model()).variables}
    with pytest.raises(UserError, match="Unknown argument 'units' for tests.support.attention.own_branch"):
        bind({**node, "branch": {**node["branch"], "units": 3}}, group="hooks", plugins=["tests"])


def test_the_config_file_holds_every_argument_with_its_default():
    (config,) = OmegaConf.to_container(OmegaConf.load(CONFIG)).values()
    assert config.pop("_target_") == "hooks.bernoulli_attention.BernoulliAttention"
    assert config.pop("objective") == "*"  # of every graph hook, beside its own arguments
    assert config == {key: each.default for key, each in inspect.signature(BernoulliAttention).parameters.items()}


def test_a_recipe_of_dense_layers_says_in_one_line_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="'mlp' has no 2-D convolution, so there is no map .* to gate. Expected a conv"):
        run_small("bnn", "+hooks=bernoulli_attention", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", [pytest.param("bnn", marks=pytest.mark.long), "frozen_mask"])
def test_recipes_on_images_train_with_attention_and_repeat_exactly(recipe: str, tmp_path):
    overrides = [
        "+hooks=bernoulli_attention",
        "hooks.bernoulli_attention.keep_rate={target: 0.6}",
        "hooks.bernoulli_attention.branch={filters: [4]}",
        "model=plain_cnn",
        "model.filters=[4,8]",
        "model.activation=hard_tanh",
        "data=cluttered",
        "data.train_examples=200",
        "trainer.epochs=1",
    ]
    first, second = (run_small(recipe, *overrides, run_dir=tmp_path / name) for name in ("first", "second"))
    assert first["test"] == second["test"]
    assert {"metric/attention/mass_in_box", "metric/attention/mean"} <= set(first["test"])
    assert first["hooks"]["bernoulli_attention"]["map"][:2] == [10, 10]
    assert list((tmp_path / "first" / "pictures").rglob("*.png"))
