"""The plan as a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hookline.scripts.planning.plan import NETWORK, UNKNOWN, Change, ObjectivePlan, Plan, group_names, shorten
from hookline.trainer.step.writes import BEGIN, FORWARD, TRAINER

SHOWN_NAMES, SHOWN_LINES = 4, 6
"""How many layers a line of a label names, and how many such lines a label has."""
DATA, VARIABLES, WORK, HOOKS, UPDATE, APPLY = "data", "variables", "work", "hooks", "update", "apply"
KINDS = {
    DATA: ("parallelogram", "filled", "#eeeeee", "[/", "/]"),
    VARIABLES: ("cylinder", "filled", "#ffffff", "[(", ")]"),
    WORK: ("box", "filled", "#ffffff", "[", "]"),
    HOOKS: ("box", "rounded,filled", "#dbe9f6", "(", ")"),
    UPDATE: ("box", "filled", "#fde7c8", "[", "]"),
    APPLY: ("box", "filled,bold", "#d9efd6", "[[", "]]"),
}
"""Kinds of boxes: shape and style in DOT, the colour, and what stands around a label in Mermaid."""
ORDERS = CONTROL, VETO, THEN = "control dependency", "unless vetoed", "then"
"""Labels of arrows that carry no data: they only order, as a control dependency does."""
FRAME, END = "frame", "end"
"""Kinds of parts that begin a frame around the boxes that follow, and end it."""


class Part(NamedTuple):
    """A box, or the beginning or the end of a frame; its lines are free text."""

    kind: str  # of `KINDS`, or `FRAME` or `END`
    key: str = ""  # unique in the chart; letters, digits and underscores
    lines: tuple[str, ...] = ()


class Arrow(NamedTuple):
    """An arrow between boxes."""

    start: str
    end: str
    label: str = ""


class Chart:
    """A step as boxes, in frames, and arrows, drawn in the order of a step."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.arrows: list[Arrow] = []

    def box(self, key: str, kind: str, lines: Iterable[str], after: Iterable[str] = (), label: str = "") -> str:
        """Add a box with arrows from others, and return its key; an arrow of data says what it carries, or nothing."""
        self.parts.append(Part(kind, key, tuple(lines)))
        self.arrows += [Arrow(start, key, label) for start in after]
        return key

    def draw(self, objective: ObjectivePlan, key: str, weights: Sequence[str]) -> str:
        """Draw an objective, and return the key of its last box."""

        def box(name: str, kind: str, lines: Iterable[str], after: Iterable[str], label: str = "") -> str:
            return self.box(f"{key}_{name}", kind, lines, after, label)

        def stage(name: str, after: Sequence[str], label: str = "") -> Sequence[str]:
            """Add a stage if any hook takes part, and return the keys of the boxes that its result comes from."""
            hooks = [f"hook {hook}" for hook in objective.hooks.get(name, ())]
            return [box(name, HOOKS, [name, *hooks], after, label)] if hooks else after

        updates = objective.alike_updates()
        if begun := [update for update in updates if update.by == BEGIN]:
            written = [line for update in begun for line in (update.what, "writes", *_named(update.variables))]
            weights = [box("begin", UPDATE, ["begin", *written], weights)]
        for name in ("transform_weights", "around_forward"):
            weights = stage(name, weights)
        runs = [f"runs {name}" for name in objective.runs]
        forward = box("forward", WORK, ["forward", *runs], ["batch", *weights])
        losses = stage("add_losses", [box("losses", WORK, ["losses"], [forward])])
        trains = f"of {', '.join(objective.trains)}"
        gradients: Sequence[str] = [box("compute_gradients", WORK, ["compute_gradients", trains], losses)]
        for name in ("gradient_point", "transform_gradients"):
            gradients = stage(name, gradients)
        (state,) = stage("transform_state", [forward], "new state")
        veto = stage("veto", list(dict.fromkeys((state, *gradients))))
        vetoes = veto if "veto" in objective.hooks else ()
        (sums,) = stage("batch_sums", [forward])
        sources = dict.fromkeys(objective.hooks.get("batch_sums", ()), sums)
        written = self._updates([each for each in updates if each.by != BEGIN], key, forward, state, sources, vetoes)
        before: list[str] = []
        for number, apply in enumerate(objective.applies):
            lines = ["apply_gradients", apply.by, *(_named(apply.variables) or ["no variable"])]
            before.append(box(f"apply_{number}", APPLY, lines, gradients, "gradients"))
            self.arrows += [Arrow(start, before[-1], CONTROL) for start in written]
            self.arrows += [Arrow(start, before[-1], VETO) for start in vetoes]
        before = before or [*gradients]  # of an objective that changes nothing
        for number, projection in enumerate(objective.projections):
            lines = ["project", f"hook {projection.by}", *_named(projection.variables)]
            before = [box(f"project_{number}", HOOKS, lines, before, CONTROL)]
        return stage("measure", before, CONTROL)[-1]

    def _updates(
        self,
        updates: Sequence[Change],
        key: str,
        forward: str,
        state: str,
        sources: Mapping[str, str],
        vetoes: Sequence[str],
    ) -> list[str]:
        """Draw UPDATE_OPS and return the keys of its boxes; `sources` has where those of some hooks come from."""
        if not updates:
            return []
        keys = []
        self.parts.append(Part(FRAME, f"{key}_updates", ("UPDATE_OPS",)))
        for number, update in enumerate(updates):
            lines = [update.what, "writes", *(_named(update.variables) or [UNKNOWN]), f"added by {update.by}"]
            layers = update.by.startswith(TRAINER)
            start = state if layers else sources.get(update.by, forward)
            keys.append(self.box(f"{key}_updates_{number}", UPDATE, lines, [start], "new state" if layers else ""))
            if update.by != FORWARD:  # what the forward pass writes, no veto stops
                self.arrows += [Arrow(veto, keys[-1], VETO) for veto in vetoes]
        self.parts.append(Part(END))
        return keys


