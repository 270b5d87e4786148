"""The pages of the documentation, taken apart: shell commands, Python files, and what is neither."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PAGES = (
    *("README.md", "CONTRIBUTING.md"),
    *("recipes/README.md", "scripts/README.md", "trainer/README.md", "hooks/README.md", "recipes/RESULTS.md"),
)
SHELL = ("", "sh", "bash", "shell", "console")
PROSE = ("text", "mermaid", "markdown", "math")
DATA = ("yaml", "toml", "json")
DRAWINGS = {
    "runs/<recipe>/<date_time>/": "a run's files",
    "batch(step)": "the stages of a step",
}
"""Fences without a language that show something else than commands: their first word, and what they show."""
OPERATORS = {"&&", ";", "|", ">", ">>"}


class DocumentationError(ValueError):
    """Report a part of a page that is not of a known kind."""


@dataclass(frozen=True)
class Block:
    """Hold a fence.

    Attributes:
        page: path from the root of the project.
        line: of its first line.
        language: "python", one of `DATA`, or "shell".
        lines: its content.
    """

    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def place(self) -> str:
        """Return where it stands, as editors open it."""
        return f"{self.page}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """Return the name of the file that a first line such as `# my_hooks.py` gives it."""
        found = re.fullmatch(r"#\s*([\w./-]+\.\w+)\s*", self.lines[0]) if self.lines else None
        return found[1] if found else None


@dataclass(frozen=True)
class Command:
    """Hold a line of shell, with its continuations, without its comment.

    Attributes:
        page: path from the root of the project.
        line: of its first line.
        text: as printed.
        output: what the page shows below it.
    """

    page: str
    line: int
    text: str
    output: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Return where it stands, as editors open it."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Part:
    """Hold one program of a command.

    Attributes:
        words: the program and its arguments.
        environment: variables that are set for it.
        operator: what stands before it, such as "&&" or "|"; "" for the first.
        target: file that its output goes to; None for the screen.
    """

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    operator: str = ""
    target: str | None = None


def read_pages(root: Path) -> dict[str, list[Block | Command]]:
    """Return what the pages hold that can be run or read, in order, by page.

    Args:
        root: of the project; pages that are not there are left out.

    Raises:
        DocumentationError: a fence of an unknown kind.
    """
    texts = {page: (root / page).read_text(encoding="utf-8") for page in PAGES if (root / page).is_file()}
    return {page: list(read_page(page, text)) for page, text in texts.items()}


def read_page(page: str, text: str) -> Iterator[Block | Command]:
    """Yield what a page holds that can be run or read.

    Args:
        page: its path.
        text: Markdown.

    Raises:
        DocumentationError: a fence of an unknown kind.
    """
    for block in [*fences(page, text), *indented(page, text)]:
        if block.language in SHELL:
            if not is_drawing(block):
                yield from commands(block)
        elif block.language == "python" or block.language in DATA:
            yield block
        elif block.language not in PROSE:
            raise DocumentationError(
                f"{block.place}: a fence of '{block.language}'. Expected no language or one of "
                f"{', '.join([*SHELL[1:], 'python', *DATA, *PROSE])}."
            )


def fences(page: str, text: str) -> Iterator[Block]:
    """Yield the fences of a page.

    Args:
        page: its path.
        text: Markdown.
    """
    opened: tuple[int, str, str] | None = None
    content: list[str] = []
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


def indented(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a page that are indented by four, outside fences and lists.

    Args:
        page: its path.
        text: Markdown.
    """
    fenced = in_list = False
    start, content, blank = 0, [], True
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if re.match(r"\s*```", line):
            fenced = not fenced
        elif not fenced and re.match(r"\s*([-*+]|\d+\.)\s", line):
            in_list = True
        elif line and not line.startswith(" "):
            in_list = False
        code = not fenced and not in_list and line.startswith("    ") and (blank or bool(content))
        if code:
            start, content = start if content else number, [*content, line[4:]]
        elif content:
            yield Block(page, start, "", tuple(content))
            content = []
        blank = not line.strip()


