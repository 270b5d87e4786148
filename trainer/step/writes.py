"""The variables that an op writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective
from hookline.trainer.order import declared_followers
from hookline.trainer.step.audit import outermost, owners_of, written_variables
from hookline.trainer.step.context import StepContext

READING_OPS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "DisableCopyOnRead"}
)
"""Ops that take a variable's handle and only read the variable. Any other op that takes one counts as writing."""
PASSING_OPS = ("Identity", "IdentityN")


@dataclass(frozen=True)
class Write:
    """Name one write.

    Attributes:
        handle: identity of the variable's handle.
        operation: the op that writes, perhaps inside a function.
    """

    handle: int
    operation: tf.Operation


def all_writes(operations: Iterable[tf.Operation]) -> list[Write]:
    """Return the writes of ops and of every function that they call, in order."""
    return list(_writes(operations, {}))


def _writes(operations: Iterable[tf.Operation], given: Mapping[int, int]) -> Iterator[Write]:
    """Yield writes."""
    for operation in operations:
        if operation.type in READING_OPS or operation.type in PASSING_OPS:
            continue
        taken = [tensor for tensor in operation.inputs if tensor.dtype == tf.resource]
        if not taken:
            continue
        functions = _functions(operation)
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
    return given[id(tensor)] if id(tensor) in given else outermost(tensor)


def _functions(operation: tf.Operation) -> list[tf.Graph]:
    """Return the graphs of the functions that an op calls: branches, the condition and body of a loop, calls."""
    names: list[str] = []
    for attribute in operation.op_def.attr:
        if attribute.type == "func":
            names.append(operation.get_attr(attribute.name).name)
        elif attribute.type == "list(func)":
            names += [each.name for each in operation.get_attr(attribute.name)]
    found = (operation.graph._get_function(name) for name in names if name)
    return [function.graph for function in found if function is not None]


class Writes:
    """Know the owner of each variable, and refuse writes of an objective to networks that it may not change."""

    def __init__(self, networks: Iterable[Network], objectives: Sequence[Objective]) -> None:
        """Note the variables."""
        self._networks = {network.name: network for network in networks}
        self._objectives = objectives
        self._names: dict[int, tuple[str, str]] = {}
        for network in self._networks.values():
            own = {**network.variables, **{f"optimizer/{k}": v for k, v in network.optimizer_variables.items()}}
            self._names |= {id(variable.value.handle): (network.name, name) for name, variable in own.items()}

    def refuse_foreign(self, operations: Iterable[tf.Operation], objective: Objective | None) -> None:
        """Refuse ops that write variables they may not."""
        for write in all_writes(operations):
            if write.handle not in self._names:
                continue
            network, variable = self._names[write.handle]
            if objective is None or network not in objective.trains:
                writer = "What runs before the objectives" if objective is None else f"The objective '{objective.name}'"
                raise UserError(
                    f"{writer} writes '{variable}' of the network '{network}', which it may not change: "
                    f"{self._owner(network)}. Take the op '{write.operation.name}' ({write.operation.type}) out, or "
                    f"let an objective write it that has '{network}' in its `trains`."
                )

    def _owner(self, network: str) -> str:
        if self._networks[network].fixed:
            return "that network is fixed"
        owners = " and ".join(f"'{name}'" for name in owners_of(network, self._objectives))
        return f"that network belongs to the objective {owners}"


def refuse_double_writes(
    hooks: Sequence[GraphHook],
    contexts: Mapping[str, StepContext],
    made: Mapping[str, Sequence[tf.Operation]],
) -> None:
    """Refuse update ops that write one variable in an order that depends on nothing but their names.

    One hook may write a variable several times, and two hooks whose order is declared may write one after the other.
    """
    step_writes = {
        id(context.network.variables[name].value.handle) for context in contexts.values() for name in context.new_state
    }
    names = _names(hooks, contexts)
    followers = declared_followers(hooks)
    writers: dict[int, str] = {}
    for hook, operations in made.items():
        for handle in (handle for operation in operations for handle in written_variables(operation)):
            name, first = names.get(handle, "a variable"), writers.setdefault(handle, hook)
            if handle in step_writes:
                raise UserError(
                    f"The hook '{hook}' writes '{name}' in update_ops, and so does the step itself, with what the "
                    "forward pass gives. Return the value from transform_state instead."
                )
            if first != hook and hook not in followers[first]:
                raise UserError(
                    f"The hooks '{first}' and '{hook}' both write '{name}' in one step, and nothing says which comes "
                    f"first. Declare it in '{hook}', with `before` or `after`."
                )
            writers[handle] = hook


def _names(hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]) -> dict[int, str]:
    """Return what variables are called, by the identity of their handles."""
    of_networks = {
        id(variable.value.handle): name
        for context in contexts.values()
        for name, variable in context.network.variables.items()
    }
    of_hooks = {id(variable.handle): f"{hook.name}/{name}" for hook in hooks for name, variable in hook.state().items()}
    return of_networks | of_hooks
