"""The pages of the documentation, taken apart: shell commands, blocks of code, links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from hookline.cli import SUBCOMMANDS, resume_arguments

PAGES = (
    *("README.md", "CONTRIBUTING.md", "hookline/README.md", "hookline/MIGRATION.md", "hookline/COMPARISON.md"),
    *("recipes/OWN.md", "recipes/README.md", "scripts/README.md", "trainer/README.md", "hooks/README.md"),
)
DRAWINGS = ("runs/<recipe>/<date_time>/", "batch(step)")
"""The first word of fences without a language that show a tree of files, or stages, and no commands."""


class DocumentationError(ValueError):
    """Report a part of a page that is not of a known kind."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def file_name(self):
        found = re.fullmatch(r"#\s*([\w./-]+\.\w+)\s*", self.lines[0]) if self.lines else None
        return found[1] if found else None


@dataclass(frozen=True)
class Command:
    page: str
    line: int
    text: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def read_page(page, text):
    """Yield what a page holds that can be run or read: no `py`, which is code for other packages.

    A fence of an unknown kind is a DocumentationError.
    """
    for block in fences(page, text):
        if block.language == "" and not block.lines[0].startswith(DRAWINGS):
            yield from commands(block)
        elif block.language in ("python", "toml"):
            yield block
        elif block.language not in ("", "text", "py"):
            raise DocumentationError(f"{block.place}: a fence of '{block.language}', which is not known here")


def fences(page, text):
    opened = None
    content = []
    for number, line in enumerate(text.splitlines(), start=1):
        marker = re.match(r"(\s*)(```+)\s*([\w-]*)", line)
        if opened is None and marker:
            opened, content = (number + 1, marker[3], marker[1]), []
        elif opened is not None and marker and not marker[3]:
            yield Block(page, opened[0], opened[1], tuple(content))
            opened = None
        elif opened is not None:
            content.append(line.removeprefix(opened[2]))
    if opened is not None:
        raise DocumentationError(f"{page}:{opened[0] - 1}: a fence that is not closed.")


def commands(block):
    found = []
    begun = False
    for number, line in enumerate(block.lines, start=block.line):
        text = f"{found[-1].text} {line.strip()}" if begun else line
        begun_before, begun = begun, text.endswith("\\")
        command = Command(block.page, found[-1].line if begun_before else number, text.removesuffix("\\").rstrip())
        found = [*(found[:-1] if begun_before else found), command]
    bare = [replace(each, text=re.sub(r"(^|\s)#.*", "", each.text).strip()) for each in found]
    yield from (each for each in bare if each.text)


def programs(text):
    found = [[]]
    for word in shlex.split(text):
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return [as_file(words) for words in found]


def as_file(words):
    if words[:1] != ["hookline"]:
        return words
    name, rest = words[1], words[2:]
    if name not in SUBCOMMANDS:
        return ["python", "-m", *words]
    script = SUBCOMMANDS[name][0].replace(".", "/")
    return ["python", f"{script}.py", *(resume_arguments(rest) if name == "resume" else rest)]
