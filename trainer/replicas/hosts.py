"""Lists of hosts and numbers in the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hookline.trainer.errors import UserError


def number_of(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable as a whole number of at least 0."""
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise UserError(f"{name}={text or '(not set)'} received. Expected a whole number of at least 0.")
    return int(text)


PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list, in order."""
    hosts: list[str] = []
    place = 0
    while place < len(text):
        found = PART.match(text, place)
        if found is None or (found.end() < len(text) and text[found.end()] != ","):
            raise _wrong(text)
        hosts += _expand(found[0].strip(), text)
        place = found.end() + 1
    return hosts


def _expand(name: str, text: str) -> Iterator[str]:
    found = BRACKETS.search(name)
    if found is None:
        yield name
        return
    for number in _numbers(found[1], text):
        yield from _expand(name[: found.start()] + number + name[found.end() :], text)


def _numbers(inside: str, text: str) -> Iterator[str]:
    """Yield the numbers in brackets, with their leading zeros."""
    for part in inside.split(","):
        found = RANGE.fullmatch(part.strip())
        if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
            raise _wrong(text)
        first, last = found[1], found[2] or found[1]
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _wrong(text: str) -> UserError:
    return UserError(f"The list of hosts '{text}' cannot be read. Expected such as gpu[01-03,7],login.")
