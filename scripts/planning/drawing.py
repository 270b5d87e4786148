"""The plan as a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hookline.scripts.planning.plan import NETWORK, UNKNOWN, ObjectivePlan, Plan, group_names, shorten
from hookline.trainer.step.writes import BEGIN, FORWARD, TRAINER

DATA, VARIABLES, WORK, HOOKS, UPDATE, APPLY = "data", "variables", "work", "hooks", "update", "apply"
"""Kinds of boxes."""
SHOWN_NAMES, SHOWN_LINES = 4, 6
"""How many layers a line of a label names, and how many such lines a label has."""


@dataclass(frozen=True)
class Box:
    """Hold a box.

    Attributes:
        key: unique in the chart; letters, digits and underscores.
        lines: of the label, free text.
        kind: how it is drawn.
    """

    key: str
    lines: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Arrow:
    """Hold an arrow.

    Attributes:
        start: key of a box.
        end: key of a box.
        label: free text, perhaps empty.
        control: whether it only orders, as a control dependency does.
    """

    start: str
    end: str
    label: str = ""
    control: bool = False


@dataclass
class Frame:
    """Hold boxes that belong together.

    Attributes:
        key: unique among frames and boxes.
        title: free text.
        boxes: in order.
        frames: inside this one.
    """

    key: str
    title: str
    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)


def step_flow(plan: Plan) -> tuple[Frame, list[Arrow]]:
    """Return the chart of a step: networks, stages with their hooks, update ops, apply, project, measure."""
    chart, arrows = Frame("step", "one step", [Box("batch", ("batch(step)",), DATA)]), []
    networks = {name: f"network_{number}" for number, name in enumerate(plan.networks)}
    for name, key in networks.items():
        count = f"{len(plan.variables_of(NETWORK, name)):,} variables"
        chart.boxes.append(Box(key, (f"network {name}", plan.networks[name], count), VARIABLES))
    before = ""
    for number, objective in enumerate(plan.objectives):
        drawing = _Drawing(objective, f"objective_{number}", {**networks, "": "batch"})
        chart.frames.append(drawing.frame)
        arrows += [Arrow(before, drawing.first, "then", control=True)] if before else []
        arrows += drawing.arrows
        before = drawing.last
    return chart, arrows


def _named(names: Sequence[str]) -> list[str]:
    """Return variables as the lines of a label."""
    return shorten(group_names(names, SHOWN_NAMES), SHOWN_LINES)


def _labelled(stage: str, hooks: tuple[str, ...]) -> tuple[str, ...]:
    return stage, *(f"hook {hook}" for hook in hooks)


class _Drawing:
    """Draw one objective, box by box in the order of a step.

    Attributes:
        frame: with its boxes.
        arrows: of its boxes.
        first: key of the first box.
        last: key of the last box.
    """

    def __init__(self, objective: ObjectivePlan, key: str, sources: Mapping[str, str]) -> None:
        """Draw."""
        self.objective, self.sources = objective, sources
        often = f", {objective.times} times a step" if objective.times > 1 else ""
        self.frame = Frame(key, f"objective {objective.name}{often}")
        self.arrows: list[Arrow] = []
        self.vetoes: list[str] = []
        state, gradients = self._forward()
        updates = self._updates(state, gradients)
        self.last = self._apply(gradients, updates)

    def _box(self, name: str, lines: tuple[str, ...], kind: str, *after: str, label: str = "") -> str:
        """Add a box with arrows from others, and return its key."""
        key = f"{self.frame.key}_{name}"
        self.frame.boxes.append(Box(key, lines, kind))
        self.arrows += [Arrow(start, key, label) for start in after]
        return key

    def _stage(self, stage: str, *after: str, label: str = "") -> str:
        """Add a stage if any hook takes part in it, and return the key of the box that its result comes from."""
        hooks = self.objective.hooks.get(stage)
        return self._box(stage, _labelled(stage, hooks), HOOKS, *after, label=label) if hooks else after[-1]

    def _forward(self) -> tuple[str, str]:
        """Draw up to the gradients; return the keys of the boxes that new state and gradients come from."""
        networks = [self.sources[name] for name in self.objective.runs]
        if begun := [update for update in self.objective.alike_updates() if update.added_by == BEGIN]:
            written = [line for update in begun for line in (update.ops, "writes", *_named(update.writes))]
            networks = [self._box("begin", ("begin", *written), UPDATE, *networks)]
        weights = networks
        for stage in ("transform_weights", "around_forward"):
            if hooks := self.objective.hooks.get(stage):
                weights = [self._box(stage, _labelled(stage, hooks), HOOKS, *weights)]
        lines = ("forward", *(f"runs {name}" for name in self.objective.runs))
        forward = self._box("forward", lines, WORK, self.sources[""], *weights)
        self.first = self.frame.boxes[0].key
        losses = self._stage("add_losses", self._box("losses", ("losses",), WORK, forward))
        changes = ", ".join(self.objective.trains)
        computed = self._box("compute_gradients", ("compute_gradients", f"of {changes}"), WORK, losses)
        gradients = self._stage("transform_gradients", computed)
        return self._stage("transform_state", forward, label="new state"), gradients

    def _updates(self, state: str, gradients: str) -> list[str]:
        """Draw UPDATE_OPS and return the keys of its boxes; ops that are alike share one."""
        forward = f"{self.frame.key}_forward"
        veto = self._stage("veto", *dict.fromkeys((state, gradients)))
        self.vetoes = [veto] if "veto" in self.objective.hooks else []
        summing, sums = self.objective.hooks.get("batch_sums", ()), self._stage("batch_sums", forward)
        frame = Frame(f"{self.frame.key}_updates", "UPDATE_OPS")
        updates = [update for update in self.objective.alike_updates() if update.added_by != BEGIN]
        for number, update in enumerate(updates):
            written = _named(update.writes) or [UNKNOWN]
            lines = (update.ops, "writes", *written, f"added by {update.added_by}")
            box = Box(f"{frame.key}_{number}", lines, UPDATE)
            frame.boxes.append(box)
            layers = update.added_by.startswith(TRAINER)
            start = state if layers else sums if update.added_by in summing else forward
            self.arrows.append(Arrow(start, box.key, "new state" if layers else ""))
            held_back = self.vetoes if update.added_by != FORWARD else []  # what the forward pass writes, no veto stops
            self.arrows += [Arrow(each, box.key, "unless vetoed", control=True) for each in held_back]
        self.frame.frames += [frame] if frame.boxes else []
        return [box.key for box in frame.boxes]

    def _apply(self, gradients: str, updates: list[str]) -> str:
        """Draw what comes after UPDATE_OPS and return the key of the last box."""
        before = []
        for number, apply in enumerate(self.objective.applies):
            names = _named(apply.variables) or ["no variable"]
            lines = ("apply_gradients", f"{apply.optimizer} of {apply.network}", *names)
            before.append(self._box(f"apply_{number}", lines, APPLY, gradients, label="gradients"))
            self.arrows += [Arrow(update, before[-1], "control dependency", control=True) for update in updates]
            self.arrows += [Arrow(veto, before[-1], "unless vetoed", control=True) for veto in self.vetoes]
        before = before or [gradients]  # of an objective that changes nothing
        for number, projection in enumerate(self.objective.projections):
            lines = ("project", f"hook {projection.hook}", *_named(projection.variables))
            before = [self._ordered(f"project_{number}", lines, before)]
        if hooks := self.objective.hooks.get("measure"):
            before = [self._ordered("measure", _labelled("measure", hooks), before)]
        return before[-1]

    def _ordered(self, name: str, lines: tuple[str, ...], before: list[str]) -> str:
        key = self._box(name, lines, HOOKS)
        self.arrows += [Arrow(start, key, control=True) for start in before]
        return key


STYLES = {
    DATA: 'shape=parallelogram, style=filled, fillcolor="#eeeeee"',
    VARIABLES: 'shape=cylinder, style=filled, fillcolor="#ffffff"',
    WORK: 'shape=box, style=filled, fillcolor="#ffffff"',
    HOOKS: 'shape=box, style="rounded,filled", fillcolor="#dbe9f6"',
    UPDATE: 'shape=box, style=filled, fillcolor="#fde7c8"',
    APPLY: 'shape=box, style="filled,bold", fillcolor="#d9efd6"',
}


def as_dot(plan: Plan) -> str:
    """Return the step as a digraph: solid arrows carry data, dashed ones are control dependencies."""
    chart, arrows = step_flow(plan)
    lines = ["digraph step {", '  graph [fontname="Helvetica", fontsize=11];']
    lines += ['  node [fontname="Helvetica", fontsize=11];', '  edge [fontname="Helvetica", fontsize=9];']
    lines += _frame(chart, "  ")
    for arrow in arrows:
        attributes = [f"label={quote([arrow.label])}"] if arrow.label else []
        attributes += ["style=dashed"] if arrow.control else []
        listed = f" [{', '.join(attributes)}]" if attributes else ""
        lines.append(f"  {arrow.start} -> {arrow.end}{listed};")
    return "\n".join([*lines, "}"]) + "\n"


def _frame(frame: Frame, indent: str) -> Iterator[str]:
    """Yield the statements for what is in a frame."""
    for box in frame.boxes:
        yield f"{indent}{box.key} [label={quote(box.lines)}, {STYLES[box.kind]}];"
    for inner in frame.frames:
        yield f"{indent}subgraph cluster_{inner.key} {{"
        yield f"{indent}  label={quote([inner.title])};"
        yield from _frame(inner, f"{indent}  ")
        yield f"{indent}}}"


def quote(lines: Iterable[str]) -> str:
    """Return lines as one quoted label.

    In a quoted string of DOT only the quote is special, but in a label a backslash begins an escape, and & an entity
    of HTML.
    """
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return '"' + "\\n".join(" ".join(line.split()) for line in escaped) + '"'


SHAPES = {DATA: ("[/", "/]"), VARIABLES: ("[(", ")]"), WORK: ("[", "]"), HOOKS: ("(", ")")}
SHAPES |= {UPDATE: ("[", "]"), APPLY: ("[[", "]]")}
COLOURS = {DATA: "#eeeeee", VARIABLES: "#ffffff", WORK: "#ffffff", HOOKS: "#dbe9f6", UPDATE: "#fde7c8"}
COLOURS |= {APPLY: "#d9efd6"}
UNSAFE = '#"&<>`\\;'


def as_mermaid(plan: Plan) -> str:
    """Return the step as a flowchart: solid arrows carry data, dotted ones are control dependencies."""
    chart, arrows = step_flow(plan)
    lines = ["flowchart TB", *_mermaid_frame(chart, "  ")]
    for arrow in arrows:
        line = "-.->" if arrow.control else "-->"
        label = f"|{quote_label([arrow.label])}|" if arrow.label else ""
        lines.append(f"  {arrow.start} {line}{label} {arrow.end}")
    lines += [f"  classDef {kind} fill:{colour},stroke:#555555,color:#000000" for kind, colour in COLOURS.items()]
    return "\n".join(lines) + "\n"


def _mermaid_frame(frame: Frame, indent: str) -> Iterator[str]:
    """Yield the statements for what is in a frame."""
    for box in frame.boxes:
        left, right = SHAPES[box.kind]
        yield f"{indent}{box.key}{left}{quote_label(box.lines)}{right}:::{box.kind}"
    for inner in frame.frames:
        yield f"{indent}subgraph {inner.key}[{quote_label([inner.title])}]"
        yield from _mermaid_frame(inner, f"{indent}  ")
        yield f"{indent}end"


def quote_label(lines: Iterable[str]) -> str:
    """Return lines as one quoted label.

    Mermaid writes special characters as entities that begin with # in place of &.
    """
    return '"' + "<br/>".join("".join(map(_character, " ".join(line.split()))) for line in lines) + '"'


def _character(character: str) -> str:
    return f"#{ord(character)};" if character in UNSAFE else character
