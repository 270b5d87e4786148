"""The writes of a step: found in its graph, collected in UPDATE_OPS, recorded and audited."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, Objective, owners_of
from hookline.trainer.ops.graph_walk import ancestors, origins, with_outer_graphs
from hookline.trainer.step.context import StepContext, named_scope
from hookline.trainer.step.means import Parts
from hookline.trainer.step.stage import UPDATE_OPS, checked, declared_followers, in_stage, taking_part

READING_OPS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "DisableCopyOnRead"}
)
"""Ops that take a variable's handle and only read the variable. Any other op that takes one may write it."""
PASSING_OPS = ("Identity", "IdentityN")
WRITING_OPS = ("AssignVariable", "AssignAdd", "AssignSub", "ResourceScatter", "ResourceStridedSliceAssign")
"""Prefixes of op types that write the variable of their first input, a handle."""


@dataclass(frozen=True)
class Write:
    """One write: the identity of a variable's handle, and the op that writes, perhaps inside a function."""

    handle: int
    operation: tf.Operation


def all_writes(operations: Iterable[tf.Operation]) -> list[Write]:
    """Return the writes that ops, and all functions that they call, may perform, in order."""
    return list(_writes(operations, {}))


def _writes(operations: Iterable[tf.Operation], given: Mapping[int, int]) -> Iterator[Write]:
    for operation in operations:
        taken = [tensor for tensor in operation.inputs if tensor.dtype == tf.resource]
        if not taken or operation.type in READING_OPS or operation.type in PASSING_OPS:
            continue
        functions = inner_graphs(operation)
        if not functions:
            yield from (Write(_origin(tensor, given), operation) for tensor in taken)
        for function in functions:
            inputs = list(operation.inputs)[-len(function.inputs) :]  # a predicate or an index may come before them
            pairs = zip(function.inputs, inputs, strict=True)
            inner = {id(own): _origin(outer, given) for own, outer in pairs if own.dtype == tf.resource}
            yield from _writes(function.get_operations(), inner)


def _origin(tensor: tf.Tensor, given: Mapping[int, int]) -> int:
    """Return the identity of the handle behind a tensor."""
    while isinstance(tensor, tf.Tensor) and getattr(tensor, "op", None) is not None and tensor.op.type in PASSING_OPS:
        tensor = tensor.op.inputs[tensor.value_index]
    return given[id(tensor)] if id(tensor) in given else _outermost(tensor)


def inner_graphs(operation: tf.Operation) -> list[tf.Graph]:
    """Return the graphs of the functions that an op calls: branches, the condition and body of a loop, calls."""
    names: list[str] = []
    for attribute in operation.op_def.attr:
        if attribute.type == "func":
            names.append(operation.get_attr(attribute.name).name)
        elif attribute.type == "list(func)":
            names += [each.name for each in operation.get_attr(attribute.name)]
    found = (operation.graph._get_function(name) for name in names if name)
    # A TensorFlow 1 Defun, such as the loop in tf.nn.ctc_loss, has no graph: `_writes` then assumes that its op writes
    # every variable among its inputs. That loop has none.
    return [graph for function in found if (graph := getattr(function, "graph", None)) is not None]


