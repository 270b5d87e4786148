"""The flow chart of a step in DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainer.plan.flow import APPLY, DATA, HOOKS, UPDATE, VARIABLES, WORK, Frame, step_flow
from trainer.plan.plan import Plan

STYLES = {
    DATA: 'shape=parallelogram, style=filled, fillcolor="#eeeeee"',
    VARIABLES: 'shape=cylinder, style=filled, fillcolor="#ffffff"',
    WORK: 'shape=box, style=filled, fillcolor="#ffffff"',
    HOOKS: 'shape=box, style="rounded,filled", fillcolor="#dbe9f6"',
    UPDATE: 'shape=box, style=filled, fillcolor="#fde7c8"',
    APPLY: 'shape=box, style="filled,bold", fillcolor="#d9efd6"',
}


def as_dot(plan: Plan) -> str:
    """Return the step as a digraph: solid arrows carry data, dashed ones are control dependencies.

    Args:
        plan: of a run or a step.
    """
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

    Args:
        lines: free text.
    """
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return '"' + "\\n".join(" ".join(line.split()) for line in escaped) + '"'
