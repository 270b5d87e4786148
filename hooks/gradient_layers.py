"""Layers that give another layer another gradient; each returns its first inputs as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.ops.backward import Backward, modify_gradients
from hookline.trainer.ops.override_gradient import (
    DIFFERENTIATE,
    Override,
    apply_override,
    check_gradients,
    declare_override,
)


class PassThrough(keras.layers.Layer):
    """Return the first of its inputs, whatever their shapes; it has no variables."""

    def __init__(
        self, *, outputs: int, hook: str, belongs_to: int, backward: Backward | None = None, **options: Any
    ) -> None:
        """Take how many inputs to return, the hook, the identity of the layer beside it, and a backward pass."""
        super().__init__(**options)
        self.outputs = outputs
        self.hook = hook
        self.belongs_to = belongs_to  # `hookline.trainer.graph` looks past it
        self.backward: Any = backward
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        self.built = True

    def inference_op(self) -> dict[str, Any]:
        """Return what it computes, for packed files: see `hookline.deploy.keras_graph`."""
        return {"op": "identity"}

    def compute_output_spec(self, inputs: Sequence[Any]) -> list[Any]:
        return [keras.KerasTensor(each.shape, each.dtype) for each in inputs[: self.outputs]]


class ModifyGradients(PassThrough):
    """Stand before a layer: a backward pass transforms the gradients that the layer passes back."""

    def call(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(modify_gradients(self.backward, inputs, name=self.name))


class StopGradients(PassThrough):
    """Stand before a layer whose gradient is replaced: its weights get theirs, its inputs do not."""

    def call(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.stop_gradient(each) for each in inputs]


class ReplaceGradients(PassThrough):
    """Stand behind a layer: take its outputs, which it returns, and its inputs, which get the gradients."""

    def call(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        outputs, layer_inputs = tuple(inputs[: self.outputs]), list(inputs[self.outputs :])
        is_single = self.outputs == 1

        def forward(*given: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return tuple(tf.identity(each) for each in given[: self.outputs])

        def backward(upstream: Any, given: tuple[tf.Tensor, ...], returned: Any) -> list[Any]:
            seen = (upstream[0], returned[0]) if is_single else (upstream, returned)
            gradients = self.backward(seen[0], given[self.outputs :], seen[1])
            return [*upstream, *check_gradients(f"The backward pass of '{self.name}'", gradients, layer_inputs)]

        second = self.backward.second_backward
        override = Override(
            self.name,
            forward,
            backward,
            (*outputs, *layer_inputs),
            constants=self.backward.constants,
            second_backward=second if second == DIFFERENTIATE else None,
        )
        returned = apply_override(override)
        declare_override(self.name, layer_inputs, returned, self.backward.surrogate)
        return list(returned)
