"""The plan as Markdown, in full: what a run shows in TensorBoard."""

from __future__ import annotations

from trainer.plan.plan import Plan
from trainer.plan.sections import NONE, Section, sections


def as_markdown(plan: Plan) -> str:
    """Return the plan as Markdown.

    Args:
        plan: of a run or a step.
    """
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
