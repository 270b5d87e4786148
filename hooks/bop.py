"""Bop: kernels of -1 and +1, trained only by flips, based on a moving average of the gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import Kernel, entry_shares, find_kernels
from hookline.hooks.options import project_with_average
from hookline.hooks.quantization.selection import choose_kernel_layers
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.hook import Bits, Declaration, Gradients, GraphHook, Tensors
from hookline.trainer.ops.estimators import binary_sign
from hookline.trainer.step.context import BuildContext, StepContext


class Bop(GraphHook):
    """Train kernels of -1 and +1 without latent weights: a moving average of the gradient decides which flip.

    The kernels are binary from the first step on: initial values of 0 and above become +1, the others -1. The optimizer
    trains only the other weights. Gradients are taken with respect to the binary weights, regardless of the kernel
    quantizer of `bnn_rounding`. In a BNN, that hook rounds the inputs.

    Group: technique

    Equation:
        m_t = m_(t-1) + gamma_t (dL/dw - m_(t-1)),   m_0 = 0
        w <- -w where |m_t| >= threshold and sign(m_t) = sign(w)
        gamma_t = gamma (final_gamma / gamma)^(t / steps of the run), or gamma

    State:
        momentum/<variable>: m.

    Scalars:
        bop/flip_ratio: share of entries that this update flipped.
        bop/flip_ratio/<layer>: the same for one layer.

    Cost: No more than the optimizer update and latent-weight clipping that it replaces.

    Pitfalls:
        tests/hooks/test_bop.py: flipping where the signs differ would raise the loss. A NaN gradient holds the step
            back, although the optimizer does not use it.

    Reference: Helwegen et al. 2019, arXiv 1906.02107, algorithm 1.

    Example:
        python train.py recipe=bop
        python train.py recipe=bnn +hooks=bop hooks.bop.gamma=1e-3
    """

    after = ("bnn_rounding", "freeze_layers", "frozen_mask", "clip_gradients")
    conflicts = ("prune", "incremental_quantization")
    priority = 85

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        threshold: float = 1e-8,
        gamma: float = 1e-4,
        final_gamma: float | None = None,
        all_binary: bool = False,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of dense layers and convolutions.
            threshold: above 0, the paper's tau: how large the average must be to flip a weight.
            gamma: in (0, 1], how fast the average follows the gradient.
            final_gamma: in (0, 1], the value at the end of an exponential decay over the run; None for `gamma`.
            all_binary: whether the network's first and last layers are binary too.
            network: name of the network.
        """
        self.layers = layers
        self.threshold = check_number("threshold", threshold, minimum=0.0, above_minimum=True)
        limits: dict[str, Any] = {"minimum": 0.0, "maximum": 1.0, "above_minimum": True}
        self.gamma = check_number("gamma", gamma, **limits)
        self.final_gamma = self.gamma if final_gamma is None else check_number("final_gamma", final_gamma, **limits)
        self.all_binary = all_binary
        self.network = network

    def build(self, context: BuildContext) -> None:
        selection = choose_kernel_layers(context.network.model, self.layers, all_binary=self.all_binary)
        self._kernels = find_kernels(context.network, selection.layers, doing="binary")
        self._refuse_masks(context.states)
        self._total = context.total_steps
        self._momenta: dict[str, tf.Variable] = {}
        for kernel in self._kernels:
            kernel.variable.assign(binary_sign(tf.convert_to_tensor(kernel.variable.value)))
            zeros = tf.zeros(kernel.variable.shape, kernel.variable.dtype)
            self._momenta[kernel.name] = tf.Variable(zeros, trainable=False, name="momentum")

    def _refuse_masks(self, states: Iterable[str]) -> None:
        """Raise a UserError if another hook masks these kernels: their entries flip regardless of the gradient."""
        for key in states:
            hook, _, name = key.partition("/mask/")
            if any(kernel.name == name for kernel in self._kernels):
                raise UserError(
                    f"'{hook}' masks '{name}', but '{self.key}' flips its entries regardless of the mask. Expected "
                    "other `layers` for one of the two, or freeze_layers, which freezes whole layers."
                )

    def declare(self) -> Declaration:
        state = {f"momentum/{name}": momentum for name, momentum in self._momenta.items()}
        names = set(self._momenta)
        return Declaration(state, writes=state, frozen=names, projected=names, rounded=names)

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return one bit for each kernel that ships as -1 and +1."""
        binary = [each.name for each in self._kernels if (np.abs(shipped[each.name]) == 1.0).all()]
        return Bits(dict.fromkeys(binary, 1.0), dict.fromkeys(binary, 1))

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        """Return the binary kernels; in an evaluation, the signs of the given values, which may be averages."""
        values = context.latent if context.training else weights
        own = {each.name: values[each.name] for each in self._kernels}
        if not context.training:
            own = {name: binary_sign(value) for name, value in own.items()}
        return {**weights, **own}

    def _tap(self, kernel: Kernel) -> str:
        return f"{self.name}/gradient/{kernel.name}"

    def transform_gradients(self, gradients: Gradients, context: StepContext) -> Gradients:
        """Return None for the kernels, so that the optimizer does not update them."""
        for kernel in self._kernels:
            if (gradient := gradients[kernel.name]) is not None:
                context.taps[self._tap(kernel)] = gradient
        return {**gradients, **dict.fromkeys((kernel.name for kernel in self._kernels), None)}

    def veto(self, context: StepContext) -> Tensors:
        """Return whether a kernel's gradient is not finite, under the name that `nan_guard` uses."""
        given = {each.name: context.taps[self._tap(each)] for each in self._kernels if self._tap(each) in context.taps}
        return {f"gradient/{name}": tf.logical_not(tf.math.is_finite(tf.reduce_sum(g))) for name, g in given.items()}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        operations = []
        for kernel in self._kernels:
            momentum = self._momenta[kernel.name]
            gradient = context.taps.get(self._tap(kernel), momentum)  # no gradient, no change
            gamma = tf.cast(self._gamma_at(context.step), momentum.dtype)
            operations.append(momentum.assign_add(gamma * (tf.cast(gradient, momentum.dtype) - momentum)))
        return operations

    def _gamma_at(self, step: tf.Tensor) -> tf.Tensor:
        if self.final_gamma == self.gamma:
            return tf.constant(self.gamma)
        return self.gamma * (self.final_gamma / self.gamma) ** tf.minimum(tf.cast(step, tf.float32) / self._total, 1.0)

    def project(self, context: StepContext) -> None:
        for kernel in self._kernels:
            begun = context.latent[kernel.name]
            if self._tap(kernel) in context.taps:  # the hook takes part
                momentum = tf.convert_to_tensor(self._momenta[kernel.name])
                begun = tf.where(begun * momentum >= self.threshold, -begun, begun)
            project_with_average(context.network, kernel.name, partial(_replaced, begun))

    def measure(self, context: StepContext) -> Tensors:
        flipped = [context.latent[each.name] != tf.convert_to_tensor(each.variable.value) for each in self._kernels]
        return entry_shares(f"{self.key}/flip_ratio", self._kernels, flipped)

    def summary(self) -> dict[str, Any]:
        entries = {kernel.name: kernel.size for kernel in self._kernels}
        return {"threshold": self.threshold, "gamma": [self.gamma, self.final_gamma], "kernel_entries": entries}


def _replaced(flipped: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.cast(flipped, value.dtype)
