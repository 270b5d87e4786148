"""The writing part of a step: UPDATE_OPS, then the optimizers under their control dependencies, then projections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import Gradients, GraphHook
from trainer.network import Network
from trainer.step.audit import TRAINER, Commit, hook_writes, writes_of
from trainer.step.context import StepContext
from trainer.step.double_writes import refuse_double_writes
from trainer.step.name_scope import UPDATE_OPS, named_scope
from trainer.step.returned import checked
from trainer.step.stage import in_stage
from trainer.step.taking_part import taking_part
from trainer.step.update_ops import collect_hook_updates, collect_state_updates, pending_update_ops

Apply = Callable[[Network, Gradients], None]


def commit_step(
    objective: str,
    contexts: Mapping[str, StepContext],
    hooks: Sequence[GraphHook],
    apply: Apply,
    changed_state: Mapping[str, Collection[str]],
    pending: Mapping[tf.Operation, str],
) -> tuple[Commit, dict[str, tf.Tensor]]:
    """Write what a step writes, in order: UPDATE_OPS, apply, project; then measure.

    Args:
        objective: name of the objective.
        contexts: of the networks that the objective changes, by network name, gradients filled in.
        hooks: in order.
        apply: applies gradients to one network.
        changed_state: names of the state variables for which the forward pass gave new values, by network name.
        pending: what UPDATE_OPS held after the forward pass, perhaps in an outer graph, and who put it there.

    Returns:
        The record for the audit, and the hooks' measures as float32 scalars by name.
    """
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
    """Run `commit` in a branch that is taken only when no veto is True; without vetoes there is no branch.

    Args:
        vetoes: bool scalars.
        commit: writes the step and returns measures, float32 scalars.

    Returns:
        Whether the step was written (bool scalar), and the measures (zeros when it was not).
    """
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
    """Fill UPDATE_OPS; return all that it holds with who put it there, what was `pending` before first."""
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