def all_operations(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yield ops, and the ops of every function that they call."""
    for operation in operations:
        yield operation
        for function in inner_graphs(operation):
            yield from all_operations(function.get_operations())


def written_variables(operation: tf.Operation) -> list[int]:
    """Return the identities of the variable handles that an op itself certainly writes."""
    if operation.type.startswith(("ResourceApply", "ResourceSparseApply")):  # an optimizer's kernel writes slots, too
        return [_outermost(tensor) for tensor in operation.inputs if tensor.dtype == tf.resource]
    return [_outermost(operation.inputs[0])] if operation.type.startswith(WRITING_OPS) else []


def _outermost(tensor: tf.Tensor) -> int:
    return id(origins(tensor)[-1])


def writes_of(operations: Iterable[tf.Operation], names: Mapping[int, str]) -> dict[str, list[tf.Operation]]:
    """Return the writing ops among `operations` by the name of the variable that they write."""
    written: dict[str, list[tf.Operation]] = {}
    for operation in operations:
        for handle in written_variables(operation):
            if handle in names:
                written.setdefault(names[handle], []).append(operation)
    return written


def names_by_handle(contexts: Mapping[str, StepContext]) -> dict[int, str]:
    """Return the names of the networks' variables by the identity of their handles."""
    return {
        id(variable.value.handle): label(network, name, contexts)
        for network, context in contexts.items()
        for name, variable in context.network.variables.items()
    }


def label(network: str, name: str, networks: Collection[str]) -> str:
    """Return the name of a variable, prefixed with its network if there are several, since paths may be the same."""
    return name if len(networks) == 1 else f"{network}/{name}"


FORWARD, TRAINER, BEGIN = "the forward pass", "the trainer", "begin"
"""Origins of UPDATE_OPS besides hooks: code in TensorFlow 1 style, the trainer (new state), `Objective.begin`."""


@dataclass
class Commit:
    """The writes of one run of an objective, as traced."""

    objective: str
    graph: tf.Graph
    update: int = 0  # index of this run among the objective's runs in the step
    runs: list[str] = field(default_factory=list)  # networks that the objective's forward pass called
    gradients: dict[str, Gradients] = field(default_factory=dict)  # passed to the optimizers, by network
    update_ops: list[tf.Operation] = field(default_factory=list)  # in UPDATE_OPS when the optimizer was called
    # Origin of each op in UPDATE_OPS, in order; with a veto, writes are in a branch, and outer ops are included, too.
    added_by: dict[tf.Operation, str] = field(default_factory=dict)
    apply_ops: dict[str, list[tf.Operation]] = field(default_factory=dict)  # of the optimizer, by trainable variable
    # For each hook, the ops that write each of the variables that it declares to write.
    hook_writes: dict[str, dict[str, list[tf.Operation]]] = field(default_factory=dict)
    missing_gradients: list[str] = field(default_factory=list)  # trainable variables that have none and are not frozen
    dropped_state: list[str] = field(default_factory=list)  # state that the forward pass changes and no op writes

    @property
    def applied(self) -> list[tf.Operation]:
        """Return all ops with which the optimizer writes."""
        return [operation for operations in self.apply_ops.values() for operation in operations]

    def note_hooks(self, hooks: Iterable[GraphHook]) -> None:
        """Record the variables that hooks declare to write, with the ops of the graph that write them."""
        operations = self.graph.get_operations()
        for hook in hooks:
            if declared := hook.declare().writes:
                written = writes_of(operations, {id(variable.handle): name for name, variable in declared.items()})
                self.hook_writes[hook.name] = {name: written.get(name, []) for name in declared}


COLLECTION = tf.compat.v1.GraphKeys.UPDATE_OPS


def pending_update_ops() -> list[tf.Operation]:
    """Return the ops of the graph being traced that are in UPDATE_OPS."""
    graph = tf.compat.v1.get_default_graph()
    operations = []
    for item in tf.compat.v1.get_collection(COLLECTION):  # it also returns ops of outer and inner graphs
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
    """Fill UPDATE_OPS: state, then hooks in order; record the ops, their origins and their writes."""
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
    """Return the variables, given as names by network, that no hook declares frozen."""
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
    # A stateful op that does not only read may write, itself or in a function that it calls.
    before = {operation, *ancestors(operation)} & {*made}
    if not any(each.op_def.is_stateful and each.type not in READING_OPS for each in before):
        raise UserError(
            f"The {source} returned {_described(item)} from {method}, which writes no variable: reading it and "
            "adding gives a new tensor. Return what assign, assign_add or scatter_sub returned."
        )
    return operation


def _operation(item: Any) -> tf.Operation | None:
    """Return the op of an op, a tensor, or the variable that an assignment returns in a function; None for others."""
    operation = item if isinstance(item, tf.Operation) else getattr(item, "op", None)
    return operation if isinstance(operation, tf.Operation) else None


def _described(item: Any) -> str:
    operation = _operation(item)
    if operation is None:
        return f"something that is not an op ({type(item).__name__})"
    return f"the op {operation.name} ({operation.type})"


def audit(commit: Commit) -> None:
    """Check that no gradient, state or declared write is missing, and that all update ops run before the apply."""
    if commit.missing_gradients:
        raise UserError(
            f"No gradient reaches {', '.join(commit.missing_gradients)} in objective '{commit.objective}'. Expected "
            "every trainable variable to influence the loss: connect it (sampling and rounding need a straight-through "
            "gradient), set trainable=False, or declare it `frozen` in the hook."
        )
    if commit.dropped_state:
        raise UserError(
            f"The forward pass of objective '{commit.objective}' changes {', '.join(commit.dropped_state)}, but no op "
            "of the step writes that: the change would be lost. Return it from the hook's transform_state, or declare "
            "it `frozen` in the hook to leave it alone."
        )
    before = {each for update in commit.update_ops for each in (update, *ancestors(update))}  # members of a tf.group
    for hook, declared in commit.hook_writes.items():
        for name, operations in declared.items():
            if not operations:
                raise UserError(
                    f"The hook '{hook}' declares that it writes '{name}', but no op of the step writes it. Assign the "
                    "variable in update_ops (reading it and adding gives a new tensor, it changes no variable)."
                )
            if before.isdisjoint(operations):
                raise UserError(
                    f"The hook '{hook}' writes '{name}' outside UPDATE_OPS: nothing makes it run before the weights "
                    "change. Return the op from update_ops."
                )
    for variable, operations in commit.apply_ops.items():
        for operation in operations:
            if late := set(commit.update_ops) - ancestors(operation):
                names = ", ".join(sorted(update.name for update in late))
                raise UserError(
                    f"The update ops {names} are not control ancestors of the op {operation.name} that applies the "
                    f"gradient of '{variable}'. Create the apply inside tf.control_dependencies of all update ops."
                )


def refuse_foreign(
    operations: Iterable[tf.Operation],
    objective: Objective,
    networks: Mapping[str, Network],
    objectives: Sequence[Objective],
) -> None:
    """Raise an error if ops of an objective write variables of networks that it may not change."""
    owners: dict[int, tuple[str, str]] = {}
    for network in networks.values():
        own = {**network.variables, **{f"optimizer/{k}": v for k, v in network.optimizer_variables.items()}}
        owners |= {id(variable.value.handle): (network.name, name) for name, variable in own.items()}
    for write in all_writes(operations):
        name, variable = owners.get(write.handle, ("", ""))
        if name and name not in objective.trains:
            owner = " and ".join(f"'{each}'" for each in owners_of(name, objectives))
            belongs = "is fixed" if networks[name].fixed else f"belongs to the objective {owner}"
            raise UserError(
                f"The objective '{objective.name}' writes '{variable}' of the network '{name}', which it may not "
                f"change: that network {belongs}. Take the op '{write.operation.name}' ({write.operation.type}) out, "
                f"or let an objective write it that has '{name}' in its `trains`."
            )


def refuse_double_writes(
    hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext], made: Mapping[str, Sequence[tf.Operation]]
) -> None:
    """Raise an error if hooks write a variable that the step writes, too, or one variable in an undeclared order."""
    step_writes = {
        id(context.network.variables[name].value.handle) for context in contexts.values() for name in context.new_state
    }
    names = names_by_handle(contexts)
    for hook in hooks:
        names |= {id(variable.handle): f"{hook.name}/{name}" for name, variable in hook.declare().state.items()}
    followers = declared_followers(hooks)
    writers: dict[int, str] = {}
    for hook_name, operations in made.items():
        for handle in (handle for operation in operations for handle in written_variables(operation)):
            name, first = names.get(handle, "a variable"), writers.setdefault(handle, hook_name)
            if handle in step_writes:
                raise UserError(
                    f"The hook '{hook_name}' writes '{name}' in update_ops, and so does the step itself, with the "
                    "value from the forward pass. Return the value from transform_state instead."
                )
            if first != hook_name and hook_name not in followers[first]:
                raise UserError(
                    f"The hooks '{first}' and '{hook_name}' both write '{name}' in one step, in no declared order. "
                    f"Declare the order in '{hook_name}', with `before` or `after`."
                )
            writers[handle] = hook_name


