"""Layers of hooks say what they compute at inference."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from hooks.gradients.layers import StopGradients
from hooks.quantization.input_quantizer import InputQuantizer
from hooks.quantization.quantizers import FUNCTIONS, KERNEL_ONLY
from tests.support.packed import layers
from trainer.errors import UserError
from trainer.export.describe import described_op
from trainer.export.keras_graph import keras_graph


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - KERNEL_ONLY))
def test_every_input_quantizer_has_an_operation(name: str):
    op = {"dorefa": {"op": "round", "bits": 2}, "ste_tern": {"op": "ternary", "threshold": 0.05}}
    assert described_op(InputQuantizer(name)) == op.get(name, {"op": "sign"})


def test_arguments_of_quantizers_are_told():
    assert described_op(InputQuantizer({"name": "dorefa", "k_bit": 5})) == {"op": "round", "bits": 5}
    assert described_op(InputQuantizer({"name": "ste_tern", "threshold": 1})) == {"op": "ternary", "threshold": 1.0}


def test_a_threshold_that_is_a_batch_s_is_no_operation():
    quantizer = InputQuantizer({"name": "ste_tern", "ternary_weight_networks": True}, name="before")
    assert described_op(quantizer) is None
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(2)(quantizer(inputs)), name="net")
    with pytest.raises(UserError, match=r"no operation for before \(InputQuantizer\) of 'net'\. Expected a network"):
        keras_graph(model)


def test_layers_for_gradients_and_layers_of_keras():
    assert described_op(StopGradients(outputs=1, hook="override", belongs_to=0)) == {"op": "identity"}
    assert described_op(layers.Dense(3)) is None


class Own(keras.layers.Layer):
    """Describe itself as a test says."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__(name="own")
        self.described = described

    def inference_op(self) -> dict[str, Any]:
        return dict(self.described)

    def call(self, inputs: Any) -> Any:
        return keras.ops.where(inputs >= 0, 1.0, -1.0)


def test_any_layer_may_describe_itself():
    model = keras.Sequential([keras.Input((3,)), Own({"op": "sign"}), layers.Dense(2)])
    _, nodes, _ = keras_graph(model)
    assert [node.op.op for node in nodes] == ["sign", "dense"]


@pytest.mark.parametrize("described", [{"op": "fly"}, {"op": "round"}, {"op": "sign", "bits": 1}, {"bits": 1}])
def test_another_description_is_a_mistake_in_the_layer(described: dict[str, Any]):
    with pytest.raises(ValueError, match="Own.inference_op returned"):
        described_op(Own(described))
