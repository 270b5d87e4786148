"""Weight clustering: each kernel has a few values, and trains them with the weights that choose among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hookline.hooks.clustering.codebook import INITS, clustered, initial_centroids, member_sums, nearest
from hookline.hooks.kernels import Kernel, find_kernels, holds_kernel, left_out_advice
from hookline.hooks.options import (
    begin_step,
    check_choice,
    check_epochs,
    check_flag,
    check_integer,
    check_number,
    check_patterns,
    inner_of,
    project_with_average,
)
from hookline.trainer.hook import Bits, Declaration, GraphHook, Tensors
from hookline.trainer.ops.estimators import zero_unless
from hookline.trainer.select import select_layers
from hookline.trainer.step.context import BuildContext, StepContext

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run


class WeightClustering(GraphHook):
    """Train kernels that have a few distinct values each, so that they ship as indices into a codebook.

    From `begin_epoch` on the forward pass uses the nearest centroid in place of each latent weight. The latent weights
    stay float and train through a straight-through estimator, so they may change their cluster. Each centroid is
    trained by the sum of the gradients of its members, by plain gradient descent at the optimizer's learning rate.
    Before `begin_epoch` training is the same as without the hook. With begin_epoch=0 the centroids are computed from
    the initial weights, such as those of `init_from`.

    With `preserve_sparsity` one centroid is always 0, and entries that are 0 when clustering begins stay 0; the state
    "mask/<variable>" records them. Under a name other than "weight_clustering", reports have that name.

    Group:
        technique

    Equation:
        forward:    w_c = c_k,   k = argmin_j |w - c_j|
        backward:   dL/dw = dL/dw_c,   dL/dc_j = sum over the members of j of dL/dw_c
        centroids:  c_j <- c_j - rate * centroid_rate * dL/dc_j
        linear:     c_j evenly from min w to max w
        density:    c_j at evenly spaced quantiles of w
        kmeans:     Lloyd's algorithm, from the linear ones

    State:
        centroids/<variable>: c.
        active: whether clustering has begun.

    Scalars:
        weight_clustering/distance: root mean square of w_c - w, divided by that of w; 0 before clustering begins.
        weight_clustering/used: share of the centroids that have members; 0 before clustering begins.

    Cost:
        A binary search for each entry in the forward pass, and again for the centroids' gradient. Measured: 0.3 of the
        speed (85,000 weights, batch 64); with so small a batch, the rest of the step takes little time.

    Pitfalls:
        tests/hooks/test_weight_clustering.py: clustered weights and centroids equal those of TFMOT on the same
            gradients. The mean of the members' gradients would be another rule than the sum. y = w + stop_gradient(c -
            w) would round, so 16 centroids would give thousands of values. Without the mask, the zeros of a pruned
            network would drift.

    Reference:
        Han, Mao and Dally 2016, "Deep Compression", arXiv 1510.00149, section 3. The latent weights train too, as in
        TFMOT; but in TFMOT the optimizer of the network also updates the centroids.

    Example:
        python train.py recipe=weight_clustering
        python train.py recipe=baseline init_from=runs/float +hooks=weight_clustering hooks.weight_clustering.clusters=8
    """

    after = ("prune", "frozen_mask")
    conflicts = ("bnn_rounding", "bop", "incremental_quantization")
    priority = 70

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        clusters: int = 16,
        init: str = "linear",
        begin_epoch: float | None = 0.0,
        centroid_rate: float = 1.0,
        preserve_sparsity: bool = False,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers that hold kernels, those of `prune`.
            clusters: 2 to 256 centroids for each kernel; 3 or more to preserve sparsity.
            init: "linear", "density" or "kmeans".
            begin_epoch: 0 or more; weights are free before it. None: halfway through the run.
            centroid_rate: 0 or more; times the learning rate, that of the centroids.
            preserve_sparsity: whether zeros stay zeros.
            network: name of the network.
        """
        self.layers = check_patterns("layers", layers)
        self.preserve_sparsity = check_flag("preserve_sparsity", preserve_sparsity)
        self.clusters = check_integer("clusters", clusters, minimum=3 if preserve_sparsity else 2, maximum=256)
        self.init = check_choice("init", init, INITS)
        self.begin_epoch = None if begin_epoch is None else check_epochs("begin_epoch", begin_epoch)
        self.centroid_rate = check_number("centroid_rate", centroid_rate, minimum=0.0)
        self.network = network
        self._kernels: list[Kernel] = []
        self._begin = 0
        self._centroids: dict[str, tf.Variable] = {}
        self._masks: dict[str, tf.Variable] = {}
        self._active: Any = None  # the variable, once built

    def build(self, context: BuildContext) -> None:
        self._network = context.network
        chosen = select_layers(self._network.model, self.layers, accept=holds_kernel, kind="kernel layer")
        self._kernels = find_kernels(self._network, chosen, doing="clustered")
        half = context.total_steps // 2
        self._begin = half if self.begin_epoch is None else begin_step(self.begin_epoch, context)
        for kernel in self._kernels:
            weights = tf.convert_to_tensor(kernel.variable.value)
            self._centroids[kernel.name] = tf.Variable(self._initial(weights), trainable=False, name="centroids")
            if self.preserve_sparsity:
                self._masks[kernel.name] = tf.Variable(weights != 0, trainable=False, name="mask")
        self._active = tf.Variable(self._begin == 0, trainable=False, name="active")

    def _initial(self, weights: tf.Tensor) -> tf.Tensor:
        return initial_centroids(weights, self.clusters, self.init, with_zero=self.preserve_sparsity)

    def declare(self) -> Declaration:
        state = {f"centroids/{name}": each for name, each in self._centroids.items()}
        state |= {f"mask/{name}": each for name, each in self._masks.items()}
        state |= {} if self._active is None else {"active": self._active}
        since = self._begin + 1 if self._begin else 0
        return Declaration(state, writes=state, projected=set(self._masks), best_from_step=since)

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return the bits of an index, and of the codebook, for each kernel that has no more values than centroids."""
        index = math.ceil(math.log2(self.clusters))
        few = [each for each in self._kernels if np.unique(shipped[each.name]).size <= self.clusters]
        return Bits({each.name: index + 32.0 * self.clusters / each.size for each in few})

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        names = list(self._centroids)

        def pulled() -> list[tf.Tensor]:
            return [self._clustered(name, weights[name]) for name in names]

        found = tf.cond(self._active, pulled, lambda: [tf.identity(weights[name]) for name in names])
        return {**weights, **dict(zip(names, found, strict=True))}

    def _clustered(self, name: str, weights: tf.Tensor) -> tf.Tensor:
        found = clustered(weights, tf.convert_to_tensor(self._centroids[name]))
        return tf.where(self._masks[name], found, tf.zeros_like(found)) if self._masks else found

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        active = tf.convert_to_tensor(self._active)
        due = tf.logical_and(tf.logical_not(active), context.step >= self._begin)
        rate = self.centroid_rate * tf.cast(inner_of(context.network.optimizer).learning_rate, tf.float32)
        operations = []
        for name, variable in self._centroids.items():
            centroids, latent = tf.convert_to_tensor(variable), context.latent[name]
            members = nearest(tf.cast(latent, tf.float32), centroids)
            context.taps[self._counts(name)] = member_sums(tf.ones_like(latent), members, self.clusters)
            moved = self._moved(centroids, context.gradients[name], members, tf.where(active, rate, 0.0))
            changed = tf.cond(due, lambda w=latent: self._initial(w), lambda c=moved: tf.identity(c))
            operations.append(variable.assign(changed))
            if self._masks:
                mask = tf.convert_to_tensor(self._masks[name])
                operations.append(self._masks[name].assign(tf.where(due, latent != 0, mask)))
        return [*operations, self._active.assign(tf.logical_or(active, due))]

    def _counts(self, name: str) -> str:
        """Return the name among the taps of how many members each centroid has."""
        return f"{self.name}/counts/{name}"

    def _moved(
        self, centroids: tf.Tensor, gradient: tf.Tensor | None, members: tf.Tensor, rate: tf.Tensor
    ) -> tf.Tensor:
        """Return the centroids after their own step."""
        if gradient is None:
            return centroids
        moved = centroids - rate * member_sums(gradient, members, self.clusters)
        return tf.where(centroids == 0.0, centroids, moved) if self.preserve_sparsity else moved

    def project(self, context: StepContext) -> None:
        """Put entries back to 0 that were 0 when clustering began."""
        for kernel in self._kernels if self._masks else ():
            kept = tf.logical_or(self._masks[kernel.name], tf.logical_not(self._active))
            project_with_average(context.network.optimizer, kernel.variable, partial(zero_unless, kept))

    def measure(self, context: StepContext) -> Tensors:
        away, length, used = [], [], []
        for name in self._centroids:
            latent = context.latent[name]
            away.append(tf.reduce_sum(tf.square(tf.cast(context.weights[name] - latent, tf.float32))))
            length.append(tf.reduce_sum(tf.square(tf.cast(latent, tf.float32))))
            used.append(tf.math.count_nonzero(context.taps[self._counts(name)], dtype=tf.float32) / self.clusters)
        prefix, active = self.key or "weight_clustering", tf.cast(self._active, tf.float32)
        return {
            f"{prefix}/distance": tf.sqrt(tf.math.divide_no_nan(tf.add_n(away), tf.add_n(length))),
            f"{prefix}/used": active * tf.add_n(used) / len(used),
        }

    def summary(self) -> dict[str, Any]:
        codebooks = {name: each.numpy().tolist() for name, each in self._centroids.items()}
        return {"clusters": self.clusters, "init": self.init, "begin_step": self._begin, "centroids": codebooks}

    def advise(self, run: Run) -> Sequence[str]:
        reason = "Of layers of your own, weights that are named 'kernel' are clustered."
        return left_out_advice(self._network, self.layers, list(self._centroids), state="unclustered", reason=reason)
