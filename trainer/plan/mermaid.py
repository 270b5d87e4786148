"""The flow chart of a step in Mermaid, which Markdown viewers draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainer.plan.flow import APPLY, DATA, HOOKS, UPDATE, VARIABLES, WORK, Frame, step_flow
from trainer.plan.plan import Plan

SHAPES = {DATA: ("[/", "/]"), VARIABLES: ("[(", ")]"), WORK: ("[", "]"), HOOKS: ("(", ")")}
SHAPES |= {UPDATE: ("[", "]"), APPLY: ("[[", "]]")}
COLOURS = {DATA: "#eeeeee", VARIABLES: "#ffffff", WORK: "#ffffff", HOOKS: "#dbe9f6", UPDATE: "#fde7c8"}
COLOURS |= {APPLY: "#d9efd6"}
UNSAFE = '#"&<>`\\;'


def as_mermaid(plan: Plan) -> str:
    """Return the step as a flowchart: solid arrows carry data, dotted ones are control dependencies.

    Args:
        plan: of a run or a step.
    """
    chart, arrows = step_flow(plan)
    lines = ["flowchart TB", *_frame(chart, "  ")]
    for arrow in arrows:
        line = "-.->" if arrow.control else "-->"
        label = f"|{quote([arrow.label])}|" if arrow.label else ""
        lines.append(f"  {arrow.start} {line}{label} {arrow.end}")
    lines += [f"  classDef {kind} fill:{colour},stroke:#555555,color:#000000" for kind, colour in COLOURS.items()]
    return "\n".join(lines) + "\n"


def _frame(frame: Frame, indent: str) -> Iterator[str]:
    """Yield the statements for what is in a frame."""
    for box in frame.boxes:
        left, right = SHAPES[box.kind]
        yield f"{indent}{box.key}{left}{quote(box.lines)}{right}:::{box.kind}"
    for inner in frame.frames:
        yield f"{indent}subgraph {inner.key}[{quote([inner.title])}]"
        yield from _frame(inner, f"{indent}  ")
        yield f"{indent}end"


def quote(lines: Iterable[str]) -> str:
    """Return lines as one quoted label.

    Mermaid writes special characters as entities that begin with # in place of &.

    Args:
        lines: free text.
    """
    return '"' + "<br/>".join("".join(map(_character, " ".join(line.split()))) for line in lines) + '"'


def _character(character: str) -> str:
    return f"#{ord(character)};" if character in UNSAFE else character
