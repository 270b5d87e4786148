"""What replicas computed from their parts of a batch, joined to what the whole batch gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from trainer.hook import Gradients, GraphHook
from trainer.replicas.replica import Replica
from trainer.replicas.seeds import shared_seeds
from trainer.step.context import StepContext
from trainer.step.forward import seed_names
from trainer.step.metrics import Computed
from trainer.step.stage import in_stage
from trainer.step.taking_part import taking_part


def join_replicas(
    replica: Replica, gradients: dict[str, Gradients], contexts: Mapping[str, StepContext], computed: Computed
) -> dict[str, Gradients]:
    """Return gradients of the mean loss over the replicas; put means of losses, metrics and statistics in place.

    Parts are equal, so the mean over replicas of a mean over examples is that over the batch. Everything goes in one
    sum: many small messages would each pay the network's latency.

    Args:
        replica: this one; nothing changes for the only one.
        gradients: of the loss over this replica's part, by network and variable.
        contexts: of the networks that the objective changes, by name; `new_state` is joined: means of statistics, and
            the one seed state of all.
        computed: its losses and metrics are joined.
    """
    if replica.count == 1:
        return gradients
    for context in contexts.values():
        context.new_state = shared_seeds(context.new_state, seed_names(context.network), replica)
    tables = [*gradients.values(), *(each.new_state for each in contexts.values()), computed.losses, computed.metrics]
    given = [value for table in tables for value in table.values() if _is_joined(value)]
    means = iter(replica.mean(given))
    joined = iter(
        [{name: next(means) if _is_joined(value) else value for name, value in table.items()} for table in tables]
    )
    result = {name: next(joined) for name in gradients}
    for context in contexts.values():
        context.new_state = next(joined)
    computed.losses, computed.metrics = next(joined), next(joined)
    for context in contexts.values():
        context.losses = computed.losses
    return result


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
            found += [(context, f"{hook.name}/{name}", value) for name, value in hook.batch_sums(context).items()]
    flags = [tf.cast(flag, tf.float32) for flag in vetoes.values()] if replica.count > 1 else []
    sums = replica.sum([*(value for _, _, value in found), *flags])
    for (context, name, _), value in zip(found, sums, strict=False):
        context.sums[name] = value
    return dict(zip(vetoes, [flag > 0.0 for flag in sums[len(found) :]], strict=True)) if flags else vetoes


def _is_joined(value: tf.Tensor | None) -> bool:
    """Return whether a value is one that replicas compute from their parts; seed states are integers."""
    return value is not None and value.dtype.is_floating
