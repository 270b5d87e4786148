"""What a hook should say of itself and does not, each in one line that says what to add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.documentation.description import ROOT, Description

GROUPS = {
    "technique": "Techniques",
    "optimization": "Normalization and optimization",
    "guard": "Guards",
    "monitor": "Monitors",
}
"""What a section "Group:" may say, with the title on the page, in the order of the page."""
REPORTING = {"add_losses", "evaluate", "measure", "split_metrics"}
SHOWING = {"pictures", "embeddings"}


@dataclass(frozen=True)
class Section:
    """Hold a section of a hook's docstring.

    Attributes:
        heading: without the colon.
        content: what to write into it.
        belongs: whether a hook has to have it.
        optional: whether a hook may have it where it need not.
    """

    heading: str
    content: str
    belongs: Callable[[Description], bool]
    optional: bool = False


def _always(hook: Description) -> bool:
    return True


def _changes_training(hook: Description) -> bool:
    return hook.group in ("technique", "optimization")


SECTIONS = (
    Section("Group", f"one of the words {', '.join(GROUPS)}", _always),
    Section("Equation", "the formula that the code computes, in plain characters", _changes_training, optional=True),
    Section("State", "'name: what it holds' for each name of its state", lambda hook: bool(hook.declared.state)),
    Section("Scalars", "'name: what it is' for all it reports", lambda hook: bool(REPORTING & {*hook.stages})),
    Section("Pictures", "'name: what it shows' for each picture", lambda hook: bool(SHOWING & {*hook.stages})),
    Section("Cost", "what it does per step, and measured figures where there are any", _always),
    Section("Pitfalls", "'<test file>: what is easy to get wrong, which this file tests'", _always),
    Section("Reference", "paper, section or equation, or where else it comes from", _changes_training, optional=True),
    Section("Example", "a command that runs as it stands", _always),
)
"""The sections of a hook's docstring, in the order of the page."""
ENTRIES = ("State", "Scalars", "Pictures", "Pitfalls")


def find_gaps(hook: Description, root: Path = ROOT) -> list[str]:
    """Return a line for everything that a hook should say and does not, or says wrongly.

    Args:
        hook: its description.
        root: of the project, where the tests are that it names.
    """
    where = f"{hook.source}, docstring of {hook.hook_class.__name__}:"
    lines = [f"{where} {line}" for line in (*_section_gaps(hook), *_entry_gaps(hook, root))]
    if {*hook.arguments} != (keys := {option.key for option in hook.options} - {"objective"}):
        differing = ", ".join(sorted(keys ^ {*hook.arguments}))
        lines.append(f"{where} {differing} stand either in the Args of __init__ or in {hook.config}. Expected in both.")
    bare = [option.key for option in hook.options if not option.comment]
    return lines + [f"{hook.config}: add a comment behind '{key}:' that says what it is." for key in bare]


def _section_gaps(hook: Description) -> Iterator[str]:
    known = [section.heading for section in SECTIONS]
    for heading in hook.docstring.sections:
        if heading not in known:
            yield f"the section '{heading}:' is not known. Expected one of: {', '.join(known)}."
    for section in SECTIONS:
        present, belongs = section.heading in hook.docstring.sections, section.belongs(hook)
        if belongs and not present:
            yield f"add a section '{section.heading}:' with {section.content}."
        elif present and not belongs and not section.optional:
            yield f"take out the section '{section.heading}:', as there is nothing that it could tell."
    if hook.group and hook.group not in GROUPS:
        yield f"'{hook.group}' received in 'Group:'. Expected one of: {', '.join(GROUPS)}."


def _entry_gaps(hook: Description, root: Path) -> Iterator[str]:
    entries: dict[str, dict[str, str]] = {}
    for heading in ENTRIES:
        try:
            entries[heading] = hook.docstring.entries(heading)
        except ValueError as error:
            yield str(error)
    if "State" in hook.docstring.sections and {*entries.get("State", {})} != {*hook.declared.state}:
        expected = ", ".join(hook.declared.state) or "none"
        yield f"'State:' names {', '.join(entries.get('State', {}))}. Expected what the hook keeps: {expected}."
    for file in entries.get("Pitfalls", {}):
        if not (root / file).is_file():
            yield f"'Pitfalls:' names {file}, which is no file. Expected the test that proves it."
