"""Gradient clipping: by global norm, by the norm of each variable, or by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import check_choice, check_number
from hookline.trainer.graph import select_layers
from hookline.trainer.hook import Declaration, Gradients, GraphHook, Tensors
from hookline.trainer.step.context import BuildContext, StepContext

NORM, VARIABLE_NORM, VALUE = WAYS = ("norm", "variable_norm", "value")


class ClipGradients(GraphHook):
    """Clip large gradients before the optimizer applies them.

    by="norm" limits the global norm of the gradients of all chosen variables and keeps their direction;
    by="variable_norm" limits the norm of each variable's gradient; by="value" limits each entry.

    The gradients are those of the whole batch, even with micro batches, after other hooks have changed them; only `bop`
    comes later. Frozen weights count as 0. Each network is clipped separately.

    A non-finite gradient is never clipped to a number, so `nan_guard` still sees it; with by="norm" the other gradients
    then do not change. The hook's scalars cover the chosen layers; grad_norm/... covers all gradients of a network.

    Group: optimization

    Equation:
        norm:           g <- g * limit / max(||g||, limit), with ||g|| over all chosen variables together
        variable_norm:  g <- g * limit / max(||g||, limit), with ||g|| of each variable
        value:          g <- min(max(g, -limit), limit), entry by entry

    Scalars:
        clip_gradients/before: global norm of the chosen gradients before clipping.
        clip_gradients/after: the same after clipping.
        clip_gradients/clipped: share of steps, variables or entries that were clipped, depending on `by`.

    Cost: Two passes over the gradients per step: one for the norms, one to scale.

    Pitfalls:
        tests/hooks/test_clip_gradients.py: NaN must not become a number, and a norm that overflows float32 must not
            make gradients 0.

    Reference: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1: by="norm".

    Example:
        python train.py recipe=baseline +hooks=clip_gradients hooks.clip_gradients.limit=0.5
        python train.py recipe=gan +hooks=clip_gradients hooks.clip_gradients.network=generator
    """

    after = ("freeze_layers", "incremental_quantization")
    priority = 100

    def __init__(
        self, *, by: str = NORM, limit: float = 1.0, layers: str | Sequence[str] = "*", network: str = "*"
    ) -> None:
        """Check the options.

        Args:
            by: "norm", "variable_norm" or "value".
            limit: above 0; the largest norm, or the largest absolute value of an entry.
            layers: patterns on paths or names of layers with weights; the gradients of others do not change.
            network: name of the network, or a pattern.
        """
        self.by = check_choice("by", by, WAYS)
        self.limit = check_number("limit", limit, minimum=0.0, above_minimum=True)
        self.layers = layers
        self.network = network

    def build(self, context: BuildContext) -> None:
        network = context.network
        self._names = list(network.trainable_variables)
        if self.layers != "*":
            kind = "layer with weights to train"
            found = select_layers(network.model, self.layers, accept=lambda x: bool(x.trainable_weights), kind=kind)
            chosen = {id(weight) for layer in found.values() for weight in layer.trainable_weights}
            self._names = [name for name, each in network.trainable_variables.items() if id(each) in chosen]

    def declare(self) -> Declaration:
        return Declaration()

    def transform_gradients(self, gradients: Gradients, context: StepContext) -> Gradients:
        chosen = {name: value for name in self._names if (value := gradients[name]) is not None}
        if not chosen:
            self._measured = dict.fromkeys(("before", "after", "clipped"), tf.constant(0.0))
            return gradients
        values = list(chosen.values())
        squares = squared_norms(values)
        if self.by == VALUE:
            clipped = [clip_entries(value, self.limit) for value in values]
            long = tf.add_n([tf.math.count_nonzero(tf.abs(each) > self.limit, dtype=tf.int32) for each in values])
            share = tf.cast(long, tf.float32) / float(sum(each.shape.num_elements() for each in values))
            squares_after = squared_norms(clipped)
        else:
            factors = norm_factors(squares, self.limit, together=self.by == NORM)
            clipped = [
                value * tf.cast(each, value.dtype) for value, each in zip(values, tf.unstack(factors), strict=True)
            ]
            squares_after = squares * tf.square(factors)
            share = tf.reduce_mean(tf.cast(factors < 1.0, tf.float32))
        before, after = (tf.sqrt(tf.reduce_sum(each)) for each in (squares, squares_after))
        self._measured = {"before": before, "after": after, "clipped": share}
        return {**gradients, **dict(zip(chosen, clipped, strict=True))}

    def measure(self, context: StepContext) -> Tensors:
        return {f"{self.key}/{name}": value for name, value in self._measured.items()}

    def summary(self) -> dict[str, Any]:
        return {"by": self.by, "limit": self.limit, "variables": len(self._names)}


def squared_norms(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the squared L2 norm of each tensor: float32 [tensors]."""
    return tf.stack([2.0 * tf.nn.l2_loss(tf.cast(value, tf.float32)) for value in values])


def norm_factors(squares: tf.Tensor, limit: float, *, together: bool) -> tf.Tensor:
    """Return the factors that bring the norms of tensors within a limit: float32 [tensors], at most 1.

    A squared norm that is NaN, or so large that the sum could overflow, yields NaN; with `together` the others yield 1.
    """
    measurable = squares <= tf.float32.max / squares.shape[0]
    norms = tf.sqrt(tf.reduce_sum(squares) if together else squares)
    factors = tf.broadcast_to(limit / tf.maximum(norms, limit), squares.shape)
    if together:
        factors = tf.where(tf.reduce_all(measurable), factors, 1.0)
    return tf.where(measurable, factors, float("nan"))


def clip_entries(value: tf.Tensor, limit: float) -> tf.Tensor:
    """Return a tensor with its finite entries clipped to [-limit, limit]."""
    return tf.where(tf.math.is_finite(value), tf.clip_by_value(value, -limit, limit), value)
