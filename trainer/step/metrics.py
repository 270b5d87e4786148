"""Losses and metrics of a step: means over examples, steps and replicas, the loss scale, and norms of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import SAMPLE_WEIGHTS, SOFT_TARGETS, Batch, Objective, ObjectiveOutput
from hookline.trainer.replicas.replica import Replica, shared_seeds
from hookline.trainer.step.context import StepContext, named_scope
from hookline.trainer.step.means import COUNTS, example_weights, mean_counts, sample_weights

SumAndCount: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"
Scalars: TypeAlias = "dict[str, tf.Tensor]"


@dataclass
class Computed:
    """The results of an objective for one batch, averaged over its examples."""

    losses: dict[str, tf.Tensor]  # scalars, including those of layers and hooks, and "total"
    metrics: dict[str, tf.Tensor]  # scalars
    collected: dict[str, tf.Tensor]  # tensors [batch, ...] that an evaluation keeps
    counts: dict[str, tf.Tensor] = field(default_factory=dict)  # as `mean_counts` returns them
    of_batch: bool = False  # whether a loss or metric was one number for the batch, regardless of example weights


@dataclass
class StepResult:
    """The results of one traced step, or of one run of an objective."""

    sums: dict[str, SumAndCount] = field(default_factory=dict)  # by metric
    vetoes: dict[str, tf.Tensor] = field(default_factory=dict)  # bool scalars; True held the step back
    held_back: tf.Tensor | None = None  # bool scalar, whether anything was held back; None if nothing can be
    overflow: tf.Tensor | None = None  # bool scalar, whether gradients overflowed for the loss scale; None without one

    def add(self, run: StepResult, prefix: str) -> None:
        """Add one more run of an objective; metrics are averaged over its runs."""
        for name, (total, count) in run.sums.items():
            before = self.sums.get(prefix + name, (0.0, 0.0))
            self.sums[prefix + name] = (before[0] + total, before[1] + count)
        for name, veto in run.vetoes.items():
            self.vetoes[prefix + name] = either(self.vetoes.get(prefix + name), veto)
        self.held_back = run.held_back
        if run.overflow is not None:
            self.overflow = either(self.overflow, run.overflow)


def unless(stops: Sequence[tf.Tensor], write: Callable[[], Scalars]) -> tuple[tf.Tensor, Scalars]:
    """Write in a branch that is taken only if no flag in `stops` is True; without flags, there is no branch."""
    if not stops:
        with named_scope("metrics"):  # where it is counted
            committed = tf.constant(True)
        return committed, write()
    with named_scope("veto"):
        allowed = tf.logical_not(tf.reduce_any(tf.stack(stops)))
    return when(allowed, write, name="unless_vetoed")


def when(flag: tf.Tensor, compute: Callable[[], Scalars], *, name: str | None = None) -> tuple[tf.Tensor, Scalars]:
    """Return the flag, and float32 scalars by name, computed in a branch if the flag is True, else zeros."""
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
    """Return the logical or of two flags, of which the first may be None."""
    return flag if known is None else tf.logical_or(known, flag)


def check_sample_weights(objective: Objective, losses: Mapping[str, tf.Tensor], batch: Batch) -> None:
    """Raise an error if there are sample weights, but the objective has no loss per example."""
    if SAMPLE_WEIGHTS in batch and all(value.shape.rank == 0 for value in losses.values()):
        raise UserError(
            f"The data has sample weights, but no loss of '{objective.name}' has one value per example: "
            f"{', '.join(losses)}. Expected a loss that does, or data without sample weights."
        )


class Accumulators:
    """Sums and counts of metrics in a variable [metrics, 2], updated inside the graph, read and reset outside."""

    def __init__(self) -> None:
        self.names: list[str] = []  # set while the step is traced; until then the variable has an open shape
        self.variable = tf.Variable(
            tf.zeros([0, 2]), shape=tf.TensorShape([None, 2]), trainable=False, dtype=tf.float32, name="accumulators"
        )

    def add(self, sums: tf.Tensor) -> None:
        """Add sums and counts to the variable, inside the graph."""
        self.variable.assign_add(sums)

    def is_empty(self) -> tf.Tensor:
        """Return whether no step has been counted since the last reset: a bool scalar, inside the graph."""
        return tf.reduce_all(self.variable[:, 1] == 0.0)

    def reset(self) -> None:
        self.variable.assign(tf.zeros([len(self.names), 2]))

    def reset_others(self) -> None:
        """Set all to zero if the variable holds sums of other metrics, such as from a run of another version."""
        if self.variable.numpy().shape != (len(self.names), 2):
            self.reset()

    def read(self) -> dict[str, float]:
        """Return the averages by name, without metrics that have a count of 0."""
        values = self.variable.numpy()
        return {name: float(total / count) for name, (total, count) in zip(self.names, values, strict=True) if count}


BEFORE, AFTER = "grad_norm/before", "grad_norm/after"
SAMPLED_EVERY = 7
"""Steps between samples of the gradient norms and of the hooks' measures; a report's first step is sampled, too.
Reading every gradient and kernel again in every step would cost up to a tenth of the speed. A prime avoids resonance
with masks and schedules, which mostly have periods that are multiples of ten."""


class GradientNorms:
    """The gradient norms of one run of an objective, before and after each hook that may change the gradients.

    Each is the global norm of a network's gradients, sqrt(sum_i ||g_i||^2), in float32, over the whole batch and
    without the loss scale. A gradient that a hook left unchanged is read once.
    """

    def __init__(self, gradients: Mapping[str, Gradients]) -> None:
        self._several = len(gradients) > 1
        self._noted: dict[str, list[tf.Tensor]] = {}
        for network, each in gradients.items():
            self._note(network, BEFORE, each)

    def add(self, hook: GraphHook, gradients: Gradients) -> None:
        """Record the gradients that a hook returned."""
        if type(hook).transform_gradients is not GraphHook.transform_gradients:
            self._note(hook.network, f"{AFTER}/{hook.key}", gradients)
            self._note(hook.network, AFTER, gradients)

    def _note(self, network: str, name: str, gradients: Gradients) -> None:
        name = f"{network}/{name}" if self._several else name
        self._noted.pop(name, None)  # so that the latest is last
        self._noted[name] = [value for value in gradients.values() if value is not None]

    def compute(self) -> dict[str, tf.Tensor]:
        """Return the norms by name, float32 scalars."""
        squares: dict[int, tf.Tensor] = {}
        for value in (value for values in self._noted.values() for value in values):
            if id(value) not in squares:  # rows that occur several times in slices are summed
                squares[id(value)] = 2.0 * tf.nn.l2_loss(tf.cast(tf.convert_to_tensor(value), tf.float32))
        return {
            name: tf.sqrt(tf.reduce_sum([squares[id(value)] for value in values])) if values else tf.constant(0.0)
            for name, values in self._noted.items()
        }


def weigh_losses(
    objective: Objective, losses: Mapping[str, tf.Tensor], batch: Batch, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return the losses of an objective, each example's multiplied by the weight of its class or mixture of classes.

    Their means divide by the number of examples, not by the sum of the weights, as in Keras for `class_weight`.
    """
    if SOFT_TARGETS in batch:
        own = tf.linalg.matvec(batch[SOFT_TARGETS], weights)
    else:
        own = tf.gather(weights, batch["targets"])
    return {
        name: value * tf.cast(own, value.dtype) if name in objective.class_losses else value
        for name, value in losses.items()
    }


