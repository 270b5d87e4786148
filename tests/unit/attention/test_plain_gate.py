"""Attention written out in parts of Keras: the same outputs, the same variables, no layer of our own."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import pytest

from hookline.deploy.plain_model import check_plain, strip_model, with_values
from hookline.hooks.attention.gate import OWN
from hookline.hooks.bnn_rounding import BnnRounding
from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from tests.support.attention import SIDE, attention, image_model, prepare

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


@pytest.mark.parametrize(
    ("options", "binary"),
    [
        ({"temperature": 0.3, "eval_mode": "threshold"}, False),
        ({"mode": "product", "eval_mode": "sample"}, False),
        ({"branch_input": "input", "join": "concatenate"}, False),
        ({}, True),
    ],
    ids=str,
)
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
    plain.save(tmp_path / "plain.keras")
    loaded = keras.saving.load_model(tmp_path / "plain.keras")
    np.testing.assert_allclose(loaded(INPUTS).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_gate_that_draws_in_evaluation_is_refused():
    hook = attention(eval_mode="sample")
    trainer = prepare([hook], image_model())
    with pytest.raises(UserError, match="eval_mode=sample"):
        strip_model(trainer, "model")
    model = image_model()
    assert strip_model(prepare([attention(mode="none", eval_mode="sample")], model), "model") is model
