"""The plan as text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hookline.scripts.planning.plan import (
    HOOK,
    NETWORK,
    OPTIMIZER,
    UNKNOWN,
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


@dataclass(frozen=True)
class Section:
    """Hold a table.

    Attributes:
        title: one line.
        columns: their heads; empty heads for rows of label and text.
        rows: as text; none if there is nothing to say.
    """

    title: str
    columns: Row
    rows: tuple[Row, ...]


def sections(plan: Plan, *, full: bool) -> list[Section]:
    """Return the tables of a plan."""
    stages = tuple((stage.phase, stage.name, ", ".join(stage.hooks)) for stage in plan.stages)
    found = [Section("Run", ("", ""), tuple(plan.facts.items()))] if plan.facts else []
    if plan.advice:
        found.append(Section("Advice, before anything is trained", ("hook", "what it sees"), plan.advice))
    found.append(Section("Stages, as they run", ("when", "stage", "hooks in order"), stages))
    if len(plan.objectives) > 1 or any(objective.times > 1 for objective in plan.objectives):
        found.append(_order_section(plan.objectives))
    for objective in plan.objectives:
        found += _objective_sections(objective, full)
    found += _variable_sections(plan, full)
    found.append(Section("Metrics", ("", ""), tuple(_metric_rows(plan, full))))
    if meanings := _meanings(plan):
        found.append(Section("What their names mean", ("", ""), meanings))
    if plan.memory:
        found.append(_memory_section(plan))
    return found


def _order_section(objectives: Iterable[ObjectivePlan]) -> Section:
    """Return who changes what; a step with one objective that runs once needs no such table."""
    rows = [(each.name, ", ".join(each.trains), ", ".join(each.runs), str(each.times)) for each in objectives]
    columns = ("objective", "changes", "runs", "times a step")
    return Section("Objectives, as a step runs them one after the other", columns, tuple(rows))


def _objective_sections(objective: ObjectivePlan, full: bool) -> Iterator[Section]:
    title = f"Update ops of objective '{objective.name}', all run before the apply"
    yield Section(title, ("op", "writes", "added by"), tuple(_update_rows(objective, full)))
    rows = [
        *(
            ("apply", f"{a.optimizer} of {a.network}", list_names(a.variables, full=full) or NONE)
            for a in objective.applies
        ),
        *(("project", p.hook, list_names(p.variables, full=full) or UNDECLARED) for p in objective.projections),
        *(("measure", hook, "") for hook in objective.hooks.get("measure", ())),
    ]
    title = f"After the update ops of objective '{objective.name}', in this order"
    yield Section(title, ("what", "by", "variables"), tuple(rows))


def _update_rows(objective: ObjectivePlan, full: bool) -> Iterator[Row]:
    for update in objective.updates if full else objective.alike_updates():
        yield update.ops, list_names(update.writes, full=full) or UNKNOWN, update.added_by


def _variable_sections(plan: Plan, full: bool) -> Iterator[Section]:
    for name, model in plan.networks.items():
        yield _table(f"Variables of network '{name}': {model}", plan.variables_of(NETWORK, name), full)
    for name in plan.networks:
        yield _table(f"Variables of the optimizer of network '{name}'", plan.variables_of(OPTIMIZER, name), full)
    for hook in dict.fromkeys(variable.owner for variable in plan.variables_of(HOOK)):
        yield _table(f"State of hook '{hook}'", plan.variables_of(HOOK, hook), full)


def _table(title: str, variables: Sequence[Variable], full: bool) -> Section:
    rows = [_variable_row(each) for each in variables] if full else _short_rows(variables)
    for role, alike in _grouped(variables, lambda variable: variable.role).items():
        rows.append((f"total {role}".rstrip(), *_counts(alike), ""))
    columns = ("variable", "shape", "dtype", "bytes", "role") if full else ("", "variables", "dtype", "bytes", "role")
    kept = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    return Section(title, columns[:kept], tuple(row[:kept] for row in rows))


def _short_rows(variables: Iterable[Variable]) -> list[Row]:
    """Return a row for the variables of each layer that share a role, and for the slots of a kind."""
    alike = _grouped(variables, lambda v: (v.group or f"/{v.name}", v.role, v.projected_by))
    groups = list(alike.values())
    rows = [_group_row(group) for group in groups]
    if len(rows) <= SHOWN_ROWS + 1:
        return rows
    last = SHOWN_ROWS // 3
    lost = list(itertools.chain.from_iterable(groups[SHOWN_ROWS - last : -last]))
    count, dtypes, size = _counts(lost)
    middle = (f"... {len(rows) - SHOWN_ROWS:,} more rows ...", f"{count}: --full shows them", dtypes, size, "")
    return [*rows[: SHOWN_ROWS - last], middle, *rows[-last:]]


def _group_row(group: Sequence[Variable]) -> Row:
    first = group[0]
    if not first.group:
        return first.name, _short_shape(first), first.dtype, format_bytes(first.bytes), _role(first)
    if first.kind == OPTIMIZER:
        return (first.group, *_counts(group), _role(first))
    parts = [f"{variable.name.rpartition('/')[2]} {_short_shape(variable)}" for variable in group]
    return first.group, ", ".join(parts), _dtypes(group), format_bytes(_total(group)), _role(first)


def _variable_row(variable: Variable) -> Row:
    return variable.name, _shape(variable), variable.dtype, format_bytes(variable.bytes), _role(variable)


def _grouped(variables: Iterable[Variable], key: Callable[[Variable], Hashable]) -> dict[Hashable, list[Variable]]:
    found: dict[Hashable, list[Variable]] = {}
    for variable in variables:
        found.setdefault(key(variable), []).append(variable)
    return found


def _counts(variables: Sequence[Variable]) -> tuple[str, str, str]:
    """Return how many there are, of which types, and their bytes."""
    entries = sum(variable.entries for variable in variables)
    count = f"{len(variables):,} variable{'' if len(variables) == 1 else 's'}, {entries:,} entries"
    return count, _dtypes(variables), format_bytes(_total(variables))


def _dtypes(variables: Iterable[Variable]) -> str:
    return ", ".join(dict.fromkeys(variable.dtype for variable in variables))


def _total(variables: Iterable[Variable]) -> int:
    return sum(variable.bytes for variable in variables)


def _shape(variable: Variable) -> str:
    return str(variable.shape)


def _short_shape(variable: Variable) -> str:
    return "x".join("?" if each is None else str(each) for each in variable.shape) or "scalar"


def _role(variable: Variable) -> str:
    projected = f"projected by {', '.join(variable.projected_by)}" if variable.projected_by else ""
    return ", ".join(text for text in (variable.role, projected) if text)


def _metric_rows(plan: Plan, full: bool) -> Iterator[Row]:
    for label, names in (("training", plan.metrics.training), ("evaluation", plan.metrics.evaluation)):
        yield label, ", ".join(names if full else shorten(names, SHOWN_METRICS)) or NONE
    if plan.metrics.monitor:
        yield "monitor", plan.metrics.monitor


def _meanings(plan: Plan) -> tuple[Row, ...]:
    hooks = {name.partition(AT)[0] for stage in plan.stages for name in stage.hooks}
    scopes = {*plan.networks, *(objective.name for objective in plan.objectives)}
    names = [*plan.metrics.training, *plan.metrics.evaluation]
    return tuple((f"{each}/", text) for each, text in explain(names, hooks=hooks, scopes=scopes).items())


def _memory_section(plan: Plan) -> Section:
    rows = [
        (item.name, format_bytes(item.bytes) if item.adds else f"({format_bytes(item.bytes)})", item.note)
        for item in plan.memory
    ]
    total = ("total", format_bytes(plan.total_bytes), "without Python, TensorFlow, and what ops need for themselves")
    return Section("Memory, estimated", ("what", "bytes", ""), (*rows, total))


def as_markdown(plan: Plan) -> str:
    """Return the plan as Markdown."""
    return "\n\n".join(f"## {_escape(each.title)}\n\n{_body(each)}" for each in sections(plan, full=True)) + "\n"


def _body(section: Section) -> str:
    if not section.rows:
        return NONE
    return "\n".join([_row(section.columns), "|" + " --- |" * len(section.columns), *map(_row, section.rows)])


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(_escape, cells)) + " |"


def _escape(text: str) -> str:
    """Return text in which nothing ends a cell or begins an HTML tag."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
