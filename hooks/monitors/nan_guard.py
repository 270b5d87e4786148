"""NaN guard: hold back a step with a non-finite loss, gradient or new state; then stop, skip the step or roll back."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.options import first_of
from hookline.trainer.errors import NonFiniteError, check_choice, check_integer, check_number
from hookline.trainer.hook import Declaration, GraphHook, HostHook, Run, Tensors
from hookline.trainer.step.context import StepContext

SHOWN_NAMES = 5
REMEDY = "Lower the learning rate, clip the gradients, or check data and initial weights for NaN."
STOP, SKIP, ROLLBACK = POLICIES = ("stop", "skip", "rollback")
OWN = re.compile(r"(?:[^/]+/){0,2}?(?:loss|gradient|state)/.")
"""Matches a veto of the guard: objective and network, each only if there are several, then the kind and the name."""


class NanGuard(GraphHook, HostHook):
    """Stop the run in the step in which a non-finite value would reach a variable, or skip that step.

    The check is part of the step, so exactly the failing step is held back, however many steps one call of the traced
    loop makes. With a LossScaleOptimizer, which skips steps whose gradients overflow, gradients are not checked. If one
    of several objectives is skipped, the objectives after it in the step are skipped too (see `GraphHook.veto`).

    policy=rollback returns to the newest checkpoint. Which one that is depends on interruptions, since each saves one,
    and on the wall time unless `hooks.checkpoint.every_seconds=0`. With 0, uninterrupted runs are bit-identical.

    Group: guard

    State:
        skipped: the steps that were skipped.

    Cost: One sum over each loss, gradient and new statistic per step.

    Pitfalls:
        tests/hooks/monitors/test_nan_guard.py: infinities of both signs must not cancel, and a large finite sum must
            not count as infinite.
        tests/trainer/run/test_nan_policy.py: with one objective, a skipped step changes nothing. A run that is
            interrupted after its last rollback and resumed gives bit-identical results.
        tests/distributed/test_nan_on_one_replica.py: NaN in the part of one replica counts as NaN in all.

    Example:
        python train.py recipe=baseline hooks.nan_guard.policy=skip hooks.nan_guard.at_most=3
        python train.py recipe=baseline hooks.nan_guard.policy=rollback
    """

    priority = 0  # runs before any other hook acts on the chunk

    def __init__(
        self, *, policy: str = "stop", at_most: int = 10, rate_factor: float = 0.5, network: str = "*"
    ) -> None:
        """Set up the guard.

        Args:
            policy: "stop" ends the run at the first step that is held back; "skip" continues with the next step, as if
                that step had not been taken; "rollback" returns to the newest checkpoint and continues at a lower
                learning rate.
            at_most: how many steps a run may skip, or how often it may roll back, before it ends; at least 1.
            rate_factor: with "rollback", factor on the learning rate of every network each time; in (0, 1].
            network: name of the watched network, or a pattern; "*" for every network of a run.
        """
        self.network = network
        self._policy = check_choice("policy", policy, POLICIES)
        self._at_most = check_integer("at_most", at_most, minimum=1)
        self._rate_factor = check_number("rate_factor", rate_factor, minimum=0, maximum=1, above_minimum=True)
        self._skipped: list[int] = []

    def declare(self) -> Declaration:
        return Declaration()

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": list(self._skipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skipped = [int(step) for step in state["skipped"]]

    def summary(self) -> dict[str, Any]:
        return {"skipped": list(self._skipped)}

    def veto(self, context: StepContext) -> Tensors:
        """Return, for each loss, gradient and new state value, whether it contains NaN or infinity."""
        checked = {f"loss/{name}": value for name, value in context.losses.items()}
        if not isinstance(context.network.optimizer, keras.optimizers.LossScaleOptimizer):
            checked |= {f"gradient/{name}": value for name, value in context.gradients.items() if value is not None}
        checked |= {f"state/{name}": value for name, value in context.new_state.items()}
        return find_not_finite({name: value for name, value in checked.items() if value.dtype.is_floating})

    def on_veto(self, run: Run) -> None:
        """Skip the step that is held back, roll back, or raise an error that names step and variables."""
        if run.control.skip or run.control.rate_factor is not None:
            return  # the guard of another network has already handled it
        own = [name for name in run.control.vetoes if OWN.match(name)]
        if not own:
            return
        withheld = "This update was withheld, and all after it in the step."
        message = f"NaN or infinity at step {run.step} in {first_of(own, SHOWN_NAMES)}. {withheld}"
        if len(own) < len(run.control.vetoes) or not self._continues(run, message):
            after = f" {len(self._skipped)} steps were skipped before it." if self._skipped else ""
            raise NonFiniteError(f"{message}{after} {REMEDY}")

    def _continues(self, run: Run, message: str) -> bool:
        """Apply the policy, up to its limit; return whether the run continues."""
        if self._policy == SKIP and len(self._skipped) < self._at_most:
            self._skipped.append(run.step)
            warnings.warn(f"{message} It is skipped, {len(self._skipped)} of {self._at_most}.", stacklevel=4)
            run.control.skip_step()
            return True
        back = len(run.journal.rolled_back)
        if self._policy == ROLLBACK and back < self._at_most:
            again = f"The run rolls back to its newest checkpoint, {back + 1} of {self._at_most} times, and continues"
            warnings.warn(f"{message} {again} at {self._rate_factor} times the rate.", stacklevel=4)
            run.control.roll_back(self._rate_factor)
            return True
        return False


def find_not_finite(values: Mapping[str, tf.Tensor | tf.IndexedSlices]) -> Tensors:
    """Return bool scalars by name: whether any entry is not finite, checked only if the sum of all is not finite."""
    dense = [each.values if isinstance(each, tf.IndexedSlices) else each for each in values.values()]
    if not dense:
        return {}
    total = tf.add_n([tf.cast(tf.reduce_sum(each), tf.float32) for each in dense])
    flags = tf.cond(
        tf.math.is_finite(total),
        lambda: tf.zeros([len(dense)], tf.bool),
        lambda: tf.stack([tf.logical_not(tf.reduce_all(tf.math.is_finite(each))) for each in dense]),
    )
    return dict(zip(values, tf.unstack(flags), strict=True))
