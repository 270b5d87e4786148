"""What replicas share in a step: means of gradients, losses and statistics, sums of hooks, flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch
from hookline.trainer.replicas.replica import Replica, shared_seeds
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.forward import seed_names
from hookline.trainer.step.metrics import Computed, example_weights, sample_weights

Sum: TypeAlias = "tuple[StepContext, str, tf.Tensor]"
"""Where a sum over the batch goes, its name there, and this replica's part of it."""
EXAMPLES, SAMPLES, EQUAL = "examples", "samples", "equal"
"""How a replica's part is weighted in a mean: by its number of examples, by their sample weights, or equally."""


def join_replicas(
    replica: Replica, gradients: dict[str, Gradients], contexts: Mapping[str, StepContext], computed: Computed
) -> dict[str, Gradients]:
    """Return gradients of the mean loss over the replicas; put means of losses, metrics and statistics in place."""
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
    # One sum for all: many small messages would each pay the network's latency.
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
    """Return the means over the examples of a whole batch, from those over this replica's part of it.

    Parts have equally many examples. In a batch with weights, a part counts by the sum of its weights, as if one
    replica had the whole batch.
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


def join_flags(replica: Replica, flags: dict[str, tf.Tensor], sums: Sequence[Sum]) -> dict[str, tf.Tensor]:
    """Return the flags that any replica raised; put sums over the whole batch into the contexts, in one message."""
    given = [tf.cast(flag, tf.float32) for flag in flags.values()] if replica.count > 1 else []
    joined = replica.sum([*(value for _, _, value in sums), *given])
    for (context, name, _), value in zip(sums, joined, strict=False):
        context.sums[name] = value
    return dict(zip(flags, [flag > 0.0 for flag in joined[len(sums) :]], strict=True)) if given else flags


def _shared_state(context: StepContext, replica: Replica) -> dict[str, tf.Tensor]:
    """Return the new state with the seed states that all replicas share; refuse state that would diverge."""
    seeds = seed_names(context.network)
    for name, value in context.new_state.items():
        if name not in seeds and not value.dtype.is_floating:
            raise UserError(f"The forward pass writes '{name}' as {value.dtype.name}. Expected float32.")
    return shared_seeds(context.new_state, seeds, replica)


def _is_joined(value: tf.Tensor | None) -> bool:
    """Return whether a value is one that replicas compute from their parts; seed states are integers."""
    return value is not None and value.dtype.is_floating
