"""The plan as a drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hookline.scripts.planning.plan import NETWORK, UNKNOWN, ObjectivePlan, Plan, group_names, shorten
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


@dataclass(frozen=True)
class Box:
    """Hold a box."""

    key: str  # unique in the chart; letters, digits and underscores
    lines: tuple[str, ...]  # of the label, free text
    kind: str


@dataclass(frozen=True)
class Arrow:
    """Hold an arrow between boxes."""

    start: str
    end: str
    label: str = ""  # free text
    control: bool = False  # whether it only orders, as a control dependency does


@dataclass
class Frame:
    """Hold boxes that belong together."""

    key: str  # unique among frames and boxes
    title: str  # free text
    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # inside this one


def step_flow(plan: Plan) -> tuple[Frame, list[Arrow]]:
    """Return the chart of a step: networks, stages with their hooks, update ops, apply, project, measure."""
    chart, arrows = Frame("step", "one step", [Box("batch", ("batch(step)",), DATA)]), []
    sources = {"": "batch"}
    for number, (name, model) in enumerate(plan.networks.items()):
        sources[name] = f"network_{number}"
        count = f"{len(plan.variables_of(NETWORK, name)):,} variables"
        chart.boxes.append(Box(sources[name], (f"network {name}", model, count), VARIABLES))
    before = ""
    for number, objective in enumerate(plan.objectives):
        drawing = _Drawing(objective, f"objective_{number}", sources)
        last = drawing.draw()
        chart.frames.append(drawing.frame)
        arrows += [Arrow(before, drawing.frame.boxes[0].key, "then", control=True)] if before else []
        arrows += drawing.arrows
        before = last
    return chart, arrows


def _named(names: Sequence[str]) -> list[str]:
    """Return variables as the lines of a label."""
    return shorten(group_names(names, SHOWN_NAMES), SHOWN_LINES)


def _labelled(stage: str, hooks: tuple[str, ...]) -> tuple[str, ...]:
    return stage, *(f"hook {hook}" for hook in hooks)


class _Drawing:
    """Draw one objective, box by box in the order of a step."""

    def __init__(self, objective: ObjectivePlan, key: str, sources: Mapping[str, str]) -> None:
        self.objective, self.sources = objective, sources
        often = f", {objective.times} times a step" if objective.times > 1 else ""
        self.frame = Frame(key, f"objective {objective.name}{often}")
        self.arrows: list[Arrow] = []
        self.vetoes: list[str] = []

    def draw(self) -> str:
        """Draw, and return the key of the last box."""
        state, gradients = self._forward()
        return self._apply(gradients, self._updates(state, gradients))

    def _box(
        self,
        name: str,
        lines: tuple[str, ...],
        kind: str,
        after: Iterable[str],
        label: str = "",
        *,
        control: bool = False,
    ) -> str:
        """Add a box with arrows from others, and return its key."""
        key = f"{self.frame.key}_{name}"
        self.frame.boxes.append(Box(key, lines, kind))
        self.arrows += [Arrow(start, key, label, control) for start in after]
        return key

    def _stage(self, stage: str, after: Sequence[str], label: str = "", *, control: bool = False) -> Sequence[str]:
        """Add a stage if any hook takes part in it, and return the keys of the boxes that its result comes from."""
        hooks = self.objective.hooks.get(stage)
        return [self._box(stage, _labelled(stage, hooks), HOOKS, after, label, control=control)] if hooks else after

    def _forward(self) -> tuple[str, str]:
        """Draw up to the gradients; return the keys of the boxes that new state and gradients come from."""
        weights: Sequence[str] = [self.sources[name] for name in self.objective.runs]
        if begun := [update for update in self.objective.alike_updates() if update.added_by == BEGIN]:
            written = [line for update in begun for line in (update.ops, "writes", *_named(update.writes))]
            weights = [self._box("begin", ("begin", *written), UPDATE, weights)]
        for stage in ("transform_weights", "around_forward"):
            weights = self._stage(stage, weights)
        lines = ("forward", *(f"runs {name}" for name in self.objective.runs))
        forward = self._box("forward", lines, WORK, [self.sources[""], *weights])
        losses = self._stage("add_losses", [self._box("losses", ("losses",), WORK, [forward])])
        lines = ("compute_gradients", f"of {', '.join(self.objective.trains)}")
        computed: Sequence[str] = [self._box("compute_gradients", lines, WORK, losses)]
        for stage in ("gradient_point", "transform_gradients"):
            computed = self._stage(stage, computed)
        return self._stage("transform_state", [forward], "new state")[0], computed[0]

    def _updates(self, state: str, gradients: str) -> list[str]:
        """Draw UPDATE_OPS and return the keys of its boxes; ops that are alike share one."""
        forward = f"{self.frame.key}_forward"
        veto = self._stage("veto", list(dict.fromkeys((state, gradients))))
        self.vetoes = [*veto] if "veto" in self.objective.hooks else []
        summing, (sums,) = self.objective.hooks.get("batch_sums", ()), self._stage("batch_sums", [forward])
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
            if update.added_by != FORWARD:  # what the forward pass writes, no veto stops
                self.arrows += [Arrow(each, box.key, "unless vetoed", control=True) for each in self.vetoes]
        self.frame.frames += [frame] if frame.boxes else []
        return [box.key for box in frame.boxes]

    def _apply(self, gradients: str, updates: list[str]) -> str:
        """Draw what comes after UPDATE_OPS and return the key of the last box."""
        before: list[str] = []
        for number, apply in enumerate(self.objective.applies):
            names = _named(apply.variables) or ["no variable"]
            lines = ("apply_gradients", f"{apply.optimizer} of {apply.network}", *names)
            before.append(self._box(f"apply_{number}", lines, APPLY, [gradients], "gradients"))
            self.arrows += [Arrow(update, before[-1], "control dependency", control=True) for update in updates]
            self.arrows += [Arrow(veto, before[-1], "unless vetoed", control=True) for veto in self.vetoes]
        before = before or [gradients]  # of an objective that changes nothing
        for number, projection in enumerate(self.objective.projections):
            lines = ("project", f"hook {projection.hook}", *_named(projection.variables))
            before = [self._box(f"project_{number}", lines, HOOKS, before, control=True)]
        return self._stage("measure", before, control=True)[-1]


def as_dot(plan: Plan) -> str:
    """Return the step as a digraph: solid arrows carry data, dashed ones are control dependencies."""

    def box(each: Box) -> str:
        shape, style, colour, *_ = KINDS[each.kind]
        return f'{each.key} [label={quote(each.lines)}, shape={shape}, style="{style}", fillcolor="{colour}"];'

    def begin(frame: Frame) -> str:
        return f"subgraph cluster_{frame.key} {{ label={quote([frame.title])};"

    chart, arrows = step_flow(plan)
    fonts = [f'  {part} [fontname="Helvetica", fontsize={size}];' for part, size in PARTS.items()]
    lines = ["digraph step {", *fonts, *_inside(chart, "  ", box, begin, "}")]
    for arrow in arrows:
        attributes = [f"label={quote([arrow.label])}"] if arrow.label else []
        attributes += ["style=dashed"] if arrow.control else []
        listed = f" [{', '.join(attributes)}]" if attributes else ""
        lines.append(f"  {arrow.start} -> {arrow.end}{listed};")
    return "\n".join([*lines, "}"]) + "\n"


PARTS = {"graph": 11, "node": 11, "edge": 9}


def _inside(
    frame: Frame, indent: str, box: Callable[[Box], str], begin: Callable[[Frame], str], end: str
) -> Iterator[str]:
    """Yield the statements for what is in a frame."""
    yield from (indent + box(each) for each in frame.boxes)
    for inner in frame.frames:
        yield indent + begin(inner)
        yield from _inside(inner, f"{indent}  ", box, begin, end)
        yield indent + end


def quote(lines: Iterable[str]) -> str:
    """Return lines as one quoted label of DOT, where a backslash begins an escape, and & an entity of HTML."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return '"' + "\\n".join(" ".join(line.split()) for line in escaped) + '"'


