"""The variables of a run: of networks, optimizers and hooks, with their shapes, bytes and roles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import tensorflow as tf

from trainer.hook import GraphHook
from trainer.network import Network
from trainer.plan.plan import FROZEN, HOOK, NETWORK, OPTIMIZER, STATE, TRAINABLE, UNTRAINED, Variable

Identity = tuple[str, str, str]
"""Kind, owner and name of a variable."""


def identities(networks: Iterable[Network], hooks: Iterable[GraphHook]) -> dict[int, Identity]:
    """Return which variable each handle belongs to, by the identity of the handle.

    Args:
        networks: with built optimizers.
        hooks: built.
    """
    found: dict[int, Identity] = {}
    for hook in hooks:
        found |= {id(variable.handle): (HOOK, hook.name, name) for name, variable in hook.state().items()}
    for network in networks:
        for kind, variables in ((OPTIMIZER, network.optimizer_variables), (NETWORK, network.variables)):
            found |= {id(each.value.handle): (kind, network.name, name) for name, each in variables.items()}
    return found


def list_variables(
    networks: Sequence[Network], hooks: Sequence[GraphHook], written: Collection[Identity]
) -> tuple[Variable, ...]:
    """Return every variable: of the networks, of their optimizers, of the hooks.

    Args:
        networks: with built optimizers.
        hooks: built.
        written: what update ops write.
    """
    found: list[Variable] = []
    for network in networks:
        found += _network_variables(network, [hook for hook in hooks if hook.network == network.name], written)
    for network in networks:
        found += _optimizer_variables(network)
    for hook in hooks:
        for name, variable in hook.state().items():
            found.append(_variable(HOOK, hook.name, name, name.rpartition("/")[0], variable))
    return tuple(found)


def _network_variables(
    network: Network, hooks: Sequence[GraphHook], written: Collection[Identity]
) -> Iterator[Variable]:
    trainable = network.trainable_variables
    frozen = {name for hook in hooks for name in hook.frozen()}
    projected = [(hook.name, hook.projected()) for hook in hooks]
    for name, variable in network.variables.items():
        if name in frozen:
            role = FROZEN
        elif name in trainable:
            role = UNTRAINED if network.fixed else TRAINABLE
        else:
            role = STATE if (NETWORK, network.name, name) in written else UNTRAINED
        by = tuple(hook for hook, names in projected if name in names)
        yield _variable(NETWORK, network.name, name, name.rpartition("/")[0], variable.value, role, by)


def _optimizer_variables(network: Network) -> Iterator[Variable]:
    optimizer = getattr(network.optimizer, "inner_optimizer", network.optimizer)
    slots = {
        id(slot): attribute.strip("_").replace("_", " ")
        for attribute, listed in vars(optimizer).items()
        if isinstance(listed, list) and attribute not in ("_variables", "_trainable_variables")
        for slot in listed
    }
    for name, variable in network.optimizer_variables.items():
        yield _variable(OPTIMIZER, network.name, name, slots.get(id(variable), ""), variable.value)


def _variable(
    kind: str,
    owner: str,
    name: str,
    group: str,
    variable: tf.Variable,
    role: str = "",
    projected_by: tuple[str, ...] = (),
) -> Variable:
    shape = variable.shape
    entries = shape.num_elements() if shape.is_fully_defined() else int(tf.size(variable.read_value()))
    size = entries * variable.dtype.size
    return Variable(kind, owner, name, group, tuple(shape), variable.dtype.name, entries, size, role, projected_by)
