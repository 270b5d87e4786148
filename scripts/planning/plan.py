"""The plan of a run as data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network

NETWORK, OPTIMIZER, HOOK = "network", "optimizer", "hook"
TRAINABLE, FROZEN, STATE, UNTRAINED = "trainable", "frozen", "state", "not trained"
UNKNOWN = "nothing that the run knows of"
"""The target of an update op whose variable belongs to no network or optimizer and is declared by no hook."""


@dataclass(frozen=True)
class Stage:
    """Hold a stage with the hooks that take part in it."""

    phase: str  # when it runs, such as "step"
    name: str  # such as "transform_weights"
    hooks: tuple[str, ...]  # names, in the order in which they are called


@dataclass(frozen=True)
class Variable:
    """Hold what is known of a variable."""

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


@dataclass(frozen=True)
class Update:
    """Hold an op of UPDATE_OPS, or several that are alike."""

    op: str  # its type, such as "AssignVariableOp"
    # names of the variables that it writes; a hook's are "<hook>/<variable>". Empty when it writes none that the run
    # knows of.
    writes: tuple[str, ...]
    added_by: str  # who put it there
    count: int = 1  # how many ops

    @property
    def ops(self) -> str:
        """Return the type, with the number of ops where there are several."""
        return self.op if self.count == 1 else f"{self.count:,} x {self.op}"


@dataclass(frozen=True)
class Apply:
    """Hold what an optimizer applies."""

    network: str  # name
    optimizer: str  # its class
    variables: tuple[str, ...]  # names of the variables that get a gradient


@dataclass(frozen=True)
class Projection:
    """Hold what a hook may rewrite after the apply."""

    hook: str  # name
    network: str  # name
    variables: tuple[str, ...]  # names of latent variables; empty if the hook declares none


@dataclass(frozen=True)
class ObjectivePlan:
    """Hold what a step does for one objective, in order: update ops, applies, projections, measures."""

    name: str  # of the objective
    runs: tuple[str, ...]  # names of the networks that its forward pass calls
    trains: tuple[str, ...]  # names of the networks that it may change
    hooks: Mapping[str, tuple[str, ...]]  # those with something to do for it, by stage of the step
    updates: tuple[Update, ...]  # all run before the first apply
    applies: tuple[Apply, ...]  # one for each network that it changes
    projections: tuple[Projection, ...]  # in order
    times: int = 1  # how many times a step runs it, each time on its own part of the batch

    def alike_updates(self) -> list[Update]:
        """Return the update ops with those that are of one type and added by the same in one."""
        alike: dict[tuple[str, str], list[Update]] = {}
        for each in self.updates:
            alike.setdefault((each.op, each.added_by), []).append(each)
        return [
            Update(op, tuple(name for each in group for name in each.writes), by, len(group))
            for (op, by), group in alike.items()
        ]


@dataclass(frozen=True)
class Metrics:
    """Hold the names of what will be reported."""

    training: tuple[str, ...] = ()  # in every training report
    evaluation: tuple[str, ...] = ()  # of the validation and of the test split
    monitor: str = ""  # in words: which of them decides what is best


@dataclass(frozen=True)
class Held:
    """Hold an item of the memory estimate."""

    name: str  # what takes memory
    bytes: int  # how much
    note: str = ""  # what that counts
    adds: bool = True  # whether it adds to the total; not if it replaces something larger, or lies elsewhere


@dataclass(frozen=True)
class Plan:
    """Hold the plan of a run."""

    stages: tuple[Stage, ...]  # that hooks have something to do in
    objectives: tuple[ObjectivePlan, ...]  # in the order in which a step runs them
    networks: Mapping[str, str]  # names, with the class and name of the model
    variables: tuple[Variable, ...]  # of networks, then optimizers, then hooks
    metrics: Metrics = field(default_factory=Metrics)  # that will be reported
    memory: tuple[Held, ...] = ()  # the estimate, item by item
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
