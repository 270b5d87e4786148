"""The plan of a run, as data and as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from hookline.hooks.monitors.console import TextTable
from hookline.scripts.command import markdown_table
from hookline.trainer.hook import AT, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.results import explain, format_bytes

Item = TypeVar("Item")
NETWORK, OPTIMIZER, HOOK = "network", "optimizer", "hook"
TRAINABLE, FROZEN, STATE, UNTRAINED = "trainable", "frozen", "state", "not trained"
UNKNOWN = "nothing that the run knows of"
"""The target of an update op on a variable that belongs to no network or optimizer and is declared by no hook."""


class Variable(NamedTuple):
    """What is known about a variable."""

    kind: str  # of its owner: `NETWORK`, `OPTIMIZER` or `HOOK`
    owner: str  # name of the network (also for its optimizer's variables) or of the hook
    name: str  # unique for its owner
    group: str  # what it belongs to: a layer, a kind of slots; empty for a single one
    shape: tuple[int | None, ...]  # None if it is open
    dtype: str  # such as "float32"
    entries: int  # how many values it has now
    bytes: int  # of these
    # of a network's variable: `TRAINABLE`, `FROZEN` (a hook freezes it), `STATE` (update ops write it) or
    # `UNTRAINED` (neither trained nor written); empty for others
    role: str = ""
    projected_by: tuple[str, ...] = ()  # hooks that may rewrite it after the apply


class Change(NamedTuple):
    """An operation that writes variables."""

    what: str  # the type of an op of UPDATE_OPS, such as "AssignVariableOp"; or "apply" or "project"
    by: str  # who added the op; the optimizer and its network; or the hook
    variables: tuple[str, ...]  # names, "<hook>/<variable>" for a hook's; empty if the run knows none of them


@dataclass(frozen=True)
class ObjectivePlan:
    """What a step does for one objective."""

    name: str
    runs: tuple[str, ...]  # names of the networks that its forward pass calls
    trains: tuple[str, ...]  # names of the networks that it may change
    hooks: Mapping[str, tuple[str, ...]]  # hooks that take part, by stage of the step
    updates: tuple[Change, ...]  # UPDATE_OPS, all run before the first apply
    applies: tuple[Change, ...]  # one for each network that it changes
    projections: tuple[Change, ...]  # in order
    times: int = 1  # how many times a step runs it, each time on its own part of the batch

    def alike_updates(self) -> list[Change]:
        """Return the update ops, with ops of the same type and origin merged into one."""
        return [
            Change(f"{len(group):,} x {op}" if len(group) > 1 else op, by, tuple(n for each in group for n in each[2]))
            for (op, by), group in _grouped(self.updates, lambda each: (each.what, each.by)).items()
        ]


class Held(NamedTuple):
    """An item of the memory estimate."""

    name: str
    bytes: int
    note: str = ""
    adds: bool = True  # whether it adds to the total; not if it alternates with something larger, or is elsewhere


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    # names of the hooks that take part in a stage, in the order of their calls, by phase and stage, such as
    # ("step", "transform_weights")
    stages: Mapping[tuple[str, str], tuple[str, ...]]
    objectives: tuple[ObjectivePlan, ...]  # in the order in which a step runs them
    networks: Mapping[str, str]  # class and name of the model, by name
    variables: tuple[Variable, ...]  # of networks, then optimizers, then hooks
    training: tuple[str, ...] = ()  # names of what every training report holds
    evaluation: tuple[str, ...] = ()  # the same for reports on the validation and test splits
    monitor: str = ""  # in words: the metric that selects the best step
    memory: tuple[Held, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # about the run, label and text
    advice: tuple[tuple[str, str], ...] = ()  # hook and text: what will silently go wrong

    def variables_of(self, kind: str, owner: str | None = None) -> list[Variable]:
        return [each for each in self.variables if each.kind == kind and owner in (None, each.owner)]

    @property
    def total_bytes(self) -> int:
        return sum(each.bytes for each in self.memory if each.adds)


SHOWN = 12
"""How many names a short list shows."""


def group_names(names: Sequence[str], shown: int = SHOWN) -> list[str]:
    """Return texts that group layers with the same variables, such as "kernel, bias of conv_1, conv_2"."""
    leaves: dict[str, list[str]] = {}  # by layer: its variables
    for name in names:
        layer, _, leaf = name.rpartition("/")
        leaves.setdefault(layer, []).append(leaf)
    alone = leaves.pop("", [])
    layers: dict[tuple[str, ...], list[str]] = {}  # by variables: the layers with these
    for layer, under in leaves.items():
        layers.setdefault(tuple(under), []).append(layer)
    said = shorten(alone, shown)
    for parts, of in layers.items():
        if len(of) == len(parts) == 1:
            said.append(f"{of[0]}/{parts[0]}")
        else:
            said.append(f"{', '.join(shorten(parts, shown))} of {', '.join(shorten(of, shown))}")
    return said


def shorten(items: Sequence[str], shown: int = SHOWN) -> list[str]:
    """Return the first and the last items and, between them, how many others there are."""
    if len(items) <= shown + 1:
        return list(items)
    last = shown // 3
    return [*items[: shown - last], f"... {len(items) - shown:,} more ...", *items[-last:]]


Identity = tuple[str, str, str]
"""Kind, owner and name of a variable."""


def identities(networks: Iterable[Network], hooks: Iterable[GraphHook]) -> dict[int, Identity]:
    """Return the variable that each handle belongs to, by the id of the handle."""
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
        declared = {hook.name: hook.declare() for hook in hooks if hook.network == network.name}
        for name, variable in network.variables.items():
            if any(name in each.frozen for each in declared.values()):
                role = FROZEN
            elif name in network.trainable_variables:
                role = UNTRAINED if network.fixed else TRAINABLE
            else:
                role = STATE if (NETWORK, network.name, name) in written else UNTRAINED
            by = tuple(hook for hook, each in declared.items() if name in each.projected)
            layer = name.rpartition("/")[0]
            found.append(_variable(NETWORK, network.name, name, layer, variable.value, role, by))
    for network in networks:
        optimizer = getattr(network.optimizer, "inner_optimizer", network.optimizer)
        slots = {
            id(slot): attribute.strip("_").replace("_", " ")
            for attribute, listed in vars(optimizer).items()
            if isinstance(listed, list) and attribute not in ("_variables", "_trainable_variables")
            for slot in listed
        }
        for name, variable in network.optimizer_variables.items():
            found.append(_variable(OPTIMIZER, network.name, name, slots.get(id(variable), ""), variable.value))
    for hook in hooks:
        for name, variable in hook.declare().state.items():
            found.append(_variable(HOOK, hook.name, name, name.rpartition("/")[0], variable))
    return tuple(found)


def _variable(kind: str, owner: str, name: str, group: str, variable: tf.Variable, *role: Any) -> Variable:
    shape = variable.shape
    entries = shape.num_elements() if shape.is_fully_defined() else int(tf.size(variable.read_value()))
    size = entries * variable.dtype.size
    return Variable(kind, owner, name, group, tuple(shape), variable.dtype.name, entries, size, *role)


SHOWN_ROWS, SHOWN_METRICS = 24, 40
"""How many rows of variables, and how many metrics, the short form shows."""
NONE, UNDECLARED = "none", "none that it declares"
Row = tuple[str, ...]


def sections(plan: Plan, *, full: bool) -> list[TextTable]:
    """Return the tables of a plan; the headings of tables with a label and a text are empty."""
    pair = ("", "")
    found = [TextTable("Run", pair, tuple(plan.facts.items()))] if plan.facts else []
    if plan.advice:
        found.append(TextTable("Advice, before anything is trained", ("hook", "what it sees"), plan.advice))
    stages = tuple((*stage, ", ".join(hooks)) for stage, hooks in plan.stages.items())
    found.append(TextTable("Stages, as they run", ("when", "stage", "hooks in order"), stages))
    if len(plan.objectives) > 1 or any(objective.times > 1 for objective in plan.objectives):
        order = ((each.name, ", ".join(each.trains), ", ".join(each.runs), str(each.times)) for each in plan.objectives)
        heads = ("objective", "changes", "runs", "times a step")
        found.append(TextTable("Objectives, as a step runs them one after the other", heads, tuple(order)))
    for objective in plan.objectives:
        found += _objective_sections(objective, full)
    for name, model in plan.networks.items():
        found.append(_table(f"Variables of network '{name}': {model}", plan.variables_of(NETWORK, name), full))
    for name in plan.networks:
        found.append(
            _table(f"Variables of the optimizer of network '{name}'", plan.variables_of(OPTIMIZER, name), full)
        )
    for hook in dict.fromkeys(variable.owner for variable in plan.variables_of(HOOK)):
        found.append(_table(f"State of hook '{hook}'", plan.variables_of(HOOK, hook), full))
    reported = {"training": plan.training, "evaluation": plan.evaluation}
    metrics = {each: ", ".join(n if full else shorten(n, SHOWN_METRICS)) or NONE for each, n in reported.items()}
    metrics |= {"monitor": plan.monitor} if plan.monitor else {}
    found.append(TextTable("Metrics", pair, tuple(metrics.items())))
    hooks = {name.partition(AT)[0] for names in plan.stages.values() for name in names}
    scopes = {*plan.networks, *(objective.name for objective in plan.objectives)}
    if meanings := explain([*plan.training, *plan.evaluation], hooks=hooks, scopes=scopes):
        found.append(
            TextTable("What their names mean", pair, tuple((f"{each}/", text) for each, text in meanings.items()))
        )
    if plan.memory:
        sizes = [format_bytes(item.bytes) if item.adds else f"({format_bytes(item.bytes)})" for item in plan.memory]
        rows = [(item.name, size, item.note) for item, size in zip(plan.memory, sizes, strict=True)]
        rows.append(("total", format_bytes(plan.total_bytes), "without Python, TensorFlow, and scratch memory of ops"))
        found.append(TextTable("Memory, estimated", ("what", "bytes", ""), tuple(rows)))
    return found


def _objective_sections(objective: ObjectivePlan, full: bool) -> Iterator[TextTable]:
    def rows(changes: Sequence[Change], otherwise: str) -> list[Row]:
        listed = [", ".join(each.variables) if full else "; ".join(group_names(each.variables)) for each in changes]
        return [(each.what, names or otherwise, each.by) for each, names in zip(changes, listed, strict=True)]

    updates = rows(objective.updates if full else objective.alike_updates(), UNKNOWN)
    title = f"Update ops of objective '{objective.name}', all run before the apply"
    yield TextTable(title, ("op", "writes", "added by"), tuple(updates))
    after = [*rows(objective.applies, NONE), *rows(objective.projections, UNDECLARED)]
    after += [("measure", "", hook) for hook in objective.hooks.get("measure", ())]
    title = f"After the update ops of objective '{objective.name}', in this order"
    yield TextTable(title, ("what", "by", "variables"), tuple((what, by, names) for what, names, by in after))


def _table(title: str, variables: Sequence[Variable], full: bool) -> TextTable:
    if full:
        columns: Row = ("variable", "shape", "dtype", "bytes", "role")
        rows: list[Row] = [(v.name, str(v.shape), v.dtype, format_bytes(v.bytes), _role(v)) for v in variables]
    else:
        columns, rows = ("", "variables", "dtype", "bytes", "role"), _short_rows(variables)
    for role, alike in _grouped(variables, lambda variable: variable.role).items():
        rows.append((f"total {role}".rstrip(), *_counts(alike), ""))
    kept = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    return TextTable(title, columns[:kept], tuple(row[:kept] for row in rows))


def _short_rows(variables: Iterable[Variable]) -> list[Row]:
    """Return a row for the variables of each layer that share a role, and for each kind of slots."""
    groups = list(_grouped(variables, lambda v: (v.group or f"/{v.name}", v.role, v.projected_by)).values())
    rows = [_group_row(group) for group in groups]
    if len(rows) <= SHOWN_ROWS + 1:
        return rows
    last = SHOWN_ROWS // 3
    lost = [variable for group in groups[SHOWN_ROWS - last : -last] for variable in group]
    count, dtypes, size = _counts(lost)
    middle = (f"... {len(rows) - SHOWN_ROWS:,} more rows ...", f"{count}: --full shows them", dtypes, size, "")
    return [*rows[: SHOWN_ROWS - last], middle, *rows[-last:]]


def _group_row(group: Sequence[Variable]) -> Row:
    first = group[0]
    if first.group and first.kind == OPTIMIZER:
        return (first.group, *_counts(group), _role(first))
    shapes = ["x".join("?" if each is None else str(each) for each in v.shape) or "scalar" for v in group]
    if not first.group:
        return first.name, shapes[0], first.dtype, format_bytes(first.bytes), _role(first)
    parts = [f"{variable.name.rpartition('/')[2]} {shape}" for variable, shape in zip(group, shapes, strict=True)]
    return first.group, ", ".join(parts), *_counts(group)[1:], _role(first)


def _grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    found: dict[Any, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _counts(variables: Sequence[Variable]) -> tuple[str, str, str]:
    """Return the number of variables and entries, the dtypes, and the bytes."""
    entries = sum(variable.entries for variable in variables)
    count = f"{len(variables):,} variable{'' if len(variables) == 1 else 's'}, {entries:,} entries"
    dtypes = dict.fromkeys(variable.dtype for variable in variables)
    return count, ", ".join(dtypes), format_bytes(sum(variable.bytes for variable in variables))


def _role(variable: Variable) -> str:
    projected = f"projected by {', '.join(variable.projected_by)}" if variable.projected_by else ""
    return ", ".join(text for text in (variable.role, projected) if text)


def as_markdown(plan: Plan) -> str:
    """Return the plan as Markdown."""
    parts = []
    for each in sections(plan, full=True):
        table = markdown_table(each.columns, ([_escape(cell) for cell in row] for row in each.rows))
        parts.append(f"## {_escape(each.title)}\n\n{table if each.rows else NONE}")
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    """Return text as one line in which nothing begins an escape or an HTML tag."""
    return " ".join(text.replace("\\", "\\\\").replace("<", "&lt;").split())
