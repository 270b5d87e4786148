"""UPDATE_OPS: what a step writes besides the optimizer's updates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, Objective
from hookline.trainer.ops.graph_walk import ancestors, with_outer_graphs
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.returned import checked
from hookline.trainer.step.stage import UPDATE_OPS, in_stage, named_scope, taking_part
from hookline.trainer.step.writes import (
    READING_OPS,
    TRAINER,
    Commit,
    label,
    names_by_handle,
    refuse_double_writes,
    writes_of,
)

COLLECTION = tf.compat.v1.GraphKeys.UPDATE_OPS


def pending_update_ops() -> list[tf.Operation]:
    """Return the ops of the graph being traced that are in UPDATE_OPS."""
    graph = tf.compat.v1.get_default_graph()
    operations = []
    for item in tf.compat.v1.get_collection(COLLECTION):  # it also shows the ops of graphs around and inside
        operation = _operation(item)
        if operation is None or with_outer_graphs(graph)[-1] not in with_outer_graphs(operation.graph):
            raise UserError(
                f"UPDATE_OPS holds {_described(item)}, which was made outside this step (eagerly, or in another trace) "
                "and would never run in it. Create it where the step is traced."
            )
        if operation.graph is graph:
            operations.append(operation)
    return operations


def collect_updates(
    hooks: Sequence[GraphHook],
    contexts: Mapping[str, StepContext],
    changed_state: Mapping[str, Collection[str]],
    record: Commit,
) -> None:
    """Fill UPDATE_OPS: state, then hooks in order; record what is there, who added it and what it writes."""
    graph = record.graph
    start = len(graph.get_operations())
    for context in contexts.values():
        with named_scope(UPDATE_OPS, context.network.name):
            for name, value in context.new_state.items():
                variable = context.network.state_variables[name].value
                _add(variable.assign(tf.cast(value, variable.dtype)))
    record.added_by |= {operation: TRAINER for operation in pending_update_ops() if operation not in record.added_by}
    made: dict[str, list[tf.Operation]] = {}
    for hook, context in taking_part(hooks, contexts):
        first = len(graph.get_operations())
        with in_stage(hook, "update_ops"):
            returned = checked(hook, "update_ops", hook.update_ops(context))
            made[hook.name] = graph.get_operations()[first:]
            for item in returned:
                operation = _checked_update(f"hook '{hook.name}'", "update_ops", item, made[hook.name])
                if operation not in pending_update_ops():
                    _add(operation)
        record.added_by |= {each: hook.name for each in pending_update_ops() if each not in record.added_by}
    refuse_double_writes(hooks, contexts, made)
    record.update_ops = pending_update_ops()
    written = writes_of(graph.get_operations()[start:], names_by_handle(contexts))
    record.dropped_state = [name for name in _unfrozen(hooks, changed_state) if name not in written]
    missing = {key: [name for name, value in c.gradients.items() if value is None] for key, c in contexts.items()}
    record.missing_gradients = _unfrozen(hooks, missing)


def _add(item: Any) -> None:
    tf.compat.v1.add_to_collection(COLLECTION, _operation(item))


def _unfrozen(hooks: Sequence[GraphHook], variables: Mapping[str, Collection[str]]) -> list[str]:
    """Return those of the variables, names by network, that no hook declares frozen."""
    found = []
    for network, names in variables.items():
        frozen = {name for hook in hooks if hook.network == network for name in hook.declare().frozen}
        found += [label(network, name, variables) for name in names if name not in frozen]
    return found


def _checked_update(source: str, method: str, item: Any, made: Sequence[tf.Operation]) -> tf.Operation:
    """Return the op behind a returned update, after checking that it runs in this step and writes."""
    operation = _operation(item)
    if operation is None or operation not in made:
        raise UserError(
            f"The {source} returned {_described(item)} from {method}. Expected an op that was created there, in "
            "this step: return what assign, assign_add or scatter_sub returned. What was made outside (eagerly, in "
            "another trace, stage or inner graph) would not run with this step's updates."
        )
    # What is stateful and does not only read may write, itself or in a function that it calls.
    before = {operation, *ancestors(operation)} & {*made}
    if not any(each.op_def.is_stateful and each.type not in READING_OPS for each in before):
        raise UserError(
            f"The {source} returned {_described(item)} from {method}, which writes no variable: reading it and "
            "adding gives a new tensor. Return what assign, assign_add or scatter_sub returned."
        )
    return operation


def _operation(item: Any) -> tf.Operation | None:
    """Return the op behind an op, a tensor or the variable that an assignment returns in a function; None of others."""
    operation = item if isinstance(item, tf.Operation) else getattr(item, "op", None)
    return operation if isinstance(operation, tf.Operation) else None


def _described(item: Any) -> str:
    operation = _operation(item)
    if operation is None:
        return f"something that is not an op ({type(item).__name__})"
    return f"the op {operation.name} ({operation.type})"


def batch_parts(objective: Objective, batch: Batch) -> Iterator[Batch]:
    """Yield the batches of an objective's runs in one step: equal parts; what has no row per example goes whole."""
    if objective.updates == 1:
        yield batch
        return
    examples = tf.nest.flatten(batch["inputs"])[0].shape[0]
    if examples is None or examples % objective.updates:
        raise UserError(
            f"Objective '{objective.name}' has updates={objective.updates}, received for batches of "
            f"{examples or 'an unknown number of'} examples. Expected as many examples for each update: give a "
            f"trainer.batch_size that {objective.updates} divides, also after replicas have shared it."
        )
    size = examples // objective.updates
    for update in range(objective.updates):
        rows = slice(update * size, (update + 1) * size)
        yield tf.nest.map_structure(
            lambda each, rows=rows: each[rows] if each.shape.rank and each.shape[0] == examples else each, batch
        )


def begin_run(objective: Objective, networks: Mapping[str, Network], held_back: tf.Tensor | None) -> list[tf.Operation]:
    """Create the ops that run before an objective reads any variable, and put them into UPDATE_OPS."""
    if type(objective).begin is Objective.begin:
        return []
    if held_back is None:
        operations = _begin(objective, networks)
    else:

        def run() -> tf.Tensor:
            with tf.control_dependencies(_begin(objective, networks)):
                return tf.constant(True)

        operations = [_branch(tf.cond(held_back, lambda: tf.constant(False), run).op)]
    for operation in operations:
        _add(operation)
    return operations


def _begin(objective: Objective, networks: Mapping[str, Network]) -> list[tf.Operation]:
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    returned = objective.begin(networks)
    made = graph.get_operations()[start:]
    return [_branch(_checked_update(f"objective '{objective.name}'", "begin", item, made)) for item in returned]


def _branch(operation: tf.Operation) -> tf.Operation:
    """Return the branch behind the op that returns its result, so that the plan can look into it."""
    return operation.inputs[0].op if operation.type == "Identity" else operation
