"""The audit: walk the traced step's graph and refuse a run whose updates are not wired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import Gradients, GraphHook
from trainer.step.context import StepContext
from trainer.step.taking_part import taking_part

WRITING_OPS = frozenset(
    {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
    | {f"ResourceScatter{kind}" for kind in ("Add", "Sub", "Update", "Mul", "Div", "Min", "Max")}
    | {f"ResourceScatterNd{kind}" for kind in ("Add", "Sub", "Update", "Min", "Max")}
    | {"ResourceStridedSliceAssign", "AssignVariableXlaConcatND"}
)
FORWARD, TRAINER, BEGIN = "the forward pass", "the trainer", "begin"
"""Who puts ops into UPDATE_OPS beside hooks: code that adds to it the classic way; the trainer, for new state; the
objective's `begin`."""


@dataclass
class Commit:
    """Record the writing part of one objective's step, as it was traced.

    Attributes:
        objective: name of the objective.
        graph: the graph in which the ops stand.
        update_ops: what UPDATE_OPS held when the optimizer was called.
        apply_ops: the ops by which the optimizer wrote trainable variables, by variable name.
        update_writes: names of the variables that each update op writes, in the order of `update_ops`.
        hook_writes: for each hook, the names that it declares and the ops that write them in this graph.
        missing_gradients: names of trainable variables without a gradient that no hook declared frozen.
        dropped_state: names of state variables that the forward pass changes and no op writes, without frozen ones.
        added_by: who put each op into UPDATE_OPS, in order: `BEGIN`, `FORWARD`, `TRAINER` or a hook's name. Also ops
            from before the writing part that stand in an outer graph, where a veto puts that part into a branch.
        gradients: what the optimizers were given, by network name.
        runs: names of the networks that the objective's forward pass called.
        update: which of the objective's runs in the step this is, from 0.
    """

    objective: str
    graph: tf.Graph
    update_ops: list[tf.Operation] = field(default_factory=list)
    apply_ops: dict[str, list[tf.Operation]] = field(default_factory=dict)
    update_writes: list[str] = field(default_factory=list)
    hook_writes: dict[str, dict[str, list[tf.Operation]]] = field(default_factory=dict)
    missing_gradients: list[str] = field(default_factory=list)
    dropped_state: list[str] = field(default_factory=list)
    added_by: dict[tf.Operation, str] = field(default_factory=dict)
    gradients: dict[str, Gradients] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    update: int = 0


def written_variables(operation: tf.Operation) -> list[int]:
    """Return the identities of the variable handles that an op writes, none for an op that writes no variable.

    A kernel of an optimizer writes the variable and its slots. A handle reaches an inner graph (loop body, branch)
    through captures; they are followed to the outermost graph.

    Args:
        operation: any op of a graph that is being traced.
    """
    if operation.type.startswith(("ResourceApply", "ResourceSparseApply")):
        return [outermost(tensor) for tensor in operation.inputs if tensor.dtype == tf.resource]
    return [outermost(operation.inputs[0])] if operation.type in WRITING_OPS else []


def outermost(tensor: tf.Tensor) -> int:
    """Return the identity of the tensor that `tensor` was captured from, in the outermost graph or eagerly."""
    while isinstance(graph := getattr(tensor, "graph", None), tf.__internal__.FuncGraph):
        captured = {id(internal): external for external, internal in graph.captures}
        if id(tensor) not in captured:
            break
        tensor = captured[id(tensor)]
    return id(tensor)


def ancestors(operation: tf.Operation) -> set[tf.Operation]:
    """Return every op that runs before `operation`, through inputs and control inputs, within its graph.

    Args:
        operation: where the walk starts; not part of the result.
    """
    found: set[tf.Operation] = set()
    waiting = [operation]
    while waiting:
        current = waiting.pop()
        for parent in (*(tensor.op for tensor in current.inputs), *current.control_inputs):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def writes_of(operations: Iterable[tf.Operation], names: Mapping[int, str]) -> dict[str, list[tf.Operation]]:
    """Return the writing ops among `operations` by the name of the variable that they write.

    Args:
        operations: ops of the graph being traced.
        names: variable name by the identity of its handle; other variables are left out.
    """
    written: dict[str, list[tf.Operation]] = {}
    for operation in operations:
        for handle in written_variables(operation):
            if handle in names:
                written.setdefault(names[handle], []).append(operation)
    return written


def hook_writes(
    hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]
) -> dict[str, dict[str, list[tf.Operation]]]:
    """Return for each hook what it declares to write, with the ops of the current graph that write it.

    Args:
        hooks: those that take part are looked at.
        contexts: by network name.
    """
    operations = tf.compat.v1.get_default_graph().get_operations()
    found = {}
    for hook, _ in taking_part(hooks, contexts):
        if declared := hook.writes():
            names = {id(variable.handle): name for name, variable in declared.items()}
            written = writes_of(operations, names)
            found[hook.name] = {name: written.get(name, []) for name in declared}
    return found


def audit(commit: Commit) -> None:
    """Refuse a step whose update ops do not run before the apply, or do not run at all.

    Args:
        commit: the record of a traced step.

    Raises:
        UserError: names the hook or the variable and the remedy.
    """
    if commit.missing_gradients:
        raise UserError(
            f"No gradient reaches {', '.join(commit.missing_gradients)} in objective '{commit.objective}'. Expected "
            "every trainable variable to influence the loss: connect it (sampling and rounding need a straight-through "
            "gradient), set trainable=False, or declare it in the hook's `frozen`."
        )
    if commit.dropped_state:
        raise UserError(
            f"The forward pass of objective '{commit.objective}' changes {', '.join(commit.dropped_state)}, but no op "
            "of the step writes that: the change would be lost. Return it from the hook's transform_state, or declare "
            "it in the hook's `frozen` to leave it alone."
        )
    for hook, declared in commit.hook_writes.items():
        for name, operations in declared.items():
            _audit_write(hook, name, operations, commit)
    for variable, operations in commit.apply_ops.items():
        _audit_order(variable, operations, commit)


def _audit_write(hook: str, name: str, operations: list[tf.Operation], commit: Commit) -> None:
    if not operations:
        raise UserError(
            f"The hook '{hook}' declares that it writes '{name}', but no op of the step writes it. Assign the variable "
            "in update_ops (reading it and adding gives a new tensor, it changes no variable)."
        )
    if not any(_is_wired(operation, commit.update_ops) for operation in operations):
        raise UserError(
            f"The hook '{hook}' writes '{name}' outside UPDATE_OPS: nothing makes it run before the weights change. "
            "Return the op from update_ops."
        )


def _is_wired(operation: tf.Operation, update_ops: list[tf.Operation]) -> bool:
    """Return whether an op is an update op, or runs before one, as the members of a tf.group do."""
    return operation in update_ops or any(operation in ancestors(update) for update in update_ops)


def _audit_order(variable: str, operations: list[tf.Operation], commit: Commit) -> None:
    for operation in operations:
        late = set(commit.update_ops) - ancestors(operation)
        if late:
            names = ", ".join(sorted(update.name for update in late))
            raise UserError(
                f"The update ops {names} are not control ancestors of the op {operation.name} that applies the "
                f"gradient of '{variable}'. Create the apply inside tf.control_dependencies of all update ops."
            )
