"""Weight clustering: each kernel has a few values, trained together with the weights that select them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.hooks import options
from hookline.hooks.kernels import left_out_advice, relative_distance, select_kernels
from hookline.hooks.quantization_aware_training import QuantizationAwareTraining
from hookline.trainer.errors import check_choice, check_integer, check_number
from hookline.trainer.hook import Bits, Declaration, GraphHook, Run, Tensors
from hookline.trainer.network import inner_of
from hookline.trainer.ops.estimators import zero_unless
from hookline.trainer.step.context import BuildContext, StepContext

LLOYD_STEPS = 50


class WeightClustering(GraphHook):
    """Train kernels that have a few distinct values each, so that they ship as indices into a codebook.

    Centroids are computed in the first step after `begin_epoch`, from the weights at its start; with begin_epoch=0,
    before the first step, from the initial weights, such as those of `init_from`. From the next step on the forward
    pass uses the nearest centroid instead of each latent weight. Latent weights train through a straight-through
    estimator, so an entry can move to another cluster. Centroids train by plain gradient descent at the optimizer's
    learning rate.

    With `preserve_sparsity` one centroid is always 0, and entries that are 0 when clustering begins stay 0; the state
    "mask/<variable>" records them. This is the default after a hook with masks, such as `prune`. After
    `prune` with schedule=splicing, set `begin_epoch` no earlier than the end_epoch of `prune`: until then the gradient
    of a pruned entry moves the centroid nearest to its latent value, though the forward pass uses 0.

    Group: technique

    Equation:
        forward:    w_c = c_k,   k = argmin_j |w - c_j|
        backward:   dL/dw = dL/dw_c,   dL/dc_j = sum over the members of j of dL/dw_c
        centroids:  c_j <- c_j - learning_rate * centroid_rate * dL/dc_j
        linear:     c_j evenly spaced from min w to max w
        density:    c_j at evenly spaced quantiles of w
        kmeans:     Lloyd's algorithm, from the linear ones

    State:
        centroids/<variable>: c.
        active: whether clustering has begun.

    Scalars:
        weight_clustering/distance: root mean square of w_c - w, divided by that of w; 0 before clustering begins.
        weight_clustering/used: share of the centroids that have members; 0 before clustering begins.

    Cost: 0.3 of the speed (85,000 weights, batch 64): two binary searches for each entry.

    Pitfalls:
        tests/hooks/test_weight_clustering.py: in float32 w + (c - w) is not exactly c: with y = w +
            stop_gradient(c - w), 16 centroids would give thousands of values.

    Reference: Han, Mao and Dally 2016, arXiv 1510.00149, section 3; latent weights train too, as in TFMOT.

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
        preserve_sparsity: bool | None = None,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers with kernels, as for `prune`.
            clusters: 2 to 256 centroids for each kernel; 3 or more to preserve sparsity.
            init: "linear", "density" or "kmeans".
            begin_epoch: 0 or more; weights are free before it. None: halfway through the run.
            centroid_rate: 0 or more; the centroids' learning rate, as a multiple of the optimizer's.
            preserve_sparsity: whether zeros stay 0. None: if an earlier hook has masks, as `prune` does.
            network: name of the network.
        """
        self.layers = layers
        self.preserve_sparsity = preserve_sparsity
        self.clusters = check_integer("clusters", clusters, minimum=3 if preserve_sparsity else 2, maximum=256)
        self.init = check_choice("init", init, ("linear", "density", "kmeans"))
        self.begin_epoch = None if begin_epoch is None else check_number("begin_epoch", begin_epoch, 0)
        self.centroid_rate = check_number("centroid_rate", centroid_rate, minimum=0.0)
        self.network = network

    def build(self, context: BuildContext) -> None:
        self._network = context.network
        self._kernels = select_kernels(self._network, self.layers, doing="clustered")
        if self.preserve_sparsity is None:
            self.preserve_sparsity = any("/mask/" in name for name in context.states)
            check_integer("clusters", self.clusters, minimum=3 if self.preserve_sparsity else 2)
        half = context.total_steps // 2
        self._begin = half if self.begin_epoch is None else options.begin_step(self.begin_epoch, context)
        self._centroids: dict[str, tf.Variable] = {}
        self._masks: dict[str, tf.Variable] = {}
        for kernel in self._kernels:
            weights = tf.convert_to_tensor(kernel.variable.value)
            self._centroids[kernel.name] = tf.Variable(self._initial(weights), trainable=False, name="centroids")
            if self.preserve_sparsity:
                self._masks[kernel.name] = tf.Variable(weights != 0, trainable=False, name="mask")
        self._active = tf.Variable(self._begin == 0, trainable=False, name="active")

    def _initial(self, weights: tf.Tensor) -> tf.Tensor:
        return initial_centroids(weights, self.clusters, self.init, with_zero=bool(self.preserve_sparsity))

    def declare(self) -> Declaration:
        state = {f"centroids/{name}": each for name, each in self._centroids.items()}
        state |= {f"mask/{name}": each for name, each in self._masks.items()} | {"active": self._active}
        since = self._begin + 1 if self._begin else 0
        names = set(self._centroids)
        return Declaration(state, writes=state, projected=set(self._masks), rounded=names, best_from_step=since)

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return the bits of an index and of the codebook, for each kernel with no more values than centroids."""
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
            context.taps[f"{self.name}/counts/{name}"] = member_sums(tf.ones_like(latent), members, self.clusters)
            moved = centroids
            if (gradient := context.gradients[name]) is not None:
                moved = centroids - tf.where(active, rate, 0.0) * member_sums(gradient, members, self.clusters)
            if self.preserve_sparsity:
                moved = tf.where(centroids == 0.0, centroids, moved)
            changed = tf.cond(due, lambda w=latent: self._initial(w), lambda c=moved: tf.identity(c))
            operations.append(variable.assign(changed))
            if self._masks:
                mask = tf.convert_to_tensor(self._masks[name])
                operations.append(self._masks[name].assign(tf.where(due, latent != 0, mask)))
        return [*operations, self._active.assign(tf.logical_or(active, due))]

    def project(self, context: StepContext) -> None:
        """Reset to 0 the entries that were 0 when clustering began."""
        for kernel in self._kernels if self._masks else ():
            kept = tf.logical_or(self._masks[kernel.name], tf.logical_not(self._active))
            options.project_with_average(context.network, kernel.name, partial(zero_unless, kept))

    def measure(self, context: StepContext) -> Tensors:
        taps = [context.taps[f"{self.name}/counts/{name}"] for name in self._centroids]
        used = [tf.math.count_nonzero(each, dtype=tf.float32) / self.clusters for each in taps]
        return {
            f"{self.key}/distance": relative_distance(context, self._centroids),
            f"{self.key}/used": tf.cast(self._active, tf.float32) * tf.add_n(used) / len(used),
        }

    def summary(self) -> dict[str, Any]:
        codebooks = {name: each.numpy().tolist() for name, each in self._centroids.items()}
        return {"clusters": self.clusters, "init": self.init, "begin_step": self._begin, "centroids": codebooks}

    def advise(self, run: Run) -> Sequence[str]:
        lines = [
            f"'{each.key}' rounds clustered kernels to a grid for each channel of a convolution, or of a dense layer "
            f"before batch norm: these have more than {self.clusters} values and ship without a codebook. Leave such "
            "layers out of one of the two."
            for each in run.hooks
            if isinstance(each, QuantizationAwareTraining) and each.declare().rounded & self._centroids.keys()
        ]
        return lines + left_out_advice(self._network, self.layers, list(self._centroids), state="unclustered")


