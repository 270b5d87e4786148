"""The plan of a run as data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network

NETWORK, OPTIMIZER, HOOK = "network", "optimizer", "hook"
TRAINABLE, FROZEN, STATE, UNTRAINED = "trainable", "frozen", "state", "not trained"
UNKNOWN = "nothing that the run knows of"
"""The target of an update op whose variable belongs to no network or optimizer and is declared by no hook."""


class Stage(NamedTuple):
    """A stage with the hooks that take part in it."""

    phase: str  # when it runs, such as "step"
    name: str  # such as "transform_weights"
    hooks: tuple[str, ...]  # names, in the order in which they are called


class Variable(NamedTuple):
    """What is known of a variable."""

    kind: str  # whose it is: `NETWORK`, `OPTIMIZER` or `HOOK`
    owner: str  # name of the network (also for its optimizer's variables) or of the hook
    name: str  # unique for its owner
    group: str  # what it belongs to: a layer, a kind of slots; empty for a single one
    shape: tuple[int | None, ...]  # None if it is open
    dtype: str  # such as "float32"
    entries: int  # how many values it has now
    bytes: int  # of these
    # of a network's variable: `TRAINABLE`, `FROZEN` (a hook leaves it alone), `STATE` (update ops write it) or
    # `UNTRAINED` (neither trained nor written); empty for others
    role: str = ""
    projected_by: tuple[str, ...] = ()  # hooks that may rewrite it after the apply


class Change(NamedTuple):
    """What writes variables, and which."""

    what: str  # the type of an op of UPDATE_OPS, such as "AssignVariableOp"; or "apply" or "project"
    by: str  # who added the op; the optimizer and its network; or the hook
    variables: tuple[str, ...]  # names; of a hook "<hook>/<variable>"; empty for none that the run knows of


@dataclass(frozen=True)
class ObjectivePlan:
    """What a step does for one objective."""

    name: str
    runs: tuple[str, ...]  # names of the networks that its forward pass calls
    trains: tuple[str, ...]  # names of the networks that it may change
    hooks: Mapping[str, tuple[str, ...]]  # those with something to do for it, by stage of the step
    updates: tuple[Change, ...]  # UPDATE_OPS, all run before the first apply
    applies: tuple[Change, ...]  # one for each network that it changes
    projections: tuple[Change, ...]  # in order
    times: int = 1  # how many times a step runs it, each time on its own part of the batch

    def alike_updates(self) -> list[Change]:
        """Return the update ops, with those of one type that were added by the same as one."""
        alike: dict[tuple[str, str], list[Change]] = {}
        for each in self.updates:
            alike.setdefault((each.what, each.by), []).append(each)
        return [
            Change(f"{len(group):,} x {op}" if len(group) > 1 else op, by, tuple(n for each in group for n in each[2]))
            for (op, by), group in alike.items()
        ]


class Held(NamedTuple):
    """An item of the memory estimate."""

    name: str
    bytes: int
    note: str = ""
    adds: bool = True  # whether it adds to the total; not if it replaces something larger, or lies elsewhere


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    stages: tuple[Stage, ...]  # that hooks have something to do in
    objectives: tuple[ObjectivePlan, ...]  # in the order in which a step runs them
    networks: Mapping[str, str]  # class and name of the model, by name
    variables: tuple[Variable, ...]  # of networks, then optimizers, then hooks
    training: tuple[str, ...] = ()  # names of what every training report holds
    evaluation: tuple[str, ...] = ()  # likewise of the validation and of the test split
    monitor: str = ""  # in words: which of them decides what is best
    memory: tuple[Held, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # about the run, label and text
    advice: tuple[tuple[str, str], ...] = ()  # of hooks on what will silently go wrong, by hook

    def variables_of(self, kind: str, owner: str | None = None) -> list[Variable]:
        """Return the variables of one kind."""
        return [each for each in self.variables if each.kind == kind and owner in (None, each.owner)]

    @property
    def total_bytes(self) -> int:
        """Return the total of the memory estimate."""
        return sum(each.bytes for each in self.memory if each.adds)


SHOWN = 12
"""How many names a short list shows."""


def list_names(names: Sequence[str], *, full: bool) -> str:
    """Return names as text: what is alike in several layers is said once, such as "kernel, bias of conv_1, conv_2"."""
    return ", ".join(names) if full else "; ".join(group_names(names))


def group_names(names: Sequence[str], shown: int = SHOWN) -> list[str]:
    """Return texts for names shared by several layers, and for single ones."""
    leaves: dict[str, list[str]] = {}  # layer: what stands under it
    for name in names:
        layer, _, leaf = name.rpartition("/")
        leaves.setdefault(layer, []).append(leaf)
    alone = leaves.pop("", [])
    layers: dict[tuple[str, ...], list[str]] = {}  # what stands under layers: which have that
    for layer, under in leaves.items():
        layers.setdefault(tuple(under), []).append(layer)
    return [*shorten(alone, shown), *(_say(under, of, shown) for under, of in layers.items())]


def _say(leaves: Sequence[str], layers: Sequence[str], shown: int) -> str:
    if len(layers) == 1 and len(leaves) == 1:
        return f"{layers[0]}/{leaves[0]}"
    return f"{', '.join(shorten(leaves, shown))} of {', '.join(shorten(layers, shown))}"


def shorten(items: Sequence[str], shown: int = SHOWN) -> list[str]:
    """Return the first and the last items and, between them, how many others there are."""
    if len(items) <= shown + 1:
        return list(items)
    last = shown // 3
    return [*items[: shown - last], f"... {len(items) - shown:,} more ...", *items[-last:]]


Identity = tuple[str, str, str]
"""Kind, owner and name of a variable."""


def identities(networks: Iterable[Network], hooks: Iterable[GraphHook]) -> dict[int, Identity]:
    """Return which variable each handle belongs to, by the identity of the handle."""
    found: dict[int, Identity] = {}
    for hook in hooks:
        found |= {id(variable.handle): (HOOK, hook.name, name) for name, variable in hook.declare().state.items()}
    for network in networks:
        for kind, variables in ((OPTIMIZER, network.optimizer_variables), (NETWORK, network.variables)):
            found |= {id(each.value.handle): (kind, network.name, name) for name, each in variables.items()}
    return found


def list_variables(
    networks: Sequence[Network], hooks: Sequence[GraphHook], written: Collection[Identity]
) -> tuple[Variable, ...]:
    """Return every variable: of the networks, of their optimizers, of the hooks."""
    found: list[Variable] = []
    for network in networks:
        found += _network_variables(network, [hook for hook in hooks if hook.network == network.name], written)
    for network in networks:
        found += _optimizer_variables(network)
    for hook in hooks:
        for name, variable in hook.declare().state.items():
            found.append(_variable(HOOK, hook.name, name, name.rpartition("/")[0], variable))
    return tuple(found)


def _network_variables(
    network: Network, hooks: Sequence[GraphHook], written: Collection[Identity]
) -> Iterator[Variable]:
    trainable = network.trainable_variables
    frozen = {name for hook in hooks for name in hook.declare().frozen}
    projected = [(hook.name, hook.declare().projected) for hook in hooks]
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


def _variable(kind: str, owner: str, name: str, group: str, variable: tf.Variable, *role: Any) -> Variable:
    shape = variable.shape
    entries = shape.num_elements() if shape.is_fully_defined() else int(tf.size(variable.read_value()))
    size = entries * variable.dtype.size
    return Variable(kind, owner, name, group, tuple(shape), variable.dtype.name, entries, size, *role)
