"""The plan as text."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hookline.scripts.planning.plan import (
    HOOK,
    NETWORK,
    OPTIMIZER,
    UNKNOWN,
    Change,
    ObjectivePlan,
    Plan,
    Variable,
    list_names,
    shorten,
)
from hookline.trainer.hook import AT
from hookline.trainer.run.results import explain, format_bytes

SHOWN_ROWS, SHOWN_METRICS = 24, 40
"""How many rows of variables, and how many metrics, the short form shows."""
NONE, UNDECLARED = "none", "none that it declares"
Row = tuple[str, ...]


class Section(NamedTuple):
    """A table."""

    title: str  # one line
    columns: Row  # their heads; empty heads for rows of label and text
    rows: tuple[Row, ...]  # as text; none if there is nothing to say


def sections(plan: Plan, *, full: bool) -> list[Section]:
    """Return the tables of a plan."""
    pair = ("", "")
    found = [Section("Run", pair, tuple(plan.facts.items()))] if plan.facts else []
    if plan.advice:
        found.append(Section("Advice, before anything is trained", ("hook", "what it sees"), plan.advice))
    stages = tuple((stage.phase, stage.name, ", ".join(stage.hooks)) for stage in plan.stages)
    found.append(Section("Stages, as they run", ("when", "stage", "hooks in order"), stages))
    if len(plan.objectives) > 1 or any(objective.times > 1 for objective in plan.objectives):
        order = ((each.name, ", ".join(each.trains), ", ".join(each.runs), str(each.times)) for each in plan.objectives)
        heads = ("objective", "changes", "runs", "times a step")
        found.append(Section("Objectives, as a step runs them one after the other", heads, tuple(order)))
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
    found.append(Section("Metrics", pair, tuple(_metric_rows(plan, full))))
    hooks = {name.partition(AT)[0] for stage in plan.stages for name in stage.hooks}
    scopes = {*plan.networks, *(objective.name for objective in plan.objectives)}
    if meanings := explain([*plan.training, *plan.evaluation], hooks=hooks, scopes=scopes):
        found.append(
            Section("What their names mean", pair, tuple((f"{each}/", text) for each, text in meanings.items()))
        )
    return [*found, _memory_section(plan)] if plan.memory else found


def _objective_sections(objective: ObjectivePlan, full: bool) -> Iterator[Section]:
    def rows(changes: Iterable[Change], otherwise: str) -> list[Row]:
        return [(each.what, list_names(each.variables, full=full) or otherwise, each.by) for each in changes]

    updates = rows(objective.updates if full else objective.alike_updates(), UNKNOWN)
    title = f"Update ops of objective '{objective.name}', all run before the apply"
    yield Section(title, ("op", "writes", "added by"), tuple(updates))
    after = [*rows(objective.applies, NONE), *rows(objective.projections, UNDECLARED)]
    after += [("measure", "", hook) for hook in objective.hooks.get("measure", ())]
    title = f"After the update ops of objective '{objective.name}', in this order"
    yield Section(title, ("what", "by", "variables"), tuple((what, by, names) for what, names, by in after))


def _table(title: str, variables: Sequence[Variable], full: bool) -> Section:
    if full:
        columns: Row = ("variable", "shape", "dtype", "bytes", "role")
        rows: list[Row] = [(v.name, str(v.shape), v.dtype, format_bytes(v.bytes), _role(v)) for v in variables]
    else:
        columns, rows = ("", "variables", "dtype", "bytes", "role"), _short_rows(variables)
    for role, alike in _grouped(variables, lambda variable: variable.role).items():
        rows.append((f"total {role}".rstrip(), *_counts(alike), ""))
    kept = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    return Section(title, columns[:kept], tuple(row[:kept] for row in rows))


def _short_rows(variables: Iterable[Variable]) -> list[Row]:
    """Return a row for the variables of each layer that share a role, and for the slots of a kind."""
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


def _grouped(variables: Iterable[Variable], key: Callable[[Variable], Hashable]) -> dict[Hashable, list[Variable]]:
    found: dict[Hashable, list[Variable]] = {}
    for variable in variables:
        found.setdefault(key(variable), []).append(variable)
    return found


def _counts(variables: Sequence[Variable]) -> tuple[str, str, str]:
    """Return how many there are, of which types, and their bytes."""
    entries = sum(variable.entries for variable in variables)
    count = f"{len(variables):,} variable{'' if len(variables) == 1 else 's'}, {entries:,} entries"
    dtypes = dict.fromkeys(variable.dtype for variable in variables)
    return count, ", ".join(dtypes), format_bytes(sum(variable.bytes for variable in variables))


def _role(variable: Variable) -> str:
    projected = f"projected by {', '.join(variable.projected_by)}" if variable.projected_by else ""
    return ", ".join(text for text in (variable.role, projected) if text)


def _metric_rows(plan: Plan, full: bool) -> Iterator[Row]:
    for label, names in (("training", plan.training), ("evaluation", plan.evaluation)):
        yield label, ", ".join(names if full else shorten(names, SHOWN_METRICS)) or NONE
    if plan.monitor:
        yield "monitor", plan.monitor


def _memory_section(plan: Plan) -> Section:
    sizes = [format_bytes(item.bytes) if item.adds else f"({format_bytes(item.bytes)})" for item in plan.memory]
    rows = [(item.name, size, item.note) for item, size in zip(plan.memory, sizes, strict=True)]
    total = ("total", format_bytes(plan.total_bytes), "without Python, TensorFlow, and what ops need for themselves")
    return Section("Memory, estimated", ("what", "bytes", ""), (*rows, total))


def as_markdown(plan: Plan) -> str:
    """Return the plan as Markdown."""
    parts = []
    for each in sections(plan, full=True):
        lines = [_line(each.columns), "|" + " --- |" * len(each.columns), *map(_line, each.rows)]
        parts.append(f"## {_escape(each.title)}\n\n" + ("\n".join(lines) if each.rows else NONE))
    return "\n\n".join(parts) + "\n"


def _line(cells: Row) -> str:
    return "| " + " | ".join(map(_escape, cells)) + " |"


def _escape(text: str) -> str:
    """Return text in which nothing ends a cell or begins an HTML tag."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
