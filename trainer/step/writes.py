"""Every write to a variable among the ops of a traced graph, inside branches, loops and functions as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from trainer.errors import UserError
from trainer.network import Network
from trainer.objective import Objective
from trainer.step.audit import outermost
from trainer.step.ownership import owners_of

READING_OPS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "DisableCopyOnRead"}
)
"""What takes a variable's handle and leaves the variable as it is. Any other op that takes one counts as writing."""
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
    """Return the writes of ops and of every function that they call, in order.

    Args:
        operations: of one graph that is being traced. Handles that they take are followed to where they come from.
    """
    return list(_writes(operations, {}))


def _writes(operations: Iterable[tf.Operation], given: Mapping[int, int]) -> Iterator[Write]:
    """Yield writes.

    Args:
        operations: of one graph.
        given: for the arguments of this graph: identity of the tensor to identity of the handle that it stands for.
    """
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
    """Return the identity of the handle that a tensor stands for."""
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
    """Know whose each variable is, and refuse the writes of an objective to networks that it may not change."""

    def __init__(self, networks: Iterable[Network], objectives: Sequence[Objective]) -> None:
        """Note the variables.

        Args:
            networks: of the run, with built optimizers.
            objectives: of the run.
        """
        self._networks = {network.name: network for network in networks}
        self._objectives = objectives
        self._names: dict[int, tuple[str, str]] = {}
        for network in self._networks.values():
            own = {**network.variables, **{f"optimizer/{k}": v for k, v in network.optimizer_variables.items()}}
            self._names |= {id(variable.value.handle): (network.name, name) for name, variable in own.items()}

    def refuse_foreign(self, operations: Iterable[tf.Operation], objective: Objective | None) -> None:
        """Refuse ops that write what they may not.

        Args:
            operations: all that were created while an objective ran, from its `begin` to the hooks' measures.
            objective: which; None for what comes before all objectives, where nothing of a network is written.

        Raises:
            UserError: names the objective, the variable, the network, and whose it is.
        """
        for write in all_writes(operations):
            if write.handle not in self._names:
                continue
            network, variable = self._names[write.handle]
            if objective is None or network not in objective.changes:
                writer = "What runs before the objectives" if objective is None else f"The objective '{objective.name}'"
                raise UserError(
                    f"{writer} writes '{variable}' of the network '{network}', which it may not change: "
                    f"{self._owner(network)}. Take the op '{write.operation.name}' ({write.operation.type}) out, or "
                    f"let an objective write it that has '{network}' in its `changes`."
                )

    def _owner(self, network: str) -> str:
        if self._networks[network].fixed:
            return "that network is fixed"
        owners = " and ".join(f"'{name}'" for name in owners_of(network, self._objectives))
        return f"that network belongs to the objective {owners}"
