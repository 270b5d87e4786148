"""How far a trainer is: networks, hooks and what the next fit continues from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from hookline.callbacks import Watch
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Hook, HostHook
from hookline.trainer.run.assembly import Assembly
from hookline.trainer.run.fit import Fit
from hookline.trainer.run.state import assign_variables, evaluation_keys
from hookline.trainer.step.trainer import Trainer as StepTrainer

SUMS = "accumulators"


@dataclass
class State:
    """Hold what was trained.

    Attributes:
        trainer: of the step.
        hooks: at work, in order.
        watch: keeps the history.
        variables: that training depends on, by key.
        parts: of the latest fit; None where a run was loaded.
        fit: likewise.
        counter: steps made, int64 scalar, for steps of one's own.
    """

    trainer: StepTrainer
    hooks: list[Hook]
    watch: Watch
    variables: dict[str, tf.Variable]
    parts: Assembly | None = None
    fit: Fit | None = None
    counter: tf.Variable = field(default_factory=lambda: tf.Variable(0, trainable=False, dtype=tf.int64))
    loaded_step: int = 0

    @property
    def step(self) -> int:
        """Return how many steps were made."""
        made = self.loaded_step if self.fit is None else self.fit.run.step
        return made + int(self.counter.numpy())

    def put_best(self) -> None:
        """Give networks and hooks the values of the best evaluation."""
        assert self.fit is not None
        kept = self.fit.store.load("best").tensors
        assign_variables({key: self.variables[key] for key in evaluation_keys(self.variables)}, kept, "the best")


def carry_on(before: State, fit: Fit, *, same_data: bool) -> None:
    """Let a fit begin where another one, of the same trainer, ended.

    Args:
        before: how far that one came.
        fit: built, at step 0.
        same_data: whether both have the same examples, so that evaluations compare.

    Raises:
        UserError: the networks are not the same.
    """
    values = {key: variable for key, variable in before.variables.items() if key != SUMS}
    own = {key: variable for key, variable in fit.variables.items() if key != SUMS}
    assign_variables(own, {key: each.numpy() for key, each in _matched(values, own).items()}, "the fit before")
    run = fit.run
    run.step, run.resumed_at = before.step, [before.step]
    known = {hook.name: hook for hook in before.hooks if isinstance(hook, HostHook)}
    for hook in fit.host_hooks:
        if (old := known.get(hook.name)) is not None and old is not hook:
            hook.load_state_dict(old.state_dict())
    if before.fit is not None:
        run.warnings, fit.warned = list(before.fit.run.warnings), set(before.fit.warned)
        run.resumed_at = [*before.fit.run.resumed_at, before.step]
        fit.elapsed_before = before.fit.elapsed
        if same_data:
            run.best.put_back(before.fit.run.best.as_json())


def _matched(values: Mapping[str, Any], own: Mapping[str, tf.Variable]) -> Mapping[str, Any]:
    """Return values by the keys of new variables: by name, or in order where layers of hooks got other numbers."""
    if values.keys() == own.keys():
        return values
    if [each.shape for each in values.values()] != [each.shape for each in own.values()]:
        raise UserError("The networks or hooks of this fit are not those of the one before. Expected a new Trainer.")
    return dict(zip(own, values.values(), strict=True))
