"""What a step reports: averages over examples and over steps, and the norms of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, Objective, ObjectiveOutput
from hookline.trainer.step.stage import named_scope

SumAndCount: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"
Scalars: TypeAlias = "dict[str, tf.Tensor]"


@dataclass
class Computed:
    """What an objective computed for one batch, averaged over its examples."""

    losses: dict[str, tf.Tensor]  # scalars, with those of layers and hooks, and "total"
    metrics: dict[str, tf.Tensor]  # scalars
    collected: dict[str, tf.Tensor]  # tensors [batch, ...] that an evaluation keeps


@dataclass
class StepResult:
    """What one traced step returns, or one run of an objective."""

    sums: dict[str, SumAndCount] = field(default_factory=dict)  # by metric
    vetoes: dict[str, tf.Tensor] = field(default_factory=dict)  # bool scalars; True held the step back
    held_back: tf.Tensor | None = None  # bool scalar, whether anything was held back; None if nothing can be
    overflow: tf.Tensor | None = None  # bool scalar, whether gradients overflowed for the loss scale; None without one

    def add(self, run: StepResult, prefix: str) -> None:
        """Add one more run of an objective: metrics become averages over its runs."""
        for name, (total, count) in run.sums.items():
            before = self.sums.get(prefix + name, (0.0, 0.0))
            self.sums[prefix + name] = (before[0] + total, before[1] + count)
        for name, veto in run.vetoes.items():
            self.vetoes[prefix + name] = either(self.vetoes.get(prefix + name), veto)
        self.held_back = run.held_back
        if run.overflow is not None:
            self.overflow = either(self.overflow, run.overflow)


def unless(stops: Sequence[tf.Tensor], write: Callable[[], Scalars]) -> tuple[tf.Tensor, Scalars]:
    """Write in a branch that is taken only when nothing stops the step; where nothing can, there is no branch."""
    if not stops:
        with named_scope("metrics"):  # where it is counted
            committed = tf.constant(True)
        return committed, write()
    with named_scope("veto"):
        allowed = tf.logical_not(tf.reduce_any(tf.stack(stops)))
    return when(allowed, write, name="unless_vetoed")


def when(flag: tf.Tensor, compute: Callable[[], Scalars], *, name: str | None = None) -> tuple[tf.Tensor, Scalars]:
    """Return the flag and float32 scalars by name, computed in a branch that is taken where it is True; else zeros."""
    if tf.get_static_value(flag):
        return flag, compute()
    names: list[str] = []

    def taken() -> list[tf.Tensor]:
        values = compute()
        names.extend(values)
        return [tf.constant(True), *values.values()]

    def left_out() -> list[tf.Tensor]:
        return [tf.constant(False), *(tf.constant(0.0) for _ in names)]

    done, *values = tf.cond(flag, taken, left_out, name=name)  # `taken` is traced first
    return done, dict(zip(names, values, strict=True))


def either(known: tf.Tensor | None, flag: tf.Tensor) -> tf.Tensor:
    """Return whether one of two flags is raised; the first may not exist."""
    return flag if known is None else tf.logical_or(known, flag)


def example_weights(batch: Batch) -> tf.Tensor:
    """Return float32 weights [batch]: the batch's own "weights" (0 marks padding), or ones."""
    if "weights" in batch:
        return tf.cast(batch["weights"], tf.float32)
    return tf.ones([tf.shape(tf.nest.flatten(batch["inputs"])[0])[0]], tf.float32)


def sample_weights(batch: Batch) -> tf.Tensor:
    """Return float32 weights [batch]: how much each example counts, 0 for padding."""
    weights = example_weights(batch)
    if SAMPLE_WEIGHTS not in batch:
        return weights
    if (given := batch[SAMPLE_WEIGHTS].shape).rank != 1:
        raise UserError(
            f"The data has {SAMPLE_WEIGHTS} of shape {given}. Expected [batch]: one number for each example."
        )
    return weights * tf.cast(batch[SAMPLE_WEIGHTS], tf.float32)