def _named(names: Sequence[str]) -> list[str]:
    """Return variables as the lines of a label."""
    return shorten(group_names(names, SHOWN_NAMES), SHOWN_LINES)


def step_chart(plan: Plan) -> Chart:
    """Return the chart of a step: networks, stages with their hooks, update ops, apply, project, measure."""
    chart = Chart()
    chart.box("batch", DATA, ["batch(step)"])
    sources = {}
    for number, (name, model) in enumerate(plan.networks.items()):
        count = f"{len(plan.variables_of(NETWORK, name)):,} variables"
        sources[name] = chart.box(f"network_{number}", VARIABLES, [f"network {name}", model, count])
    last = ""
    for number, objective in enumerate(plan.objectives):
        key, place = f"objective_{number}", len(chart.parts) + 1
        often = f", {objective.times} times a step" if objective.times > 1 else ""
        chart.parts.append(Part(FRAME, key, (f"objective {objective.name}{often}",)))
        end = chart.draw(objective, key, [sources[name] for name in objective.runs])
        chart.parts.append(Part(END))
        chart.arrows += [Arrow(last, chart.parts[place].key, THEN)] if last else []
        last = end
    return chart


def as_dot(plan: Plan) -> str:
    """Return the step as a digraph: solid arrows carry data, dashed ones are control dependencies."""
    chart, lines = step_chart(plan), ["digraph step {"]
    for part, size in (("graph", 11), ("node", 11), ("edge", 9)):
        lines.append(f'{part} [fontname="Helvetica", fontsize={size}];')
    for kind, key, texts in chart.parts:
        if kind in (FRAME, END):
            lines.append("}" if kind == END else f"subgraph cluster_{key} {{ label={_quoted(texts)};")
            continue
        shape, style, colour, *_ = KINDS[kind]
        look = f'shape={shape}, style="{style}", fillcolor="{colour}"'
        lines.append(f"{key} [label={_quoted(texts)}, {look}];")
    for arrow in chart.arrows:
        look = f"label={_quoted([arrow.label])}, style={'dashed' if arrow.label in ORDERS else 'solid'}"
        lines.append(f"{arrow.start} -> {arrow.end} [{look}];")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(lines: Iterable[str]) -> str:
    """Return lines as one quoted label of DOT, where a backslash begins an escape, and & an entity of HTML."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return '"' + "\\n".join(" ".join(line.split()) for line in escaped) + '"'


def as_mermaid(plan: Plan) -> str:
    """Return the step as a flowchart: solid arrows carry data, dotted ones are control dependencies."""
    chart, lines = step_chart(plan), ["flowchart TB"]
    for kind, key, texts in chart.parts:
        if kind in (FRAME, END):
            lines.append("end" if kind == END else f"subgraph {key}[{_entities(texts)}]")
            continue
        *_, left, right = KINDS[kind]
        lines.append(f"{key}{left}{_entities(texts)}{right}:::{kind}")
    for arrow in chart.arrows:
        label = f"|{_entities([arrow.label])}|" if arrow.label else ""
        lines.append(f"{arrow.start} {'-.->' if arrow.label in ORDERS else '-->'}{label} {arrow.end}")
    lines += [f"classDef {kind} fill:{look[2]},stroke:#555555,color:#000000" for kind, look in KINDS.items()]
    return "\n".join(lines) + "\n"


def _entities(lines: Iterable[str]) -> str:
    """Return lines as one quoted label of Mermaid, which writes entities with # in place of &."""
    unsafe = '#"&<>`\\;'
    safe = ("".join(f"#{ord(each)};" if each in unsafe else each for each in " ".join(line.split())) for line in lines)
    return '"' + "<br/>".join(safe) + '"'
