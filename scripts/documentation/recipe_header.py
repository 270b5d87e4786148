"""What a recipe's YAML file says at its top: purpose, paper, command and what comes of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABELS = ("Paper", "Command", "Expected")
LABEL = re.compile(rf"# ({'|'.join(LABELS)}): (\S.*)")
FURTHER = re.compile(r"#  +(\S.*)")
PACKAGE = "# @package _global_"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.(\d+))?")
SWEEP = re.compile(r" (-m|--jobs \d+|seed=[\d,]+)(?= |$)")


@dataclass(frozen=True)
class RecipeHeader:
    """Hold the header of a recipe.

    Attributes:
        purpose: one line.
        paper: where it comes from; "none." where it is the project's own.
        command: that runs it.
        expected: result, with seeds and data, and time.
    """

    purpose: str
    paper: str
    command: str
    expected: str


def read_header(path: Path) -> RecipeHeader:
    """Return the header of a recipe.

    Args:
        path: its YAML file.

    Raises:
        ValueError: a line is missing or stands at another place; it says which one belongs there.
    """
    package, purpose, *lines = [*_comments(path), "", ""]
    if package != PACKAGE or not purpose.startswith("# ") or LABEL.fullmatch(purpose):
        raise ValueError(f"{path.name} must start with '{PACKAGE}' and a comment that says what the recipe is for.")
    texts: dict[str, str] = {}
    for line in lines:
        if found := LABEL.fullmatch(line):
            texts[found[1]] = found[2]
        elif (found := FURTHER.fullmatch(line)) and texts:
            texts[list(texts)[-1]] += f" {found[1]}"
    if tuple(texts) != LABELS:
        needed = ", ".join(f"'# {label}: ...'" for label in LABELS)
        raise ValueError(f"{path.name} has {', '.join(texts) or 'nothing'} after its purpose. Expected {needed}.")
    return RecipeHeader(purpose.removeprefix("# "), texts["Paper"], texts["Command"], texts["Expected"])


def _comments(path: Path) -> Iterator[str]:
    """Yield the comments with which a file begins."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        yield line.rstrip()


def missing_figures(header: RecipeHeader, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return which measured figures of a recipe its header does not say, each in one line.

    A row counts where its first command is that of the header, whatever the seeds; further ones are of its twins. The
    header has to say its first measure, with the range and the number of seeds, and the mean of every other one that
    it names.

    Args:
        header: of the recipe.
        rows: of `recipes/results.json`; those that have not been run are left out.
    """
    missing = []
    for row in rows:
        if [header.command] != [SWEEP.sub("", command) for command in row.get("commands", ())[:1]]:
            continue
        first, *others = row["measures"]
        wanted = {f"{first['name']}, {key}": first[key] for key in ("mean", "low", "high")}
        wanted |= {each["name"]: each["mean"] for each in others if each["name"] in header.expected}
        missing += [f"{name}: {value:g}" for name, value in wanted.items() if not _says(header.expected, value)]
        if not re.search(rf"\b{len(row['seeds'])} seeds\b", header.expected):
            missing.append(f"number of seeds: {len(row['seeds'])}")
    return missing


def _says(text: str, value: float) -> bool:
    """Return whether a text has a number that is a value, rounded."""
    return any(
        abs(float(found[0]) - value) <= 0.5 * 10.0 ** -len(found[1] or "") + 1e-9 for found in NUMBER.finditer(text)
    )