def weighted_mean(name: str, value: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the float32 mean of a loss or metric over the real examples of a batch."""
    value = tf.cast(value, tf.float32)
    if value.shape.rank == 0:
        return value
    if value.shape.rank != 1:
        raise ValueError(f"'{name}' has the shape {value.shape}. Expected [batch] or []: reduce the other axes.")
    return tf.math.divide_no_nan(tf.reduce_sum(value * weights), tf.reduce_sum(weights))


def average_output(output: ObjectiveOutput, batch: Batch) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Return the losses, sum(w * loss) / n, and the metrics, sum(w * metric) / sum(w), with Keras's sample weights."""
    weights, own = example_weights(batch), sample_weights(batch)
    losses = output.losses
    if SAMPLE_WEIGHTS in batch:
        each = tf.cast(batch[SAMPLE_WEIGHTS], tf.float32)
        losses = {
            name: tf.cast(value, tf.float32) * each if value.shape.rank == 1 else value
            for name, value in losses.items()
        }
    means = {name: weighted_mean(name, value, weights) for name, value in losses.items()}
    metrics = {name: weighted_mean(name, value, own) for name, value in output.metrics.items()}
    return means, metrics


def check_sample_weights(objective: Objective, losses: Mapping[str, tf.Tensor], batch: Batch) -> None:
    """Refuse sample weights for an objective without a loss for each example."""
    if SAMPLE_WEIGHTS in batch and all(value.shape.rank == 0 for value in losses.values()):
        raise UserError(
            f"The data has sample weights, but no loss of '{objective.name}' is one for each example: "
            f"{', '.join(losses)}. Expected data without, such as arrays without sample_weight_train."
        )


class Accumulators:
    """Sums and counts of metrics in a variable [metrics, 2], added to inside the graph, read and reset outside."""

    def __init__(self) -> None:
        self.names: list[str] = []  # set while the step is traced; until then the variable has an open shape
        self.variable = tf.Variable(
            tf.zeros([0, 2]), shape=tf.TensorShape([None, 2]), trainable=False, dtype=tf.float32, name="accumulators"
        )

    def add(self, sums: tf.Tensor) -> None:
        """Add sums and counts to the variable, inside the graph."""
        self.variable.assign_add(sums)

    def is_empty(self) -> tf.Tensor:
        """Return whether no step was counted since the reset: a bool scalar, inside the graph."""
        return tf.reduce_all(self.variable[:, 1] == 0.0)

    def reset(self) -> None:
        self.variable.assign(tf.zeros([len(self.names), 2]))

    def reset_others(self) -> None:
        """Set all to zero if the variable was given sums of other metrics, as a run of another version leaves them."""
        if self.variable.numpy().shape != (len(self.names), 2):
            self.reset()

    def read(self) -> dict[str, float]:
        """Return the averages by name; a metric without a count is left out."""
        values = self.variable.numpy()
        return {name: float(total / count) for name, (total, count) in zip(self.names, values, strict=True) if count}


BEFORE, AFTER = "grad_norm/before", "grad_norm/after"
SAMPLED_EVERY = 7
"""Steps from one sample of the norms of gradients, and of what hooks measure, to the next; the first step of a report
is sampled, too. Reading every gradient and kernel once more in every step costs up to a tenth of the speed. A prime
avoids resonance with masks and schedules, whose periods are mostly multiples of ten."""


class GradientNorms:
    """The norms of the gradients of one run of an objective, before and after each hook that may change them.

    A norm is that of all gradients of a network together, sqrt(sum_i ||g_i||^2), in float32, of the whole batch and
    without the loss scale. A gradient that a hook left unchanged is read once.
    """

    def __init__(self, gradients: Mapping[str, Gradients]) -> None:
        self._several = len(gradients) > 1
        self._noted: dict[str, list[tf.Tensor]] = {}
        for network, each in gradients.items():
            self._note(network, BEFORE, each)

    def add(self, hook: GraphHook, gradients: Gradients) -> None:
        """Note what a hook passed on."""
        if type(hook).transform_gradients is not GraphHook.transform_gradients:
            self._note(hook.network, f"{AFTER}/{hook.key}", gradients)
            self._note(hook.network, AFTER, gradients)

    def _note(self, network: str, name: str, gradients: Gradients) -> None:
        name = f"{network}/{name}" if self._several else name
        self._noted.pop(name, None)  # the last one goes last
        self._noted[name] = [value for value in gradients.values() if value is not None]

    def compute(self) -> dict[str, tf.Tensor]:
        """Return the norms by name, float32 scalars."""
        squares: dict[int, tf.Tensor] = {}
        for value in (value for values in self._noted.values() for value in values):
            if id(value) not in squares:  # rows that slices name several times count as their sum
                squares[id(value)] = 2.0 * tf.nn.l2_loss(tf.cast(tf.convert_to_tensor(value), tf.float32))
        return {
            name: tf.sqrt(tf.add_n([squares[id(value)] for value in values])) if values else tf.constant(0.0)
            for name, values in self._noted.items()
        }
