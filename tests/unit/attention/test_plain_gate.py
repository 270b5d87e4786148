"""Attention written out in parts of Keras: the same outputs, the same variables, no layer of our own."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.attention.area_resize import AreaResize, area_resize
from hooks.attention.plain_gate import OWN, resize, write_out_attention
from hooks.bnn_rounding import BnnRounding
from tests.support.attention import SIDE, attention, image_model, own_branch, prepare
from trainer.errors import UserError
from trainer.export.full_precision import with_values
from trainer.export.plain_model import check_plain, strip_model
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.run.precision import computing_in

layers = keras.layers
INPUTS = np.random.default_rng(0).normal(size=(6, SIDE, SIDE, 1)).astype(np.float32)
DILATED = {"filters": [4, 3], "dilations": [1, 2]}


def binary_model() -> keras.Model:
    """Return convolutions with batch norm and hard_tanh, whose middle one becomes binary."""
    inputs = x = keras.Input((SIDE, SIDE, 1), name="image")
    for number in (1, 2, 3):
        x = layers.Conv2D(4, 3, padding="same", use_bias=False, name=f"conv_{number}")(x)
        x = layers.BatchNormalization(name=f"norm_{number}")(x)
        x = layers.Activation("hard_tanh", name=f"activation_{number}")(x)
    return keras.Model(inputs, layers.Dense(3, name="logits")(layers.Flatten()(x)), name="net")


def prepared(hooks: Sequence[GraphHook], model: keras.Model) -> tuple[Network, keras.Model]:
    """Return a network whose attention says something, and its model without what hooks put in."""
    trainer = prepare(hooks, model)
    network = trainer.networks["model"]
    generator = np.random.default_rng(1)
    for variable in network.model.trainable_variables:
        if variable.path.endswith("attention_logits/kernel"):
            variable.assign(generator.normal(scale=5.0, size=variable.shape))
    return network, strip_model(trainer, "model")


@pytest.mark.parametrize("options", [
    {}, {"eval_mode": "threshold"}, {"mode": "product", "eval_mode": "threshold"},
    {"mode": "product", "eval_mode": "sample"},
    {"join": "concatenate"}, {"branch_input": "input"}, {"branch_input": "input", "join": "concatenate"},
    {"temperature": 0.3, "eval_mode": "threshold"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("binary", [False, True])
def test_outputs_and_variables_are_those_of_the_evaluation(options, binary: bool, tmp_path):
    hooks: list[GraphHook] = [attention(**{"branch": DILATED, "temperature": 0.8, **options})]
    if binary:
        hooks.append(BnnRounding())
        hooks[-1].name = "bnn_rounding"
    network, plain = prepared(hooks, binary_model() if binary else image_model())
    assert any(isinstance(each, OWN) for each in network.model._flatten_layers())
    check_plain(plain, "sparse")
    assert {id(each) for each in plain.weights} == {id(each) for each in network.model.weights}
    expected = network.model(INPUTS, training=False).numpy()
    np.testing.assert_allclose(plain(INPUTS, training=False).numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(with_values(plain, plain)(INPUTS).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_gate_counts_and_a_saved_file_gives_the_same(tmp_path):
    network, plain = prepared([attention(branch=DILATED, eval_mode="threshold")], image_model())
    expected = plain(INPUTS).numpy()
    plain.save(tmp_path / "plain.keras")
    loaded = keras.saving.load_model(tmp_path / "plain.keras")
    np.testing.assert_allclose(loaded(INPUTS).numpy(), expected, rtol=1e-6, atol=1e-6)
    for variable in network.model.trainable_variables:
        if variable.path.endswith("attention_logits/bias"):
            variable.assign(variable.value - 100.0)  # the gate is closed
    assert np.abs(plain(INPUTS).numpy() - expected).max() > 1e-3
    assert [each.name for each in plain.layers if each.name.startswith("conv")] == ["conv_1", "conv_2"]


@pytest.mark.parametrize("branch_input", ["features", "input"])
def test_a_copy_of_a_network_in_half_precision_computes_in_float32_all_through(branch_input: str):
    with computing_in("bfloat16"):
        network, plain = prepared([attention(branch=DILATED, branch_input=branch_input)], image_model())
    np.testing.assert_allclose(np.float32(plain(INPUTS)), np.float32(network.model(INPUTS, training=False)), atol=0.02)
    full = with_values(plain, plain, full=True)
    exact_network, _ = prepared([attention(branch=DILATED, branch_input=branch_input)], image_model())
    for variable, given in zip(exact_network.model.variables, network.model.variables, strict=True):
        variable.assign(given.value)
    expected = exact_network.model(INPUTS, training=False).numpy()
    np.testing.assert_allclose(full(INPUTS).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_branch_of_the_users_own_stays():
    network, plain = prepared([attention(branch=own_branch(3))], image_model())
    assert [each for each in plain._flatten_layers() if each.name == "own"] == [
        each for each in network.model._flatten_layers() if each.name == "own"
    ]


@pytest.mark.parametrize(("height", "width"), [(4, 4), (3, 5), (8, 8), (11, 9)])
def test_maps_are_resized_as_the_layer_resizes_them(height: int, width: int):
    maps = np.random.default_rng(0).normal(size=(3, 8, 6, 2)).astype(np.float32)
    found = resize(AreaResize(height, width), tf.constant(maps))
    np.testing.assert_allclose(found, area_resize(tf.constant(maps), (height, width)), rtol=1e-5, atol=1e-6)


def test_a_gate_that_draws_in_evaluation_is_refused_in_one_line():
    hook = attention(eval_mode="sample")
    trainer = prepare([hook], image_model())
    with pytest.raises(UserError) as caught:
        strip_model(trainer, "model")
    assert "eval_mode=sample draws a mask in every evaluation, which no exported network does." in str(caught.value)
    assert "Expected a run with eval_mode=expectation or eval_mode=threshold." in str(caught.value)


def test_models_without_attention_are_returned_as_they_are():
    model = image_model()
    assert write_out_attention(model) is model
    assert strip_model(prepare([attention(mode="none", eval_mode="sample")], model), "model") is model
