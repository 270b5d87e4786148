"""Batch norm with the statistics of the whole batch, over all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.fused_batch_norm import find_batch_norms, has_own_methods
from hookline.hooks.graphs import calls_replaced
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration, GraphHook
from hookline.trainer.ops.batch_norm import synchronized_moments
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.step.context import BuildContext, StepContext


class SynchronizedBatchNorm(GraphHook):
    """Make the `BatchNormalization` layers of an unmodified model normalize by the whole batch, over all replicas.

    Without this hook each replica normalizes by its own part of the batch. With it, batch norm gives the same results
    on any number of replicas, within rounding.

    Group: optimization

    Equation:
        mean = average over replicas r of mean_r
        var  = average over r of (var_r + (mean_r - s)^2) - (mean - s)^2, with the moving mean as the shift s
        y = gamma (x - mean) / sqrt(var + epsilon) + beta

    Cost: Per layer, one sum over the replicas in the forward pass and one in the backward pass. A step of `recipe=bnn`
        sums 0.35 MB in 9 messages, nearly all of it gradients, which are summed without this hook too.

    Pitfalls:
        tests/trainer/ops/test_batch_norm.py: the mean of squares minus the square of the mean loses precision when
            means are large.
        tests/hooks/test_synchronized_batch_norm.py: on one replica it does what Keras does, options included.
        tests/distributed/test_mirrored_steps.py: replicas make the same steps as one process.

    Reference: Peng et al. 2018, arXiv 1711.07240, section 3.3; Chan, Golub and LeVeque 1983 (the shift).

    Example:
        python train.py recipe=bnn trainer.strategy=mirrored trainer.replicas=2 +hooks=synchronized_batch_norm
    """

    after = ("fused_batch_norm",)  # if two hooks replace a layer's call, the later one wins

    def __init__(self, *, layers: str | Sequence[str] = "*", network: str = "*") -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of batch norm layers; "*" for all of them, even if there are none.
            network: name of the network, or a pattern; "*" for every network of a run.
        """
        self.layers = layers
        self.network = network
        self._replicas = 1

    def declare(self) -> Declaration:
        return Declaration()

    def build(self, context: BuildContext) -> None:
        self._chosen = find_batch_norms(context.network.model, self.layers)

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        if not context.training:
            return nullcontext()
        self._replicas = context.replica.count
        if self._replicas > 1 and context.micro_batch is not None:
            raise UserError(
                f"{self._replicas} replicas cannot synchronize the statistics of micro batches. Expected "
                f"trainer.accumulation_steps=1, or hooks.{self.key}=null."
            )
        for path, layer in self._chosen.items():
            what = _own_statistics(layer)
            if self._replicas > 1 and layer.trainable and what is not None:
                raise self._refusal(path, what)
        calls = [(layer, partial(self._call, path, context.replica)) for path, layer in self._chosen.items()]
        return calls_replaced(calls)

    def _call(
        self, path: str, replica: Replica, inputs: Any, training: bool | None = None, mask: Any = None
    ) -> tf.Tensor:
        layer = self._chosen[path]
        special = mask is not None or _own_statistics(layer) is not None
        if not (training and layer.trainable) or (special and replica.count == 1):
            return type(layer).call(layer, inputs, training=training, mask=mask)
        if special:
            raise self._refusal(path, "a mask")
        return _normalize(layer, tf.convert_to_tensor(inputs), replica)

    def _refusal(self, path: str, what: str) -> UserError:
        return UserError(
            f"The layer '{path}' has {what}, whose statistics cannot be taken over {self._replicas} replicas. "
            f"Leave it out of hooks.{self.key}.layers."
        )

    def summary(self) -> dict[str, Any]:
        return {"replicas": self._replicas, "layers": list(self._chosen)}


def _own_statistics(layer: keras.layers.BatchNormalization) -> str | None:
    """Return why a layer's statistics differ from those of plain batch norm; None if they do not."""
    if has_own_methods(layer):
        return f"a class {type(layer).__name__}"
    return "renorm" if layer.renorm else None


def _normalize(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return the outputs of `BatchNormalization.call` in training, with statistics over all replicas' batches."""
    values = tf.cast(inputs, tf.float32)
    axis = layer.axis % values.shape.rank
    moving_mean = keras.ops.cast(layer.moving_mean, "float32")
    moving_variance = keras.ops.cast(layer.moving_variance, "float32")
    mean, variance = synchronized_moments(values, axis=axis, shift=moving_mean, mean=replica.mean)
    layer.moving_mean.assign(moving_mean * layer.momentum + mean * (1.0 - layer.momentum))
    layer.moving_variance.assign(moving_variance * layer.momentum + variance * (1.0 - layer.momentum))
    factor = tf.math.rsqrt(variance + layer.epsilon)
    if layer.scale:
        factor *= keras.ops.cast(layer.gamma, "float32")
    offset = -mean * factor
    if layer.center:
        offset += keras.ops.cast(layer.beta, "float32")
    shape = [-1 if place == axis else 1 for place in range(values.shape.rank)]
    return tf.cast(values * tf.reshape(factor, shape) + tf.reshape(offset, shape), inputs.dtype)
