"""Incremental network quantization: growing shares of weights become frozen powers of two while the rest trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.hooks import options
from hookline.hooks.kernels import Kernel, entry_shares, left_out_advice, select_kernels
from hookline.hooks.pruning.selector import keep_largest
from hookline.hooks.quantization.quantizers import level_exponents, round_to_levels
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number
from hookline.trainer.hook import Bits, Declaration, Gradients, GraphHook, Run, Tensors
from hookline.trainer.ops.estimators import zero_unless
from hookline.trainer.step.context import BuildContext, StepContext

MOST_BITS = 8


class IncrementalQuantization(GraphHook):
    """Quantize a growing share of each kernel to 0 or a signed power of two, and train the rest.

    Each quantization step rounds some entries of a kernel, the largest first, to the levels 0 and +-2^k, n2 <= k <= n1.
    They never change again, regardless of momentum, weight decay or regularizers (`prune` may still set them to 0). The
    others keep training and compensate for the error. The levels of a kernel follow from its largest weight at the
    first quantization step and are fixed from then on. The last quantization step quantizes all entries that are left;
    it takes place in the last step of the run at the latest. Biases and batch norm stay float.

    To clear the optimizer's slots of quantized entries too, add the hook `frozen_mask` with masks=hook and
    hook=incremental_quantization.

    Group: technique

    Equation:
        n1 = floor(log2(4 max|W| / 3)),   n2 = n1 + 1 - 2^(bits - 1) / 2
        levels: 0 and +-2^k for n2 <= k <= n1
        w -> sign(w) b, for the level b with (a + b) / 2 <= |w| < 3 b / 2, a the next lower level; smaller |w| -> 0
        of n entries round(share * n) are quantized: those with the largest |w|, or drawn at random
        these have dL/dw = 0, and after the optimizer they and their moving average are reset to their level

    State:
        mask/<variable>: True where an entry still trains.
        exponents/<variable>: n1 and n2 of its levels; 0 until the first quantization step.
        updates: how many quantization steps are done.

    Scalars:
        incremental_quantization/share: share of quantized entries.
        incremental_quantization/share/<layer>: the same for one layer.

    Cost: 0.95 of the speed (LeNet-5, batch 100).

    Pitfalls:
        tests/hooks/test_incremental_quantization.py: new levels at a later quantization step would move quantized
            entries. The boundary between two nonzero levels is exactly 1.5 times a power of two; a logarithm in float32
            is not exact there.

    Reference: Zhou et al. 2017, arXiv 1702.03044, equations 1, 2 and 4. Weights above 1.5 * 2^n1, which the paper does
        not cover, are rounded to 2^n1.

    Example:
        python train.py recipe=incremental_quantization
        python train.py recipe=baseline +hooks=incremental_quantization hooks.incremental_quantization.bits=3
    """

    before = ("prune", "frozen_mask", "bnn_rounding")
    priority = 40

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        shares: Sequence[float] = (0.5, 0.75, 0.875, 1.0),
        begin_epoch: float = 0.0,
        step_epochs: float | None = None,
        bits: int = 5,
        criterion: str = "magnitude",
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers with kernels, as for `prune`.
            shares: share of a kernel's entries quantized after each quantization step; increasing, the last one 1.
            begin_epoch: 0 or more; epochs before the first quantization step.
            step_epochs: above 0, from one share to the next; None divides the rest of the run evenly.
            bits: 2 to 8 per weight: zero and 2^(bits - 1) signed powers of two.
            criterion: "magnitude" quantizes the largest entries first, "random" draws them.
            network: name of the network.
        """
        self.layers = layers
        self.shares = list(shares)
        if self.shares[-1:] != [1.0] or any(lower >= higher for lower, higher in pairwise([0.0, *self.shares])):
            raise UserError(f"Invalid shares: {shares}. Expected rising values above 0 up to 1, such as [0.5, 1].")
        self.begin_epoch = check_number("begin_epoch", begin_epoch, 0)
        self.step_epochs = step_epochs
        if step_epochs is not None:
            self.step_epochs = check_number("step_epochs", step_epochs, minimum=0.0, above_minimum=True)
        self.bits = check_integer("bits", bits, minimum=2, maximum=MOST_BITS)
        self.criterion = check_choice("criterion", criterion, ("magnitude", "random"))
        self.network = network

    def build(self, context: BuildContext) -> None:
        self._network = context.network
        self._kernels = select_kernels(self._network, self.layers, doing="quantized")
        self._steps = change_steps(len(self.shares), self.begin_epoch, self.step_epochs, context)
        self._masks = {kernel.name: kernel.new_mask() for kernel in self._kernels}
        self._exponents = {
            kernel.name: tf.Variable(tf.zeros([2], tf.int32), trainable=False, name="exponents")
            for kernel in self._kernels
        }
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")

    def declare(self) -> Declaration:
        masks = {f"mask/{name}": mask for name, mask in self._masks.items()}
        exponents = {f"exponents/{name}": each for name, each in self._exponents.items()}
        state = {**masks, **exponents, "updates": self._updates}
        names, since = set(self._masks), self._steps[-1] + 1
        return Declaration(state, writes=state, projected=names, rounded=names, best_from_step=since)

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return the bits of each kernel that is fully quantized and ships on its levels."""
        settled = (name for name, mask in self._masks.items() if not mask.numpy().any())
        found = {name: self.bits for name in settled if self._on_levels(name, shipped[name]).all()}
        return Bits(dict(found), found)

    def _on_levels(self, name: str, values: Any) -> np.ndarray:
        values = tf.convert_to_tensor(values)
        return (round_to_levels(values, self._exponents[name]) == values).numpy()

    def frozen_entries(self, context: StepContext) -> Tensors:
        return {name: tf.logical_not(mask) for name, mask in self._masks.items()}

    def transform_gradients(self, gradients: Gradients, context: StepContext) -> Gradients:
        stopped: Gradients = {}
        for name, mask in self._masks.items():
            gradient = gradients[name]
            stopped[name] = gradient if gradient is None else zero_unless(tf.convert_to_tensor(mask), gradient)
        return {**gradients, **stopped}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        done = tf.convert_to_tensor(self._updates)
        wanted = tf.math.count_nonzero(tf.constant(self._steps, tf.int64) <= context.step)
        due = wanted > done  # at quantization steps only, or later if such a step was held back
        context.taps[f"{self.name}/due"] = due
        operations = []
        for kernel in self._kernels:
            mask, exponents = self._next(kernel, due, wanted, context)
            operations += [self._masks[kernel.name].assign(mask), self._exponents[kernel.name].assign(exponents)]
        return [*operations, self._updates.assign(tf.maximum(wanted, done))]

    def _next(
        self, kernel: Kernel, due: tf.Tensor, wanted: tf.Tensor, context: StepContext
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a kernel's mask and exponents from this step on."""
        latent = context.latent[kernel.name]
        mask = tf.convert_to_tensor(self._masks[kernel.name])
        exponents = tf.convert_to_tensor(self._exponents[kernel.name])
        done = tf.convert_to_tensor(self._updates)
        counts = tf.constant([round(share * kernel.size) for share in self.shares])

        def change() -> tuple[tf.Tensor, tf.Tensor]:
            scores = tf.abs(tf.cast(latent, tf.float32))
            if self.criterion == "random":
                seed = context.stateless_seed(f"{self.name}/{kernel.name}")
                scores = tf.random.stateless_uniform(latent.shape, seed)
            scores = tf.where(mask, scores, float("inf"))  # quantized entries stay quantized, and count
            chosen = keep_largest(tf.reshape(scores, [-1]), tf.gather(counts, wanted - 1))
            left = tf.logical_and(mask, tf.logical_not(tf.reshape(chosen, mask.shape)))
            return left, tf.where(done == 0, level_exponents(latent, self.bits), exponents)

        return tf.cond(due, change, lambda: (tf.identity(mask), tf.identity(exponents)))

    def project(self, context: StepContext) -> None:
        """Set quantized entries to the level of their value at the start of the step, by which they were chosen."""
        names = [kernel.name for kernel in self._kernels]
        begun = [context.latent[name] for name in names]

        def rounded() -> list[tf.Tensor]:
            return [round_to_levels(value, self._exponents[name]) for name, value in zip(names, begun, strict=True)]

        due = context.taps.get(f"{self.name}/due", tf.constant(False))  # masks change only where the hook takes part
        levels = tf.cond(due, rounded, lambda: [tf.identity(value) for value in begun])
        for kernel, level in zip(self._kernels, levels, strict=True):
            mask = tf.convert_to_tensor(self._masks[kernel.name])
            options.project_with_average(context.network, kernel.name, partial(_level_unless, mask, level))

    def measure(self, context: StepContext) -> Tensors:
        quantized = [tf.logical_not(self._masks[kernel.name]) for kernel in self._kernels]
        return entry_shares(f"{self.key}/share", self._kernels, quantized)

    def summary(self) -> dict[str, Any]:
        kernels = {kernel.name: self._report(kernel) for kernel in self._kernels}
        return {
            "bits": self.bits,
            "criterion": self.criterion,
            "steps": self._steps,
            "on_levels": all(each["on_levels"] for each in kernels.values()),
            "kernels": kernels,
        }

    def advise(self, run: Run) -> Sequence[str]:
        covered = [kernel.name for kernel in self._kernels]
        return left_out_advice(self._network, self.layers, covered, state="in full precision")

    def _report(self, kernel: Kernel) -> dict[str, Any]:
        quantized = ~self._masks[kernel.name].numpy()
        values = kernel.variable.numpy()
        first, last = self._exponents[kernel.name].numpy().tolist()
        return {
            "n1": first if quantized.any() else None,
            "n2": last if quantized.any() else None,
            "share": float(quantized.mean()),
            "on_levels": bool(self._on_levels(kernel.name, values)[quantized].all()),
            "zeros": float((values[quantized] == 0).mean()) if quantized.any() else 0.0,
        }


def _level_unless(mask: tf.Tensor, level: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.where(mask, value, tf.cast(level, value.dtype))


def change_steps(count: int, begin_epoch: float, step_epochs: float | None, context: BuildContext) -> list[int]:
    """Return the optimizer steps at which the shares grow; one at the end of the run is moved to its last step."""
    total_steps, steps_per_epoch = context.total_steps, context.steps_per_epoch
    total_epochs = total_steps / steps_per_epoch
    apart = (total_epochs - begin_epoch) / count if step_epochs is None else step_epochs
    epochs = [begin_epoch + index * apart for index in range(count)]
    steps = [options.epoch_start(epoch, steps_per_epoch) for epoch in epochs]
    if max(begin_epoch, epochs[-1]) > total_epochs + 1e-6:
        raise UserError(
            f"The last of {count} shares would be quantized at epoch {max(begin_epoch, epochs[-1]):g}. Expected an "
            f"epoch before the end of the run, epoch {total_epochs:g}: set begin_epoch, step_epochs or shares."
        )
    return [min(step, total_steps - 1) for step in steps]
