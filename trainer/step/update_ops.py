"""UPDATE_OPS: what must have run before the optimizer applies gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.step.audit import ancestors
from trainer.step.context import StepContext
from trainer.step.returned import checked
from trainer.step.scope import with_outer_graphs
from trainer.step.stage import in_stage
from trainer.step.taking_part import taking_part

UPDATE_OPS = tf.compat.v1.GraphKeys.UPDATE_OPS
READING_OPS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})


def pending_update_ops(*, inner: bool = False) -> list[tf.Operation]:
    """Return the ops that the graph being traced has in its UPDATE_OPS collection.

    The collection also shows the ops of graphs around it, and of branches and loops inside it; they are left out.

    Args:
        inner: whether to return those of branches and loops inside it, too.

    Raises:
        UserError: the collection holds what is no part of this trace, and so would never run in it.
    """
    graph = tf.compat.v1.get_default_graph()
    operations = []
    for item in tf.compat.v1.get_collection(UPDATE_OPS):
        operation = _operation(item)
        around = [] if operation is None else with_outer_graphs(operation.graph)
        if operation is None or with_outer_graphs(graph)[-1] not in around:
            raise UserError(
                f"UPDATE_OPS holds {_described(item)}, which was made outside this step (eagerly, or in another trace) "
                "and would never run in it. Create it where the step is traced."
            )
        if graph in around if inner else operation.graph is graph:
            operations.append(operation)
    return operations


def collect_state_updates(variables: dict[str, keras.Variable], new_state: dict[str, tf.Tensor]) -> None:
    """Put one assignment a state variable (moving statistics, seed state) into UPDATE_OPS.

    `stateless_call` returns the new values; without these ops nothing would write them.

    Args:
        variables: the network's state variables by name.
        new_state: the values to write, by name.
    """
    for name, value in new_state.items():
        variable = variables[name].value
        tf.compat.v1.add_to_collection(UPDATE_OPS, _operation(variable.assign(tf.cast(value, variable.dtype))))


def collect_hook_updates(
    hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]
) -> dict[str, list[tf.Operation]]:
    """Put the update ops that hooks create into UPDATE_OPS, once each.

    Args:
        hooks: in order.
        contexts: what the hooks see, by network name; those that take no part are passed over.

    Returns:
        All ops that each hook created, by its name.

    Raises:
        UserError: a hook returns what is no op of this graph, or an op that writes nothing.
    """
    graph = tf.compat.v1.get_default_graph()
    made = {}
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "update_ops"):
            start = len(graph.get_operations())
            returned = checked(hook, "update_ops", hook.update_ops(context))
            made[hook.name] = graph.get_operations()[start:]
            for item in returned:
                operation = _checked(hook.name, item, made[hook.name])
                if operation not in pending_update_ops():
                    tf.compat.v1.add_to_collection(UPDATE_OPS, operation)
    return made


def checked_update(source: str, method: str, item: Any, made: Sequence[tf.Operation]) -> tf.Operation:
    """Return the op behind what was returned as an update, once it is certain that it runs in this step and writes.

    Args:
        source: who returned it, such as "hook 'ema'".
        method: which of its methods did.
        item: what it returned.
        made: the ops that the method created.

    Raises:
        UserError: it is no op that was made there, or writes nothing.
    """
    operation = _operation(item)
    if operation is None or operation not in made:
        raise UserError(
            f"The {source} returned {_described(item)} from {method}. Expected an op that was created there, in "
            "this step: return what assign, assign_add or scatter_sub returned. What was made outside (eagerly, in "
            "another trace, stage or inner graph) would not run with this step's updates."
        )
    if not any(_may_write(each) for each in {operation, *ancestors(operation)} & {*made}):
        raise UserError(
            f"The {source} returned {_described(item)} from {method}, which writes no variable: reading it and "
            "adding gives a new tensor. Return what assign, assign_add or scatter_sub returned."
        )
    return operation


def _checked(hook: str, item: Any, made: Sequence[tf.Operation]) -> tf.Operation:
    return checked_update(f"hook '{hook}'", "update_ops", item, made)


def _may_write(operation: tf.Operation) -> bool:
    """Return whether an op, or what it calls, may change something."""
    return operation.op_def.is_stateful and operation.type not in READING_OPS


def _operation(item: Any) -> tf.Operation | None:
    """Return the op behind an op, a tensor or the variable that an assignment returns in a function; None of others."""
    operation = item if isinstance(item, tf.Operation) else getattr(item, "op", None)
    return operation if isinstance(operation, tf.Operation) else None


def _described(item: Any) -> str:
    operation = _operation(item)
    if operation is None:
        return f"something that is no op ({type(item).__name__})"
    return f"the op {operation.name} ({operation.type})"
