"""Exponential moving averages of weights and moving statistics, used in evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hookline.hooks.options import begin_step
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.hook import Declaration, GraphHook, Run, Tensors
from hookline.trainer.network import inner_of
from hookline.trainer.step.context import BuildContext, StepContext

WARM_UP = 10.0  # of (1 + t) / (10 + t)
MOST_LEFT = 0.05  # warn if the final average contains a larger share of the initial weights


class Ema(GraphHook):
    """Average every float variable of a network over the steps, and evaluate with the averages.

    With `warm_up`, the default, even a short run forgets its initial values. Moving statistics are averaged along with
    the weights, so that they match. The averages are float32 if the variable has lower precision. Training never uses
    them.

    Each training step adds the values at its start, once for each objective that trains the network. An evaluation adds
    the current values to a copy, so its averages do not lag one step behind.

    Hooks that change weights run after this one: they quantize the averages, set pruned entries to 0, and reset frozen
    entries to their values. The best checkpoint is chosen by its averages and contains weights and averages;
    `init_from` loads the weights.

    Group: optimization

    Equation:
        A_0 = w_0,   A_t = A_(t-1) + (1 - d_t) (w_t - A_(t-1))
        d_t = min(decay, (1 + t) / (10 + t)) with warm_up, else decay

    State:
        average/<variable>: the average.
        updates: how many times values were added.

    Scalars:
        ema/decay: d, as used by an evaluation after the step.
        ema/distance: ||w - A|| / ||w|| over all trainable weights, after the step.

    Cost: A second copy of the variables in memory, and 0.96 of the speed (LeNet-5, batch 100).

    Pitfalls:
        tests/hooks/test_ema.py: averaged weights need averaged moving statistics. Plain averages would move pruned
            entries away from 0, frozen ones from their values, and quantized ones from their levels.

    Reference: Polyak and Juditsky 1992; Tarvainen and Valpola 2017, arXiv 1703.01780 (evaluation with averages).

    Example:
        python train.py recipe=baseline schedule=constant +hooks=ema
        python train.py recipe=sgan 'hooks.ema.network="global_*"' hooks.ema.objective=global_generator
    """

    priority = 10  # before every hook that transforms weights, so that latent weights are averaged

    def __init__(
        self,
        *,
        decay: float = 0.999,
        warm_up: bool = True,
        begin_epoch: float = 0.0,
        evaluate: bool = True,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            decay: in [0, 1), the share of the average that a step keeps; it covers about 1 / (1 - decay) steps.
            warm_up: whether the decay rises to this value over the first steps.
            begin_epoch: 0 or more; until then the averages equal the current values.
            evaluate: whether evaluations, pictures and the stripped model use the averages.
            network: name of the network.
        """
        self.decay = check_number("decay", decay, minimum=0.0, maximum=1.0, below_maximum=True)
        self.warm_up = warm_up
        self.begin_epoch = check_number("begin_epoch", begin_epoch, 0)
        self.evaluates = evaluate
        self.network = network

    def build(self, context: BuildContext) -> None:
        if inner_of(context.network.optimizer).use_ema:
            raise UserError(f"The optimizer keeps averages. Set optimizer.use_ema=false, or hooks.{self.key}=null.")
        self._begin = begin_step(self.begin_epoch, context)
        self._averages: dict[str, tf.Variable] = {}
        for name, variable in context.network.variables.items():
            value = tf.convert_to_tensor(variable.value)
            # Half precision would lose small updates.
            precise = tf.cast(value, tf.float32 if value.dtype.size < tf.float32.size else value.dtype)
            if value.dtype.is_floating:
                self._averages[name] = tf.Variable(precise, trainable=False, name="average")
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")

    def declare(self) -> Declaration:
        state = {**{f"average/{name}": each for name, each in self._averages.items()}, "updates": self._updates}
        return Declaration(state, writes=state)

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        """Return the averages in an evaluation, with current values of frozen entries."""
        if context.training or not self.evaluates:
            return weights
        values = {**weights, **context.state}
        if any(weights[name] is not read for name, read in context.latent.items()):
            raise UserError(f"An earlier hook changes what evaluations use. Set hooks.{self.key}.evaluate=false.")
        averaged = self._next({name: value for name, value in values.items() if name in self._averages})
        for name, average in averaged.items():
            value = values[name]
            average = tf.cast(average, value.dtype)
            average = tf.where(tf.equal(average, value), value, average)  # -0.0 + 0.0 is 0.0
            held = name in context.frozen_entries
            values[name] = tf.where(context.frozen_entries[name], value, average) if held else average
        return values

    def _next(self, values: Tensors) -> Tensors:
        """Return the averages after adding one value of each variable."""
        rate = self._rate()
        averages = {name: tf.convert_to_tensor(self._averages[name]) for name in values}
        precise = {name: tf.cast(value, averages[name].dtype) for name, value in values.items()}

        def add() -> list[tf.Tensor]:
            return [each + tf.cast(rate, each.dtype) * (precise[name] - each) for name, each in averages.items()]

        added = tf.cond(rate < 1.0, add, lambda: [tf.identity(each) for each in precise.values()])
        return dict(zip(values, added, strict=True))

    def _rate(self) -> tf.Tensor:
        """Return 1 - d for the next value, float32: 1 for the first value, which becomes the average."""
        count = tf.cast(self._updates, tf.float32)
        rate = tf.constant(1.0 - self.decay)
        if self.warm_up:
            rate = tf.maximum(rate, (WARM_UP - 1.0) / (WARM_UP + count))
        return tf.where(count > 0, rate, 1.0)

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        values = {**context.latent, **context.state}
        added = self._next({name: values[name] for name in self._averages})
        assigned = [self._averages[name].assign(average) for name, average in added.items()]
        # Values are not counted before `begin_epoch`, so the first one after it replaces the average.
        return [*assigned, self._updates.assign_add(tf.cast(context.step >= self._begin, tf.int64))]

    def measure(self, context: StepContext) -> Tensors:
        averages = {name: self._averages[name] for name in context.latent}
        variables = context.network.trainable_variables
        latent = {name: tf.cast(variables[name].value, average.dtype) for name, average in averages.items()}
        away = [tf.cast(latent[name] - average, tf.float32) for name, average in averages.items()]
        length = tf.linalg.global_norm([tf.cast(each, tf.float32) for each in latent.values()])
        decay = 1.0 - self._rate()  # an evaluation's average is nearer to the weights by this factor
        prefix = self.key
        return {
            f"{prefix}/distance": decay * tf.math.divide_no_nan(tf.linalg.global_norm(away), length),
            f"{prefix}/decay": decay,
        }

    def summary(self) -> dict[str, Any]:
        return {
            "decay": float(1.0 - self._rate()),
            "evaluate": self.evaluates,
            "begin_step": self._begin,
            "updates": int(self._updates.numpy()),
            "variables": len(self._averages),
        }

    def advise(self, run: Run) -> Sequence[str]:
        steps = run.total_steps - self._begin
        left = self.decay**steps
        if self.warm_up or left <= MOST_LEFT:
            return ()
        decay = 1.0 - 1.0 / max(2.0, steps / 20.0)
        return (
            f"decay={self.decay:g} over {steps} steps leaves {100 * left:.0f} % of the first weights in the average "
            f"that evaluations use. Set hooks.{self.key}.warm_up=true, or decay={decay:.2g}.",
        )