def refuse_thawed(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext], givers: Mapping[tuple[str, str], str]
) -> None:
    """Raise an error if the hook in `givers`, by network and name, replaced the gradient None of a frozen variable."""
    for (network, name), giver in givers.items():
        freezing = [hook.name for hook in hooks if hook.network == network and name in hook.declare().frozen]
        if freezing and contexts[network].gradients[name] is not None:
            raise UserError(
                f"The hook '{giver}' returned a gradient for '{name}' from transform_gradients, which the hook "
                f"'{freezing[0]}' freezes. Expected None, as it was given."
            )


def batch_parts(objective: Objective, batch: Batch) -> Iterator[Batch]:
    """Yield the batches of an objective's runs in a step: equal parts; entries without a row per example stay whole."""
    if objective.updates == 1:
        yield batch
        return
    parts = Parts(batch, objective.updates, f"updates={objective.updates} of the objective '{objective.name}'")
    for update in range(objective.updates):
        yield parts.part(update)


def begin_run(objective: Objective, networks: Mapping[str, Network], held_back: tf.Tensor | None) -> list[tf.Operation]:
    """Create the ops that run before an objective reads any variable, and add them to UPDATE_OPS."""
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
    """Return the op with the branch if given the Identity of its result, so that the plan can inspect the branch."""
    return operation.inputs[0].op if operation.type == "Identity" else operation
