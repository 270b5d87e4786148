"""What replicas computed from their parts of a batch, joined to what the whole batch gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import Gradients, GraphHook
from trainer.objective import SAMPLE_WEIGHTS, Batch
from trainer.replicas.replica import Replica
from trainer.replicas.seeds import shared_seeds
from trainer.step.context import StepContext
from trainer.step.forward import seed_names
from trainer.step.metrics import Computed, example_weights, sample_weights
from trainer.step.returned import checked
from trainer.step.stage import in_stage
from trainer.step.taking_part import taking_part

EXAMPLES, SAMPLES, EQUAL = "examples", "samples", "equal"
"""What a replica's part counts by in a mean: the number of its examples, their sample weights, or as any other part."""


def join_replicas(
    replica: Replica, gradients: dict[str, Gradients], contexts: Mapping[str, StepContext], computed: Computed
) -> dict[str, Gradients]:
    """Return gradients of the mean loss over the replicas; put means of losses, metrics and statistics in place.

    Losses, metrics and gradients are means over examples, so they are joined by `mean_over_batch`; statistics are not
    weighed. Everything goes in one sum: many small messages would each pay the network's latency.

    Args:
        replica: this one; nothing changes for the only one.
        gradients: of the loss over this replica's part, by network and variable.
        contexts: of the networks that the objective changes, by name; `new_state` is joined: means of statistics, and
            the one seed state of all.
        computed: its losses and metrics are joined.

    Raises:
        UserError: the forward pass writes state of which there is no mean.
    """
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

    Parts have equally many examples. Where the batch has weights of its own, a part counts by the sum of its weights:
    so does each micro batch, and so would it where one replica has all of the batch.

    Args:
        replica: this one.
        batch: its part.
        means: over the examples of the part, float.
        shares: what each part counts by, for each of them: `EXAMPLES`, `SAMPLES` for means that heed sample weights,
            `EQUAL`; None for `EXAMPLES`.
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


def join_flags_and_sums(
    replica: Replica,
    vetoes: dict[str, tf.Tensor],
    hooks: Sequence[GraphHook],
    contexts: Mapping[str, StepContext],
) -> dict[str, tf.Tensor]:
    """Return the vetoes that any replica raised; put the hooks' `batch_sums` over the whole batch into the contexts.

    Args:
        replica: this one.
        vetoes: bool scalars by name, of this replica.
        hooks: in order.
        contexts: of the networks that the objective changes, by name.
    """
    found: list[tuple[StepContext, str, tf.Tensor]] = []
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "batch_sums"):
            sums = checked(hook, "batch_sums", hook.batch_sums(context))
            found += [(context, f"{hook.name}/{name}", value) for name, value in sums.items()]
    flags = [tf.cast(flag, tf.float32) for flag in vetoes.values()] if replica.count > 1 else []
    joined = replica.sum([*(value for _, _, value in found), *flags])
    for (context, name, _), value in zip(found, joined, strict=False):
        context.sums[name] = value
    return dict(zip(vetoes, [flag > 0.0 for flag in joined[len(found) :]], strict=True)) if flags else vetoes


def _shared_state(context: StepContext, replica: Replica) -> dict[str, tf.Tensor]:
    """Return the new state with the seed states that all replicas share; refuse what they would not share."""
    seeds = seed_names(context.network)
    for name, value in context.new_state.items():
        if name not in seeds and not value.dtype.is_floating:
            raise UserError(
                f"The forward pass writes '{name}', {value.dtype.name}, of which {replica.count} replicas cannot take "
                "a mean. Expected a float32 variable, or trainer.strategy=none."
            )
    return shared_seeds(context.new_state, seeds, replica)


def _is_joined(value: tf.Tensor | None) -> bool:
    """Return whether a value is one that replicas compute from their parts; seed states are integers."""
    return value is not None and value.dtype.is_floating