def check_class_losses(objectives: Sequence[Objective]) -> None:
    """Raise an error if no objective has a loss that class weights apply to."""
    if not any(objective.class_losses for objective in objectives):
        names = ", ".join(f"'{objective.name}'" for objective in objectives)
        raise UserError(
            f"trainer.class_weights received, but no loss of {names} supports class weights. Expected "
            "trainer.class_weights=null here; trainer.class_sampling changes how often classes are drawn."
        )


INITIAL, FLOOR, CEILING = 2.0**15, 1.0, 2.0**60
"""Powers of two, so that scaling is exact. The ceiling prevents overflow of the scale while all gradients are 0."""
GROWTH_STEPS = 2000
MANTISSA_BITS, BIAS = 23, 127  # of float32: the bits below its exponent, and the exponent's bias


class LossScale:
    """The factor by which the loss is multiplied before it is differentiated.

    float16 has no positive numbers below 6e-8, so small gradients underflow to 0. The gradient of scale * loss is
    larger by the scale; dividing by it in float32 gives the true one. If it overflows, the step is skipped and the
    scale halved; after 2000 steps without overflow it is doubled (Micikevicius et al., "Mixed Precision Training", ICLR
    2018, section 3.2). A non-finite loss is not an overflow, nor is a gradient at the floor: no lower scale helps.
    """

    def __init__(self) -> None:
        self.value = tf.Variable(INITIAL, trainable=False, dtype=tf.float32, name="loss_scale")
        self.finite_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="finite_steps")
        self.overflow_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="overflow_steps")

    def state(self) -> dict[str, tf.Variable]:
        """Return the variables by name; every checkpoint contains them."""
        return {"value": self.value, "finite_steps": self.finite_steps, "overflow_steps": self.overflow_steps}

    def divided(self, gradients: Gradients) -> Gradients:
        """Return the gradients divided by the scale."""
        return {
            name: None if value is None else value / tf.cast(self.value, value.dtype)
            for name, value in gradients.items()
        }

    def inner(self) -> tf.Tensor:
        """Return the scale of gradients inside a loss, such as in a gradient penalty: float32 scalar, a power of two.

        Such a gradient is differentiated again, with scale / inner: using the whole scale here would only move the
        underflow to that second backward pass. The square root, rounded down to a power of two, leaves room in both.
        """
        exponent = tf.bitwise.right_shift(tf.bitcast(self.value, tf.int32), MANTISSA_BITS) - BIAS
        return tf.bitcast(tf.bitwise.left_shift(exponent // 2 + BIAS, MANTISSA_BITS), tf.float32)

    def overflow(self, loss: tf.Tensor, gradients: Iterable[Gradients], inner: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        """Return whether gradients overflowed because of the scale: bool scalar."""
        present = [value for each in gradients for value in each.values() if value is not None]
        finite = [tf.reduce_all(tf.math.is_finite(value)) for value in present]
        lost = tf.logical_not(tf.reduce_all(tf.stack(finite))) if finite else tf.constant(False)
        lost = tf.logical_and(lost, tf.math.is_finite(loss))
        return tf.logical_and(tf.reduce_any(tf.stack([lost, *inner])), self.value > FLOOR)

    def update(self, overflow: tf.Tensor, written: tf.Tensor) -> None:
        """Lower or raise the scale at the end of a step."""
        count = tf.where(overflow, tf.constant(0, tf.int64), self.finite_steps + tf.cast(written, tf.int64))
        grows = count >= GROWTH_STEPS
        raised = tf.where(grows, tf.minimum(self.value * 2.0, CEILING), self.value)
        lowered = tf.maximum(self.value / 2.0, FLOOR)
        self.value.assign(tf.where(overflow, lowered, raised))
        self.finite_steps.assign(tf.where(grows, tf.zeros_like(count), count))
        self.overflow_steps.assign_add(tf.cast(overflow, tf.int64))


def check_optimizer(network: Network, *, scaled: bool) -> None:
    """Raise an error if the optimizer has its own loss scale besides ours, or accumulates gradients itself."""
    optimizer = network.optimizer
    if scaled and isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UserError(f"The optimizer of '{network.name}' is a LossScaleOptimizer. Expected its inner optimizer.")
    if steps := getattr(optimizer, "inner_optimizer", optimizer).gradient_accumulation_steps:
        raise UserError(
            f"The optimizer of '{network.name}' has gradient_accumulation_steps={steps}: hooks would update in every "
            f"step, but the optimizer would not. Use trainer.accumulation_steps={steps} instead, and set "
            "trainer.batch_size to the whole batch."
        )


Sum: TypeAlias = "tuple[StepContext, str, tf.Tensor]"
"""The context that receives a sum over the batch, the name of the sum, and this replica's part of it."""
EXAMPLES, SAMPLES, EQUAL = "examples", "samples", "equal"
"""How a replica's part is weighted in a mean: by its number of examples, by their sample weights, or equally."""


def join_replicas(
    replica: Replica, gradients: dict[str, Gradients], contexts: Mapping[str, StepContext], computed: Computed
) -> dict[str, Gradients]:
    """Return gradients of the mean loss over the replicas; replace losses, metrics and statistics by their means."""
    if replica.count == 1:
        return gradients
    for context in contexts.values():
        context.new_state = _shared_state(context, replica)
    states = [each.new_state for each in contexts.values()]
    tables = [*gradients.values(), computed.losses, computed.metrics, *states]
    kinds = [*[EXAMPLES] * len(gradients), EXAMPLES, SAMPLES, *[EQUAL] * len(states)]
    given = [
        (value, kind)
        for table, kind in zip(tables, kinds, strict=True)
        for value in table.values()
        if _is_joined(value)
    ]
    batch = next(iter(contexts.values())).batch
    # One sum for all: many small messages would each incur network latency.
    means = iter(mean_over_batch(replica, batch, [value for value, _ in given], [kind for _, kind in given]))
    joined = iter(
        [{name: next(means) if _is_joined(value) else value for name, value in table.items()} for table in tables]
    )
    result = {name: next(joined) for name in gradients}
    computed.losses, computed.metrics = next(joined), next(joined)
    for context in contexts.values():
        context.new_state, context.losses = next(joined), computed.losses
    return result


def mean_over_batch(
    replica: Replica, batch: Batch, means: Sequence[tf.Tensor], shares: Sequence[str] | None = None
) -> list[tf.Tensor]:
    """Return the means over the examples of a whole batch, given those over this replica's part of it.

    Parts have equal numbers of examples. In a batch with weights, each part is weighted by the sum of its weights, as
    if one replica had the whole batch.
    """
    if replica.count == 1 or not {"weights", SAMPLE_WEIGHTS} & batch.keys():
        return replica.mean(means)
    shares = [EXAMPLES] * len(means) if shares is None else shares
    own = {
        EXAMPLES: tf.reduce_sum(example_weights(batch)),
        SAMPLES: tf.reduce_sum(sample_weights(batch)),
        EQUAL: tf.constant(1.0),
    }
    values = [value * tf.cast(own[share], value.dtype) for value, share in zip(means, shares, strict=True)]
    joined = replica.sum([*values, *own.values()])
    totals = dict(zip(own, joined[len(values) :], strict=True))
    return [
        tf.math.divide_no_nan(value, tf.cast(totals[share], value.dtype))
        for value, share in zip(joined[: len(values)], shares, strict=True)
    ]


def with_counts(output: ObjectiveOutput, batch: Batch, replica: Replica) -> Batch:
    """Return a batch along with its mean counts over all replicas, by which each of its parts divides."""
    means = mean_counts(output, batch)
    shares = [SAMPLES if name.startswith("metric/") else EXAMPLES for name in means]
    joined = mean_over_batch(replica, batch, list(means.values()), shares)
    return {**batch, **{COUNTS + name: mean for name, mean in zip(means, joined, strict=True)}}


def join_flags(replica: Replica, flags: dict[str, tf.Tensor], sums: Sequence[Sum]) -> dict[str, tf.Tensor]:
    """Return flags that are True if any replica raised them; add sums over the batch to contexts, in one message."""
    given = [tf.cast(flag, tf.float32) for flag in flags.values()] if replica.count > 1 else []
    joined = replica.sum([*(value for _, _, value in sums), *given])
    for (context, name, _), value in zip(sums, joined, strict=False):
        context.sums[name] = value
    return dict(zip(flags, [flag > 0.0 for flag in joined[len(sums) :]], strict=True)) if given else flags


def _shared_state(context: StepContext, replica: Replica) -> dict[str, tf.Tensor]:
    """Return the new state with the seed states that all replicas share; raise an error if state would diverge."""
    seeds = context.network.seed_names
    for name, value in context.new_state.items():
        if name not in seeds and not value.dtype.is_floating:
            raise UserError(f"The forward pass writes '{name}' as {value.dtype.name}. Expected float32.")
    return shared_seeds(context.new_state, seeds, replica)


def _is_joined(value: tf.Tensor | None) -> bool:
    """Return whether replicas compute a value from their parts, as for all floats; seed states are integers."""
    return value is not None and value.dtype.is_floating
