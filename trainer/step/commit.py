"""The end of a step: replicas joined, updates under control dependencies, apply, project."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch
from hookline.trainer.replicas.replica import Replica, shared_seeds
from hookline.trainer.step.audit import TRAINER, Commit, hook_writes, writes_of
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.forward import seed_names
from hookline.trainer.step.metrics import Computed, example_weights, sample_weights
from hookline.trainer.step.returned import checked
from hookline.trainer.step.stage import UPDATE_OPS, in_stage, named_scope, taking_part
from hookline.trainer.step.updates import collect_hook_updates, collect_state_updates, pending_update_ops
from hookline.trainer.step.writes import refuse_double_writes

EXAMPLES, SAMPLES, EQUAL = "examples", "samples", "equal"
"""How a replica's part is weighted in a mean: by its number of examples, by their sample weights, or equally."""


def join_replicas(
    replica: Replica, gradients: dict[str, Gradients], contexts: Mapping[str, StepContext], computed: Computed
) -> dict[str, Gradients]:
    """Return gradients of the mean loss over the replicas; put means of losses, metrics and statistics in place.

    Losses, metrics and gradients are means over examples, so they are joined by `mean_over_batch`; statistics are not
    weighted. Everything goes into one sum: many small messages would each pay the network's latency.
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
    """Return the vetoes that any replica raised; put the hooks' `batch_sums` over the whole batch into the contexts."""
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
    """Return the new state with the seed states that all replicas share; refuse state that would diverge."""
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


Apply = Callable[[Network, Gradients], None]


def commit_step(
    objective: str,
    contexts: Mapping[str, StepContext],
    hooks: Sequence[GraphHook],
    apply: Apply,
    changed_state: Mapping[str, Collection[str]],
    pending: Mapping[tf.Operation, str],
) -> tuple[Commit, dict[str, tf.Tensor]]:
    """Write what a step writes, in order: UPDATE_OPS, apply, project; then measure."""
    graph, names = tf.compat.v1.get_default_graph(), _names_by_handle(contexts)
    record = _write_updates(objective, contexts, hooks, changed_state, pending)
    with tf.control_dependencies(record.update_ops):
        start = len(graph.get_operations())
        for context in contexts.values():
            apply(context.network, context.gradients)
        trainable = {_label(key, name, contexts) for key, context in contexts.items() for name in context.latent}
        written = writes_of(graph.get_operations()[start:], names)
        record.apply_ops = {name: operations for name, operations in written.items() if name in trainable}
    record.hook_writes = hook_writes(hooks, contexts)
    with tf.control_dependencies([operation for operations in record.apply_ops.values() for operation in operations]):
        for hook in hooks:
            if hook.network in contexts:  # also where it takes no part: the promise is one about the network
                with in_stage(hook, "project"):
                    checked(hook, "project", hook.project(contexts[hook.network]))  # type: ignore[func-returns-value]
        return record, _measure(hooks, contexts)


def _write_updates(
    objective: str,
    contexts: Mapping[str, StepContext],
    hooks: Sequence[GraphHook],
    changed_state: Mapping[str, Collection[str]],
    pending: Mapping[tf.Operation, str],
) -> Commit:
    """Fill UPDATE_OPS and return the record of it."""
    graph, names = tf.compat.v1.get_default_graph(), _names_by_handle(contexts)
    start = len(graph.get_operations())
    added_by = _collect_updates(contexts, hooks, pending)
    update_ops = pending_update_ops()
    written = writes_of(graph.get_operations()[start:], names)
    return Commit(
        objective,
        graph,
        update_ops,
        update_writes=[", ".join(writes_of([op], names)) for op in update_ops],
        missing_gradients=_missing_gradients(hooks, contexts),
        dropped_state=[name for name in _unfrozen(hooks, changed_state) if name not in written],
        added_by=added_by,
        gradients={name: dict(context.gradients) for name, context in contexts.items()},
    )


def commit_unless_vetoed(
    vetoes: Sequence[tf.Tensor], commit: Callable[[], dict[str, tf.Tensor]]
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Run `commit` in a branch that is taken only when no veto is True; without vetoes there is no branch."""
    if not vetoes:
        with named_scope("metrics"):  # where it is counted
            committed = tf.constant(True)
        return committed, commit()
    names: list[str] = []

    def write() -> list[tf.Tensor]:
        measures = commit()
        names.extend(measures)
        return [tf.constant(True), *measures.values()]

    def hold_back() -> list[tf.Tensor]:
        return [tf.constant(False), *(tf.constant(0.0) for _ in names)]

    with named_scope("veto"):
        allowed = tf.logical_not(tf.reduce_any(tf.stack(vetoes)))  # `write` is traced first: it has the names
    committed, *values = tf.cond(allowed, write, hold_back, name="unless_vetoed")
    return committed, dict(zip(names, values, strict=True))


def _collect_updates(
    contexts: Mapping[str, StepContext], hooks: Sequence[GraphHook], pending: Mapping[tf.Operation, str]
) -> dict[tf.Operation, str]:
    """Fill UPDATE_OPS; return all its ops with who put them there, those `pending` from before first."""
    added_by = dict(pending)
    for context in contexts.values():
        with named_scope(UPDATE_OPS, context.network.name):
            collect_state_updates(context.network.state_variables, context.new_state)
    added_by |= {operation: TRAINER for operation in pending_update_ops() if operation not in added_by}
    made: dict[str, list[tf.Operation]] = {}
    for hook in hooks:
        made |= collect_hook_updates([hook], contexts)
        added_by |= {operation: hook.name for operation in pending_update_ops() if operation not in added_by}
    refuse_double_writes(hooks, contexts, made)
    return added_by


def _missing_gradients(hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]) -> list[str]:
    missing = {
        name: [key for key, value in context.gradients.items() if value is None] for name, context in contexts.items()
    }
    return _unfrozen(hooks, missing)


def _unfrozen(hooks: Sequence[GraphHook], variables: Mapping[str, Collection[str]]) -> list[str]:
    """Return those of the variables, names by network, that no hook declares frozen."""
    found = []
    for network, names in variables.items():
        frozen = {name for hook in hooks if hook.network == network for name in hook.frozen()}
        found += [_label(network, name, variables) for name in names if name not in frozen]
    return found


def _label(network: str, name: str, networks: Collection[str]) -> str:
    """Return the name of a variable, with its network where there are several: their paths may be the same."""
    return name if len(networks) == 1 else f"{network}/{name}"


def _names_by_handle(contexts: Mapping[str, StepContext]) -> dict[int, str]:
    return {
        id(variable.value.handle): _label(network, name, contexts)
        for network, context in contexts.items()
        for name, variable in context.network.variables.items()
    }


def _measure(hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]) -> dict[str, tf.Tensor]:
    measures: dict[str, tf.Tensor] = {}
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "measure"):
            for name, value in checked(hook, "measure", hook.measure(context)).items():
                if hook.scope + name in measures:
                    raise UserError(f"Two hooks measure '{hook.scope}{name}'. Give each its own name.")
                measures[hook.scope + name] = tf.identity(
                    tf.cast(value, tf.float32)
                )  # an op: a stray tensor shows here
    return measures
