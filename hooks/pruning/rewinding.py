"""Rewinding: what a network and its optimizer hold early in training is kept, and put back when masks change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.copy_network import moving_variables

NOT_YET = -1


class Rewinding:
    """Keep latent variables, moving statistics, and the optimizer's slots and count, and put them back together."""

    def __init__(self, network: Network, begin: int) -> None:
        """Make the state for what is kept at the step `begin`; seeds are not among it, so draws do not repeat."""
        from hookline.trainer.step.forward import seed_names

        self._network, self._begin = network, begin
        own = {name: each for name, each in network.variables.items() if name not in seed_names(network)}
        self._optimizer = {f"optimizer/{name}": each for name, each in moving_variables(network).items()}
        self._live = {**own, **self._optimizer}
        self._early = {
            name: tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False, name="early")
            for name, each in self._live.items()
        }
        self._step = tf.Variable(NOT_YET, trainable=False, dtype=tf.int64, name="early_step")

    @property
    def state(self) -> dict[str, tf.Variable]:
        return {"early_step": self._step, **{f"early/{name}": variable for name, variable in self._early.items()}}

    @property
    def is_kept(self) -> tf.Tensor:
        """Return whether there is something to go back to."""
        return tf.not_equal(self._step, NOT_YET)

    @property
    def early_step(self) -> int | None:
        """Return the step whose state is kept; None before it."""
        step = int(self._step.numpy())
        return None if step == NOT_YET else step

    def keep(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        """Return ops that keep what a step finds: that of `begin`, or of the first after it that is not held back."""
        due = tf.logical_and(tf.logical_not(self.is_kept), context.step >= self._begin)
        found = {**context.latent, **context.state, **{name: each.value for name, each in self._optimizer.items()}}
        values = tf.cond(
            due,
            lambda: [tf.convert_to_tensor(found[name]) for name in self._early],
            lambda: [tf.convert_to_tensor(early) for early in self._early.values()],
        )
        kept = [early.assign(value) for early, value in zip(self._early.values(), values, strict=True)]
        return [*kept, self._step.assign(tf.where(due, context.step, self._step))]

    def early_or(self, new_state: Mapping[str, tf.Tensor], when: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return new moving statistics, or the early ones."""
        early = {name: self._early[name] for name in new_state if name in self._early}
        return {
            name: tf.where(when, early[name], tf.cast(value, early[name].dtype)) if name in early else value
            for name, value in new_state.items()
        }

    def put_back(self, latent: Iterable[str], when: tf.Tensor) -> None:
        """Assign what was kept to latent variables and the optimizer; the step writes moving statistics."""

        def assign() -> tf.Tensor:
            for name in (*latent, *self._optimizer):
                self._live[name].value.assign(self._early[name])
            return tf.constant(True)

        tf.cond(when, assign, lambda: tf.constant(False))


def check_rewind(epoch: float, step: int, first: int) -> None:
    """Refuse to go back to a step that has not been made when masks change."""
    if step >= first:
        raise UserError(
            f"rewind_epoch={epoch:g} (step {step}) is not before the masks to rewind under are made, in step {first}. "
            "Expected an earlier rewind_epoch, or a later begin_epoch or end_epoch."
        )
