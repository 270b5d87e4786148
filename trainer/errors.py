"""User errors in one line, checks of option values, and safe printing of untrusted names."""

from __future__ import annotations

import difflib
import importlib
import math
import os
import re
import shlex
import shutil
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from tokenize import TokenError
from typing import Any


class UserError(ValueError):
    """Report a user's mistake in one line: what was received, what was expected, how to fix it.

    The command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(as_typed(one_line(message)))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class Interrupted(KeyboardInterrupt):
    """Report that a signal or the end of the time budget ended a run or a script."""

    def __init__(self, message: str, signal_number: int | None) -> None:
        super().__init__(message)
        self.signal_number = signal_number  # None for the time budget
        self.outcome: Any = None  # set once the summary is written


class UnsavedError(RuntimeError):
    """Report that a run has ended and its last or best state, or its summary, could not be written to disk."""


class WorkersError(RuntimeError):
    """Report that the workers of a run cannot continue together: one is gone, hangs, failed, or differs."""


class NonFiniteError(ArithmeticError):
    """Report that a step produced NaN or infinity, and that its update was withheld."""


def printable(text: str, keep: str = "") -> str:
    """Escape the characters of a text, except those in `keep`, that control a terminal or disguise the text."""
    return "".join(each if each in keep or _is_shown(each) else ascii(each)[1:-1] for each in text)


def one_line(text: str) -> str:
    """Return a text as one line that is safe to print."""
    return printable(" ".join(text.split()))


def _is_shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # wide spaces are harmless


IS_CLONE = (Path(__file__).resolve().parents[1] / "hookline").is_dir()
"""Whether this is a clone of the project, with its scripts as files; false for an installed package."""
SCRIPT = re.compile(r"(?<![\w./-])(?:(?:python )?scripts/(\w+)|(?:python )?(train))\.py\b")
EXTRA = re.compile(r"-e '\.\[([\w-]+)\]', in a clone of this project")


PROGRAM = re.compile(r"(?<![\w./-])(?:python(?= (?:train|scripts/\w+)\.py\b| -m pip)|tensorboard(?= --logdir))")


def as_typed(text: str) -> str:
    """Rewrite commands in a text, such as "python scripts/export.py", so that they work in this shell."""
    if not IS_CLONE:
        text = SCRIPT.sub(lambda found: f"hookline {(found[1] or found[2]).replace('_', '-')}", text)
        text = EXTRA.sub(r"'hookline[\1]'", text)
    return PROGRAM.sub(lambda found: _called(found[0]), text)


def _called(program: str) -> str:
    """Return a program's name if the shell would run this environment's copy or there is none, else its path."""
    ours, found = Path(sys.executable).parent / program, shutil.which(program)
    if not ours.exists() or (found and Path(found).parent.resolve() == ours.parent.resolve()):
        return program
    with suppress(ValueError, OSError):  # it lies elsewhere, or the current directory is gone
        ours = ours.relative_to(Path.cwd())
    return shlex.quote(str(ours))


def nearest(received: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that was probably meant: a similar one, or one that "lr" or "acc" abbreviates."""
    names = list(known)
    lowered = {name.lower(): name for name in reversed(names)}
    close = difflib.get_close_matches(received, names, n=1, cutoff=cutoff) or [
        lowered[each] for each in difflib.get_close_matches(received.lower(), lowered, n=1, cutoff=cutoff)
    ]
    return close[0] if close else next((name for name in names if _is_short_for(received, name)), None)


def _is_short_for(received: str, name: str) -> bool:
    words = name.rpartition("/")[2].split("_")
    initials, start = "".join(word[:1] for word in words), name.lower().startswith(received.lower())
    return len(received) > 1 and (
        received == initials or start or (len(received) > 2 and words[-1].startswith(received))
    )


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """Return a suggestion such as " Did you mean 'steps'?", or an empty string if no known name is similar."""
    found = nearest(received, known)
    return f" Did you mean '{found}'?" if found else ""


def unknown_name(kind: str, received: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown name, with a suggestion and the known names."""
    names = sorted(known)
    listing = ", ".join(names) if names else "none"
    return UserError(f"Unknown {kind} '{received}'.{did_you_mean(received, names)} Expected one of: {listing}.")


def is_whole_number(value: Any) -> bool:
    """Return whether a setting is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(name: str, value: Any, minimum: int = 1, maximum: int | None = None) -> int:
    """Return an option's value; raise a `UserError` unless it is a whole number in the range."""
    if not is_whole_number(value) or value < minimum or (maximum is not None and value > maximum):
        bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise UserError(f"{name}={value!r} received. Expected a whole number {bounds}.")
    return int(value)


def check_number(
    name: str,
    value: Any,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    *,
    above_minimum: bool = False,
    below_maximum: bool = False,
) -> float:
    """Return an option's value as a float; raise a `UserError` unless it is a finite number in the range."""
    excluded = [limit for limit, open_ in ((minimum, above_minimum), (maximum, below_maximum)) if open_]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not minimum <= value <= maximum or value in excluded:
        expected = "a finite number"
        if minimum > -math.inf:
            expected = f"a number {'above' if above_minimum else 'of at least'} {minimum:g}"
            expected += f" and {'below' if below_maximum else 'at most'} {maximum:g}" if maximum < math.inf else ""
        raise UserError(f"{name}={value!r} received. Expected {expected}.")
    return float(value)


def check_choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Return an option's value; raise a `UserError` unless it is one of the known names."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        raise unknown_name(name, str(value), names)
    return value


def import_optional(module: str, *, extra: str, needed_by: str) -> Any:
    """Import and return a module of an optional dependency; raise a `UserError` if that fails."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs the package {module}, which cannot be imported ({error}). Install it: "
            f"python -m pip install -e '.[{extra}]', in a clone of this project."
        ) from error


def user_path(text: str | Path, key: str) -> Path:
    """Return the path that a text names, with a leading "~" expanded to the home directory."""
    if not isinstance(text, str | os.PathLike):
        raise UserError(f"{key}={text!r} received. Expected a path.")
    path = Path(os.path.expanduser(text))
    try:
        path.exists()
    except OSError as error:
        raise UserError(f"{key} '{path}' cannot be opened ({error.strerror}). Check name and permissions.") from error
    return path


ARRAY_FAULTS = (
    *(OSError, EOFError, RuntimeError, MemoryError, ValueError, TypeError, KeyError, SyntaxError),
    *(TokenError, zipfile.BadZipFile, zlib.error),
)
"""Raised by the system, NumPy, Python's parser (for headers) and zip (NotImplementedError is a RuntimeError)."""
