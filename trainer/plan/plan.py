"""The plan as data: what the Markdown of a run, the text of the command and the drawings are all made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NETWORK, OPTIMIZER, HOOK = "network", "optimizer", "hook"
TRAINABLE, FROZEN, STATE, UNTRAINED = "trainable", "frozen", "state", "not trained"
UNKNOWN = "nothing that the run knows of"
"""What an update op writes whose variable is neither a network's, nor an optimizer's, nor declared by a hook."""


@dataclass(frozen=True)
class Stage:
    """Hold a stage with the hooks that have something to do in it.

    Attributes:
        phase: when it runs, such as "step".
        name: such as "transform_weights".
        hooks: names, in the order in which they are called.
    """

    phase: str
    name: str
    hooks: tuple[str, ...]


@dataclass(frozen=True)
class Variable:
    """Hold what is known of a variable.

    Attributes:
        kind: whose it is: `NETWORK`, `OPTIMIZER` or `HOOK`.
        owner: name of the network (also for its optimizer's variables) or of the hook.
        name: unique for its owner.
        group: what it belongs to: a layer, a kind of slots; empty for one that stands alone.
        shape: None where it is open.
        dtype: such as "float32".
        entries: how many values it has now.
        bytes: of these.
        role: of a network's variable: `TRAINABLE`, `FROZEN` (a hook leaves it alone), `STATE` (update ops write it) or
            `UNTRAINED` (neither trained nor written); empty for others.
        projected_by: hooks that may rewrite it after the apply.
    """

    kind: str
    owner: str
    name: str
    group: str
    shape: tuple[int | None, ...]
    dtype: str
    entries: int
    bytes: int
    role: str = ""
    projected_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Update:
    """Hold an op of UPDATE_OPS, or several that are alike.

    Attributes:
        op: its type, such as "AssignVariableOp".
        writes: names of the variables that it writes; a hook's are "<hook>/<variable>". Empty when it writes none that
            the run knows of.
        added_by: who put it there.
        count: how many ops.
    """

    op: str
    writes: tuple[str, ...]
    added_by: str
    count: int = 1

    @property
    def ops(self) -> str:
        """Return the type, with the number of ops where there are several."""
        return self.op if self.count == 1 else f"{self.count:,} x {self.op}"


@dataclass(frozen=True)
class Apply:
    """Hold what an optimizer applies.

    Attributes:
        network: name.
        optimizer: its class.
        variables: names of the variables that get a gradient.
    """

    network: str
    optimizer: str
    variables: tuple[str, ...]


@dataclass(frozen=True)
class Projection:
    """Hold what a hook may rewrite after the apply.

    Attributes:
        hook: name.
        network: name.
        variables: names of latent variables; empty where the hook declares none.
    """

    hook: str
    network: str
    variables: tuple[str, ...]


@dataclass(frozen=True)
class ObjectivePlan:
    """Hold what a step does for one objective, in order: update ops, applies, projections, measures.

    Attributes:
        name: of the objective.
        runs: names of the networks that its forward pass calls.
        changes: names of the networks that it may change.
        hooks: those with something to do for it, by stage of the step.
        updates: all run before the first apply.
        applies: one for each network that it changes.
        projections: in order.
        times: how many times a step runs it, each time on its own part of the batch.
    """

    name: str
    runs: tuple[str, ...]
    changes: tuple[str, ...]
    hooks: Mapping[str, tuple[str, ...]]
    updates: tuple[Update, ...]
    applies: tuple[Apply, ...]
    projections: tuple[Projection, ...]
    times: int = 1

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
    """Hold the names of what will be reported.

    Attributes:
        training: in every training report.
        evaluation: of the validation and of the test split.
        monitor: in words: which of them decides what is best.
    """

    training: tuple[str, ...] = ()
    evaluation: tuple[str, ...] = ()
    monitor: str = ""


@dataclass(frozen=True)
class Held:
    """Hold an item of the memory estimate.

    Attributes:
        name: what takes memory.
        bytes: how much.
        note: what that counts.
        adds: whether it adds to the total; not so what comes instead of something larger, or lies elsewhere.
    """

    name: str
    bytes: int
    note: str = ""
    adds: bool = True


@dataclass(frozen=True)
class Plan:
    """Hold the plan of a run.

    Attributes:
        stages: that hooks have something to do in.
        objectives: in the order in which a step runs them.
        networks: names, with the class and name of the model.
        variables: of networks, then optimizers, then hooks.
        metrics: that will be reported.
        memory: the estimate, item by item.
        facts: about the run, label and text.
        advice: of hooks on what will silently go wrong, by hook.
    """

    stages: tuple[Stage, ...]
    objectives: tuple[ObjectivePlan, ...]
    networks: Mapping[str, str]
    variables: tuple[Variable, ...]
    metrics: Metrics = field(default_factory=Metrics)
    memory: tuple[Held, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    advice: tuple[tuple[str, str], ...] = ()

    def variables_of(self, kind: str, owner: str | None = None) -> list[Variable]:
        """Return the variables of one kind.

        Args:
            kind: `NETWORK`, `OPTIMIZER` or `HOOK`.
            owner: name of a network or hook; None for all.
        """
        return [each for each in self.variables if each.kind == kind and owner in (None, each.owner)]

    @property
    def total_bytes(self) -> int:
        """Return how much memory the estimate comes to."""
        return sum(each.bytes for each in self.memory if each.adds)
