"""The norms of gradients along their way to the optimizer: before all hooks, and after each that may change them."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from trainer.hook import Gradients, GraphHook

BEFORE, AFTER = "grad_norm/before", "grad_norm/after"
SAMPLED_EVERY = 7
"""Steps from one norm to the next, at most. Reading every gradient once more in every step costs a small network some
percent; a seventh of that does not show. A prime meets no rhythm of masks and schedules, which are mostly tens."""


def norms_every(report_every: float) -> int:
    """Return the steps from one sample of the norms to the next, so that every whole report has one.

    Args:
        report_every: steps between two reports, perhaps a fraction.
    """
    return max(1, min(SAMPLED_EVERY, int(report_every)))


class GradientNorms:
    """Note the gradients of one run of an objective as hooks pass them on, and return their norms.

    A norm is the L2 norm of all gradients of a network together, sqrt(sum_i ||g_i||^2), in float32; a variable without
    a gradient adds nothing. "grad_norm/before" is that of what `Trainer.compute_gradients` gave: of the whole batch,
    over all micro batches and replicas, without the scale of the loss. "grad_norm/after/<hook>" is that of what a hook
    passed on, for each hook that overrides `transform_gradients`, in their order, and "grad_norm/after" that of what
    the optimizer gets, where there is such a hook. What a hook stops within the forward pass is in none of them.
    Replicas find the same norms: they are taken of joined gradients.

    They are taken at every n-th step alone: at 0, n, 2n and so on. What a hook passed on as it was is not read again.
    """

    def __init__(self, gradients: Mapping[str, Gradients]) -> None:
        """Note what was computed.

        Args:
            gradients: by network name, then by variable name.
        """
        self._several = len(gradients) > 1
        self._noted: dict[str, list[tf.Tensor]] = {}
        for network, each in gradients.items():
            self._note(network, BEFORE, each)

    def add(self, network: str, hook: GraphHook, gradients: Gradients) -> None:
        """Note what a hook passed on.

        Args:
            network: name.
            hook: that was asked.
            gradients: by variable name.
        """
        if type(hook).transform_gradients is not GraphHook.transform_gradients:
            self._note(network, f"{AFTER}/{hook.key}", gradients)
            self._note(network, AFTER, gradients)

    def _note(self, network: str, name: str, gradients: Gradients) -> None:
        name = f"{network}/{name}" if self._several else name
        self._noted.pop(name, None)  # what comes last stands last
        self._noted[name] = [value for value in gradients.values() if value is not None]

    def sample(self, step: tf.Tensor, every: int) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Return the norms by name, float32 scalars, and whether this step has them; they are 0 where it has not.

        Args:
            step: int64 scalar, steps made before this one.
            every: steps from one sample to the next; 1 for every step.
        """
        if every == 1:
            return dict(zip(self._noted, self._norms(), strict=True)), tf.constant(True)
        sampled = tf.equal(step % every, 0)
        norms = tf.cond(sampled, self._norms, lambda: [tf.constant(0.0)] * len(self._noted))
        return dict(zip(self._noted, norms, strict=True)), sampled

    def _norms(self) -> list[tf.Tensor]:
        squares: dict[int, tf.Tensor] = {}
        for value in (value for values in self._noted.values() for value in values):
            if id(value) not in squares:
                squares[id(value)] = _squared_norm(value)
        return [
            tf.sqrt(tf.add_n([squares[id(value)] for value in values])) if values else tf.constant(0.0)
            for values in self._noted.values()
        ]


def _squared_norm(value: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Return the sum of squares, float32; rows that slices name several times count as their sum."""
    return 2.0 * tf.nn.l2_loss(tf.cast(tf.convert_to_tensor(value), tf.float32))