def is_drawing(block: Block) -> bool:
    """Return whether a fence without a language shows something else than commands.

    Args:
        block: a fence.
    """
    words = block.lines[0].split() if block.lines else []
    return bool(words) and block.language == "" and words[0] in DRAWINGS


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a fence, each with the output below it where the fence shows some.

    Where a line begins with "$ ", only such lines are commands, and the others are output. Those of a loop over words
    come once for each word.

    Args:
        block: of shell.

    Raises:
        DocumentationError: a loop that is not closed, or within another.
    """
    shows_output = any(line.startswith("$ ") for line in block.lines)
    found: list[tuple[int, str, list[str]]] = []
    waiting = ""
    for number, line in enumerate(block.lines, start=block.line):
        if waiting or not shows_output or line.startswith("$ "):
            text = line if waiting else line.removeprefix("$ ")
            begun = f"{waiting}{text.strip() if waiting else text}"
            if begun.endswith("\\"):
                if not waiting:
                    found.append((number, "", []))
                waiting = f"{begun[:-1].rstrip()} "
                continue
            if waiting:
                found[-1] = (found[-1][0], begun, [])
            else:
                found.append((number, begun, []))
            waiting = ""
        elif found:
            found[-1][2].append(line)
    bare = [(number, without_comment(text), output) for number, text, output in found]
    yield from _rounds([Command(block.page, number, text, tuple(output)) for number, text, output in bare if text])


def _rounds(found: Sequence[Command]) -> Iterator[Command]:
    """Yield commands in the order in which a shell runs them."""
    loop: re.Match[str] | None = None
    inside: list[Command] = []
    for command in found:
        begun = re.fullmatch(r"for (\w+) in ([\w ]+); do", command.text)
        if begun and loop is not None:
            raise DocumentationError(f"{command.place}: {command.text}\n  is within a loop, which is not known here")
        if begun:
            loop, inside = begun, []
        elif loop is None:
            yield command
        elif command.text == "done":
            for word in loop[2].split():
                yield from (replace(each, text=_filled(each.text, loop[1], word)) for each in inside)
            loop = None
        else:
            inside.append(command)
    if loop is not None:
        raise DocumentationError(f"{found[-1].place}: {found[-1].text}\n  ends a fence with a loop that is not closed")


def _filled(text: str, name: str, value: str) -> str:
    return re.sub(rf"\$(?:{name}\b|{{{name}}})", value, text)


def without_comment(text: str) -> str:
    """Return a line of shell without its comment.

    Args:
        text: one line.
    """
    quote = ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (place == 0 or text[place - 1].isspace()):
            return text[:place].strip()
    return text.strip()


def parts(command: Command, text: str) -> list[Part]:
    """Return the programs of a command.

    Args:
        command: says where it stands.
        text: of it, with what stands in angle brackets filled in.

    Raises:
        DocumentationError: it is no shell that is known here.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&|;<>()")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        tokens = list(lexer)
    except ValueError as error:
        raise DocumentationError(f"{command.place}: {command.text}\n  cannot be read: {error}") from error
    found: list[tuple[str, list[str]]] = [("", [])]
    for token in tokens:
        if set(token) <= set("&|;<>()"):
            if token not in OPERATORS:
                raise DocumentationError(f"{command.place}: {command.text}\n  holds '{token}', which is not known here")
            found.append((token, []))
        else:
            found[-1][1].append(token)
    result: list[Part] = []
    for operator, words in found:
        if operator in (">", ">>"):
            before = result.pop()
            result.append(Part(before.words, before.environment, before.operator, words[0]))
        else:
            variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
            variables = variables[: next((n for n, word in enumerate(words) if word not in variables), len(words))]
            pairs = tuple((name, value) for name, _, value in (each.partition("=") for each in variables))
            result.append(Part(tuple(words[len(variables) :]), pairs, operator))
    return result