def initial_centroids(weights: tf.Tensor, count: int, init: str, *, with_zero: bool = False) -> tf.Tensor:
    """Return ascending centroids, float32 [count]; with `with_zero` one is 0, the others are of nonzero weights."""
    flat = tf.sort(tf.reshape(tf.cast(weights, tf.float32), [-1]))
    if not with_zero:
        return _placed(flat, tf.ones_like(flat), count, init)
    counted = tf.cast(flat != 0.0, tf.float32)
    return tf.sort(tf.concat([_placed(flat, counted, count - 1, init), [0.0]], axis=0))


def _placed(ascending: tf.Tensor, counted: tf.Tensor, count: int, init: str) -> tf.Tensor:
    """Return centroids of the ascending weights where `counted` is 1, not 0."""
    last = tf.maximum(tf.reduce_sum(counted) - 1.0, 0.0)
    present = tf.gather(ascending, tf.argsort(1.0 - counted, stable=True))  # counted ones first
    even = tf.linspace(0.0, 1.0, count)
    if init == "density":
        places = even * last
        below = tf.cast(tf.floor(places), tf.int32)
        above = tf.minimum(below + 1, tf.cast(last, tf.int32))
        low, high = tf.gather(present, below), tf.gather(present, above)
        return low + (places - tf.floor(places)) * (high - low)
    smallest, largest = present[0], tf.gather(present, tf.cast(last, tf.int32))
    begun = smallest + even * (largest - smallest)
    if init == "linear":
        return begun

    def move(step: tf.Tensor, centroids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        near = nearest(ascending, centroids)
        sums, members = member_sums(ascending * counted, near, count), member_sums(counted, near, count)
        return step + 1, tf.where(members > 0.0, tf.math.divide_no_nan(sums, members), centroids)

    _, moved = tf.while_loop(lambda step, _: step < LLOYD_STEPS, move, [tf.constant(0), begun])
    return moved


def nearest(weights: tf.Tensor, centroids: tf.Tensor) -> tf.Tensor:
    """Return the index of the nearest centroid of each weight, int32; halfway between two, that of the smaller one."""
    order = tf.argsort(centroids, stable=True)
    ascending = tf.gather(centroids, order)
    middles = 0.5 * (ascending[1:] + ascending[:-1])
    return tf.reshape(tf.gather(order, tf.searchsorted(middles, tf.reshape(weights, [-1]))), weights.shape)


def clustered(weights: tf.Tensor, centroids: tf.Tensor) -> tf.Tensor:
    """Return exactly the nearest centroid of each weight, with a straight-through gradient for the weights."""

    @tf.custom_gradient
    def pulled(values: tf.Tensor) -> tuple[tf.Tensor, object]:
        found = tf.gather(centroids, nearest(tf.cast(values, tf.float32), centroids))
        return tf.cast(found, values.dtype), lambda upstream: upstream

    return pulled(weights)


def member_sums(values: tf.Tensor, members: tf.Tensor, count: int) -> tf.Tensor:
    """Return the sum of the values of each centroid's members, float32 [count]; for gradients, the centroids' own."""
    return tf.math.unsorted_segment_sum(tf.cast(values, tf.float32), members, count)