UNSAFE = '#"&<>`\\;'


def as_mermaid(plan: Plan) -> str:
    """Return the step as a flowchart: solid arrows carry data, dotted ones are control dependencies."""

    def box(each: Box) -> str:
        *_, left, right = KINDS[each.kind]
        return f"{each.key}{left}{quote_label(each.lines)}{right}:::{each.kind}"

    def begin(frame: Frame) -> str:
        return f"subgraph {frame.key}[{quote_label([frame.title])}]"

    chart, arrows = step_flow(plan)
    lines = ["flowchart TB", *_inside(chart, "  ", box, begin, "end")]
    for arrow in arrows:
        label = f"|{quote_label([arrow.label])}|" if arrow.label else ""
        lines.append(f"  {arrow.start} {'-.->' if arrow.control else '-->'}{label} {arrow.end}")
    lines += [f"  classDef {kind} fill:{look[2]},stroke:#555555,color:#000000" for kind, look in KINDS.items()]
    return "\n".join(lines) + "\n"


def quote_label(lines: Iterable[str]) -> str:
    """Return lines as one quoted label of Mermaid, which writes entities with # in place of &."""
    safe = ("".join(f"#{ord(each)};" if each in UNSAFE else each for each in " ".join(line.split())) for line in lines)
    return '"' + "<br/>".join(safe) + '"'
