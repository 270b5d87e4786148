"""The plan as a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

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
"""Kinds of boxes: shape and style in DOT, the color, and the brackets around a label in Mermaid."""
ORDERS = CONTROL, VETO, THEN = "control dependency", "unless vetoed", "then"
"""Labels of arrows that carry no data, but only impose an order, like control dependencies."""
DOT, MERMAID = "dot", "mermaid"


class Chart:
    """A step as framed boxes and arrows, in the order of execution, as lines of both languages."""

    def __init__(self) -> None:
        self.keys: list[str] = []  # of the boxes: letters, digits and underscores
        self.boxes: dict[str, list[str]] = {DOT: [], MERMAID: []}
        self.arrows: dict[str, list[str]] = {DOT: [], MERMAID: []}  # after all boxes: the first mention places a box

    def box(self, key: str, kind: str, lines: Sequence[str], after: Iterable[str] = (), label: str = "") -> str:
        """Add a box with arrows from others, and return its key; its lines are free text."""
        shape, style, color, left, right = KINDS[kind]
        look = f'shape={shape}, style="{style}", fillcolor="{color}"'
        self.boxes[DOT].append(f"{key} [label={_quoted(lines)}, {look}];")
        self.boxes[MERMAID].append(f"{key}{left}{_entities(lines)}{right}:::{kind}")
        self.keys.append(key)
        self.connect(after, key, label)
        return key

    def connect(self, starts: Iterable[str], end: str, label: str = "") -> None:
        """Add arrows to a box: solid ones carry data, with an optional label; others are control dependencies."""
        style, line = ("dashed", "-.->") if label in ORDERS else ("solid", "-->")
        shown = f"|{_entities([label])}|" if label else ""
        for start in starts:
            self.arrows[DOT].append(f"{start} -> {end} [label={_quoted([label])}, style={style}];")
            self.arrows[MERMAID].append(f"{start} {line}{shown} {end}")

    @contextmanager
    def frame(self, key: str, title: str) -> Iterator[None]:
        """Draw a frame around the boxes that are added within the block."""
        self.boxes[DOT].append(f"subgraph cluster_{key} {{ label={_quoted([title])};")
        self.boxes[MERMAID].append(f"subgraph {key}[{_entities([title])}]")
        yield
        self.boxes[DOT].append("}")
        self.boxes[MERMAID].append("end")

    def draw(self, objective: ObjectivePlan, key: str, weights: Sequence[str]) -> str:
        """Draw an objective, and return the key of its last box."""

        def box(name: str, kind: str, lines: Sequence[str], after: Iterable[str], label: str = "") -> str:
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
            self.connect(written, before[-1], CONTROL)
            self.connect(vetoes, before[-1], VETO)
        before = before or [*gradients]  # for an objective that changes nothing
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
        """Draw UPDATE_OPS and return the keys of its boxes; `sources` maps hooks to the boxes theirs start from."""
        if not updates:
            return []
        keys = []
        with self.frame(f"{key}_updates", "UPDATE_OPS"):
            for number, update in enumerate(updates):
                lines = [update.what, "writes", *(_named(update.variables) or [UNKNOWN]), f"added by {update.by}"]
                layers = update.by.startswith(TRAINER)
                start = state if layers else sources.get(update.by, forward)
                keys.append(self.box(f"{key}_updates_{number}", UPDATE, lines, [start], "new state" if layers else ""))
                if update.by != FORWARD:  # a veto does not stop writes of the forward pass
                    self.connect(vetoes, keys[-1], VETO)
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
        key, place = f"objective_{number}", len(chart.keys)
        often = f", {objective.times} times a step" if objective.times > 1 else ""
        with chart.frame(key, f"objective {objective.name}{often}"):
            end = chart.draw(objective, key, [sources[name] for name in objective.runs])
        chart.connect([last] if last else [], chart.keys[place], THEN)
        last = end
    return chart


def as_dot(plan: Plan) -> str:
    """Return the step as a digraph: solid arrows carry data, dashed ones are control dependencies."""
    chart, sizes = step_chart(plan), {"graph": 11, "node": 11, "edge": 9}
    fonts = [f'{part} [fontname="Helvetica", fontsize={size}];' for part, size in sizes.items()]
    return "\n".join(["digraph step {", *fonts, *chart.boxes[DOT], *chart.arrows[DOT], "}"]) + "\n"


def _quoted(lines: Iterable[str]) -> str:
    """Return lines as one quoted label of DOT, where a backslash begins an escape, and & an entity of HTML."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return '"' + "\\n".join(" ".join(line.split()) for line in escaped) + '"'


def as_mermaid(plan: Plan) -> str:
    """Return the step as a flowchart: solid arrows carry data, dotted ones are control dependencies."""
    chart = step_chart(plan)
    kinds = [f"classDef {kind} fill:{look[2]},stroke:#555555,color:#000000" for kind, look in KINDS.items()]
    return "\n".join(["flowchart TB", *chart.boxes[MERMAID], *chart.arrows[MERMAID], *kinds]) + "\n"


def _entities(lines: Iterable[str]) -> str:
    """Return lines as one quoted label of Mermaid, which writes entities with # instead of &."""
    unsafe = '#"&<>`\\;'
    safe = ("".join(f"#{ord(each)};" if each in unsafe else each for each in " ".join(line.split())) for line in lines)
    return '"' + "<br/>".join(safe) + '"'
