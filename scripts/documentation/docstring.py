"""A docstring as data: its first line, what follows in free text, and its sections."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

HEADING = re.compile(r"([A-Z][a-z]+):")


@dataclass(frozen=True)
class Docstring:
    """Hold a docstring.

    Attributes:
        summary: its first line.
        body: the text between it and the sections.
        sections: text by heading, without the indentation.
    """

    summary: str
    body: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)

    def entries(self, heading: str) -> dict[str, str]:
        """Return the entries of a section that is written as "name: text", as arguments are; none where it is missing.

        Args:
            heading: of the section.

        Raises:
            ValueError: a line that belongs to no entry, or a name that comes twice.
        """
        return _entries(heading, self.sections.get(heading, ""))


def parse_docstring(text: str | None) -> Docstring:
    """Return a docstring of Google's style as data.

    A section is a heading such as "Cost:" alone in a line, with indented text below it. Sections come last.

    Args:
        text: as it stands in the source; None for none.

    Raises:
        ValueError: text without indentation below a section, or a section that comes twice or is empty.
    """
    summary, _, rest = inspect.cleandoc(text or "").partition("\n")
    body: list[str] = []
    sections: dict[str, list[str]] = {}
    lines = body
    for line in rest.splitlines():
        if heading := HEADING.fullmatch(line):
            if heading[1] in sections:
                raise ValueError(f"The section '{heading[1]}:' comes twice.")
            lines = sections.setdefault(heading[1], [])
        elif line.strip() and not line.startswith(" ") and lines is not body:
            raise ValueError(f"'{line}' stands below a section without being indented. Expected sections at the end.")
        else:
            lines.append(line)
    texts = {heading: textwrap.dedent("\n".join(lines)).strip() for heading, lines in sections.items()}
    if empty := [heading for heading, each in texts.items() if not each]:
        raise ValueError(f"The section '{empty[0]}:' is empty. Expected indented text below it.")
    return Docstring(summary, "\n".join(body).strip(), texts)


def _entries(heading: str, section: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line.startswith(" ") and name:
            found[name] += f" {line.strip()}"
            continue
        name, separator, text = line.partition(": ")
        if not separator or name in found:
            raise ValueError(f"'{line}' in the section '{heading}:' received. Expected 'name: text', each name once.")
        found[name] = text
    return found
