"""Layers of hooks say what they compute at inference."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from hookline.deploy.keras_graph import described_op
from hookline.hooks.gradients.layers import StopGradients
from hookline.hooks.quantization.input_quantizer import InputQuantizer
from hookline.hooks.quantization.quantizers import FUNCTIONS, KERNEL_ONLY


class Own(keras.layers.Layer):
    """Describe itself as a test says."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__(name="own")
        self.described = described

    def inference_op(self) -> dict[str, Any]:
        return dict(self.described)


def test_quantizers_and_layers_of_ones_own_have_operations():
    for name in FUNCTIONS.keys() - KERNEL_ONLY:
        op = {"dorefa": {"op": "round", "bits": 2}, "ste_tern": {"op": "ternary", "threshold": 0.05}}
        assert described_op(InputQuantizer(name)) == op.get(name, {"op": "sign"})
    assert described_op(InputQuantizer({"name": "dorefa", "k_bit": 5})) == {"op": "round", "bits": 5}
    assert described_op(InputQuantizer({"name": "ste_tern", "threshold": 1})) == {"op": "ternary", "threshold": 1.0}
    assert described_op(StopGradients(outputs=1, hook="override", belongs_to=0)) == {"op": "identity"}
    for described in ({"op": "fly"}, {"op": "round"}, {"op": "sign", "bits": 1}, {"bits": 1}):
        with pytest.raises(ValueError, match="Own.inference_op returned"):
            described_op(Own(described))
