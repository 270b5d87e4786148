"""Choose entries to prune."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from hookline.hooks.kernels import Kernel
from hookline.hooks.pruning.criteria import (
    favour_kept,
    from_matrix,
    keep_in_groups,
    keep_largest,
    matrix_shape,
    protect_largest,
    spread_units,
    stay_pruned,
    to_matrix,
    unit_scores,
    unit_shape,
)
from hookline.hooks.pruning.options import Structure
from hookline.hooks.pruning.schedules import kept_units


@dataclass(frozen=True)
class MaskSelector:
    """Choose the units that an update keeps.

    Attributes:
        kernels: to make masks for.
        counts: how many units each update keeps: a list for each kernel or, in global scope, one for all. With n:m,
            units kept in every group.
        structure: what a unit is.
        criterion: how units are ranked.
        hysteresis: how much kept entries are favoured; None if nothing comes back.
    """

    kernels: Sequence[Kernel]
    counts: Sequence[Sequence[int]]
    structure: Structure
    criterion: str
    hysteresis: float | None

    def __call__(
        self, latent: Mapping[str, tf.Tensor], masks: Mapping[str, tf.Tensor], update: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return the new mask of each kernel, bool of its shape."""
        scores = [self._scores(kernel, latent[kernel.name], masks[kernel.name]) for kernel in self.kernels]
        counts = [tf.gather(tf.constant(each, tf.int32), update) for each in self.counts]
        if self.structure.name == "n_m":
            group = self.structure.sizes[1]
            kept = [keep_in_groups(each, count, group) for each, count in zip(scores, counts, strict=True)]
        elif len(counts) == len(scores):
            kept = [self._largest(each, count) for each, count in zip(scores, counts, strict=True)]
        else:
            kept = self._largest_of_all(scores, counts[0])
        return [self._mask(kernel, each) for kernel, each in zip(self.kernels, kept, strict=True)]

    def _scores(self, kernel: Kernel, latent: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        matrix, kept = (to_matrix(tensor, kernel.channel_axes) for tensor in (latent, mask))
        scores = unit_scores(matrix, self.structure, self.criterion)
        was_kept = unit_scores(tf.cast(kept, tf.float32), self.structure, "magnitude") > 0
        return (
            stay_pruned(scores, was_kept) if self.hysteresis is None else favour_kept(scores, was_kept, self.hysteresis)
        )

    @staticmethod
    def _largest(scores: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return tf.reshape(keep_largest(tf.reshape(scores, [-1]), count), scores.shape)

    @staticmethod
    def _largest_of_all(scores: Sequence[tf.Tensor], count: tf.Tensor) -> list[tf.Tensor]:
        flat = [protect_largest(tf.reshape(each, [-1])) for each in scores]
        parts = tf.split(keep_largest(tf.concat(flat, axis=0), count), [math.prod(each.shape) for each in scores])
        return [tf.reshape(part, each.shape) for part, each in zip(parts, scores, strict=True)]

    def _mask(self, kernel: Kernel, kept: tf.Tensor) -> tf.Tensor:
        shape = tuple(kernel.variable.shape)
        matrix = spread_units(kept, matrix_shape(shape, kernel.channel_axes), self.structure)
        return from_matrix(matrix, shape, kernel.channel_axes)


def kept_counts(
    kernels: Sequence[Kernel], sparsities: Mapping[str, Sequence[float]], structure: Structure, scope: str
) -> list[list[int]]:
    """Return the `counts` of a MaskSelector."""
    units = [
        structure.sizes[1]
        if structure.name == "n_m"
        else math.prod(unit_shape(matrix_shape(tuple(kernel.variable.shape), kernel.channel_axes), structure))
        for kernel in kernels
    ]
    if scope == "global":
        values = sparsities[kernels[0].layer]
        return [[kept_units(sum(units), value, minimum=len(kernels)) for value in values]]
    return [
        [kept_units(count, value) for value in sparsities[kernel.layer]]
        for kernel, count in zip(kernels, units, strict=True)
    ]
