"""The audit of a traced step: updates before the apply, every declared variable written, ownership kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.stage import taking_part


def check_ownership(networks: Sequence[Network], objectives: Sequence[Objective]) -> None:
    """Refuse networks and objectives that do not fit together.

    Names are unique, no variable and no optimizer belongs to two networks, every objective changes networks that exist,
    and every network is changed by one objective, unless it says that it is shared or fixed.
    """
    _check_names("network", [network.name for network in networks])
    _check_names("objective", [objective.name for objective in objectives])
    _check_apart(networks)
    for objective in objectives:
        for name in objective.trains:
            if name not in {network.name for network in networks}:
                known = ", ".join(network.name for network in networks)
                raise UserError(f"Objective '{objective.name}' changes the network '{name}'. Expected: {known}.")
        if type(objective.updates) is not int or objective.updates < 1:
            raise UserError(
                f"Objective '{objective.name}' has updates={objective.updates!r}. Expected how often a step runs it: "
                "an integer of at least 1."
            )
    for network in networks:
        _check_owners(network, [objective.name for objective in objectives if network.name in objective.trains])


def owners_of(network: str, objectives: Iterable[Objective]) -> list[str]:
    """Return the names of the objectives that may change a network."""
    return [objective.name for objective in objectives if network in objective.trains]


def find_objective(name: str, objectives: Sequence[Objective]) -> Objective:
    """Return the objective of a name."""
    for objective in objectives:
        if objective.name == name:
            return objective
    raise unknown_name("objective", name, [objective.name for objective in objectives])


def _check_names(kind: str, names: Sequence[str]) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise UserError(f"Two of the {kind}s are named '{name}'. Expected a name of its own for each {kind}.")
        if not name or "/" in name:
            article = "An" if kind == "objective" else "A"
            raise UserError(f"{article} {kind} is named '{name}'. Expected a name without '/', such as 'generator_0'.")


def _check_apart(networks: Sequence[Network]) -> None:
    variables: dict[int, tuple[str, str]] = {}
    optimizers: dict[int, str] = {}
    for network in networks:
        for name, variable in network.variables.items():
            other, _ = variables.setdefault(id(variable), (network.name, name))
            if other != network.name:
                raise UserError(
                    f"The networks '{other}' and '{network.name}' share the variable '{name}', so each would change "
                    "the other. Expected models with variables of their own: build each, then copy with copy_network."
                )
        other = optimizers.setdefault(id(network.optimizer), network.name)
        if other != network.name:
            raise UserError(
                f"The networks '{other}' and '{network.name}' share one optimizer. Expected one for each: call "
                "build_optimizer once for each network."
            )


def _check_owners(network: Network, owners: Sequence[str]) -> None:
    if network.fixed and owners:
        raise UserError(
            f"The network '{network.name}' is fixed, but the objective '{owners[0]}' changes it. Take the network out "
            "of the objective's `trains`, or do not declare it fixed."
        )
    if not owners and not network.fixed:
        raise UserError(
            f"No objective changes the network '{network.name}', so it would never be trained. Put it into the "
            "`trains` of one, or declare it with Network(..., fixed=True)."
        )
    if len(owners) > 1 and not network.shared:
        names = " and ".join(f"'{name}'" for name in owners)
        raise UserError(
            f"The objectives {names} change the network '{network.name}', which one objective alone may own. Take it "
            "out of the `trains` of the others, or declare it with Network(..., shared=True)."
        )


WRITING_OPS = frozenset(
    {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
    | {f"ResourceScatter{kind}" for kind in ("Add", "Sub", "Update", "Mul", "Div", "Min", "Max")}
    | {f"ResourceScatterNd{kind}" for kind in ("Add", "Sub", "Update", "Min", "Max")}
    | {"ResourceStridedSliceAssign", "AssignVariableXlaConcatND"}
)
FORWARD, TRAINER, BEGIN = "the forward pass", "the trainer", "begin"
"""Who puts ops into UPDATE_OPS besides hooks: code that adds to it in the classic way; the trainer, for new state; the
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
    """Return every op that runs before `operation`, through inputs and control inputs, within its graph."""
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
    """Return the writing ops among `operations` by the name of the variable that they write."""
    written: dict[str, list[tf.Operation]] = {}
    for operation in operations:
        for handle in written_variables(operation):
            if handle in names:
                written.setdefault(names[handle], []).append(operation)
    return written


def hook_writes(
    hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]
) -> dict[str, dict[str, list[tf.Operation]]]:
    """Return for each hook what it declares to write, with the ops of the current graph that write it."""
    operations = tf.compat.v1.get_default_graph().get_operations()
    found = {}
    for hook, _ in taking_part(hooks, contexts):
        if declared := hook.writes():
            names = {id(variable.handle): name for name, variable in declared.items()}
            written = writes_of(operations, names)
            found[hook.name] = {name: written.get(name, []) for name in declared}
    return found


def audit(commit: Commit) -> None:
    """Refuse a step whose update ops do not run before the apply, or do not run at all."""
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
