"""Helpers shared by the scripts: `key=value` arguments, output files, tables, and one-line error messages."""

from __future__ import annotations

import csv
import fnmatch
import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hookline.train import DONE, WRONG, asks_for_traceback, interrupted_code, report, say
from hookline.trainer.config.schema import describe, fits
from hookline.trainer.deferred import open_streams, plain_warnings, termination_interrupts
from hookline.trainer.errors import UserError, printable, unknown_name, user_path
from hookline.trainer.files import write_whole

if TYPE_CHECKING:
    from hookline.trainer.config.preflight import Job
    from hookline.trainer.run.run import Run

Options = TypeVar("Options")
LOWEST = {int: 1, float: 0, list[float]: 0}
"""Smallest values of numeric options, which must also be finite."""


def make_main(
    usage: str | None, parse: Callable[[Sequence[str]], Options], command: Callable[[Options], int | None]
) -> Callable[..., int]:
    """Return the `main` of a script; exit codes: 0 done, 2 user error, 130 or 143 interrupted, or that of `command`."""

    def main(arguments: Sequence[str] | None = None) -> int:
        open_streams()
        arguments = list(sys.argv[1:] if arguments is None else arguments)
        if "--help" in arguments or "-h" in arguments:
            say((usage or "").rstrip())
            return DONE
        try:
            with plain_warnings(), termination_interrupts():
                code = command(parse(arguments))
        except (UserError, OSError) as error:
            return report(error, WRONG, debug=asks_for_traceback(arguments))
        except KeyboardInterrupt as error:
            return report(error, interrupted_code(error))
        return DONE if code is None else code

    return main


def parse_options(arguments: Iterable[str], make: type[Options]) -> Options:
    """Return the options of a command line as a dataclass; its annotations are the types of the values.

    Strings are taken verbatim, other values are parsed as YAML. Integers must be at least 1, floats at least 0.
    """
    hints, values = get_type_hints(make), {}
    own = {each.name: each for each in fields(make) if each.init}  # type: ignore[arg-type]
    for argument in arguments:
        key, separator, text = argument.partition("=")
        if separator and key not in own:
            raise unknown_name("option", key, own)
        if not separator or key in values:
            raise UserError(f"'{argument}' received. Expected <option>=<value>, each option once; see --help.")
        values[key] = _value(key, text, hints[key])
    for name, each in own.items():
        if each.default is each.default_factory is MISSING and not values.get(name):
            raise UserError(f"No {name} was given. Expected {name}=<value>; see --help.")
    return make(**values)


def _value(key: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices and text not in choices:
        raise unknown_name(key, text, choices)
    if choices or {*kinds} <= {str, NoneType} or text == "*":
        return text
    value = read_value(key, text)
    if float in kinds and isinstance(value, str):
        with suppress(ValueError):
            value = float(value)  # YAML reads 1e-3 as a string
    lowest = next((LOWEST[kind] for kind in kinds if kind in LOWEST), None)
    given = value if isinstance(value, list) else [] if value is None else [value]
    if not fits(value, hint) or (lowest is not None and not all(lowest <= each < math.inf for each in given)):
        limit = "" if lowest is None else f", at least {lowest}"
        raise UserError(f"Invalid {key}: {value!r}. Expected {describe(hint)}{limit}; see --help.")
    return value


def read_value(key: str, text: str) -> Any:
    """Parse a text as YAML."""
    import yaml

    try:
        return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:  # a date such as 2024-13-45 raises a ValueError
        raise UserError(f"'{key}={text}' is not valid YAML. Expected {key}=<value>; see --help.") from error


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds such as "0,1,2"."""
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    if not all(part.isdecimal() for part in parts) or len({*map(int, parts)}) != len(parts):
        raise UserError(f"seeds={text} received. Expected different whole numbers, such as seeds=0,1,2.")
    return tuple(map(int, parts))


def matching(what: str, patterns: str, names: Iterable[str]) -> list[str]:
    """Return the names that match patterns such as "bnn,lenet*", in the order of `names`."""
    wanted, names = [pattern.strip() for pattern in patterns.split(",")], list(names)
    for pattern in wanted:
        if not fnmatch.filter(names, pattern):
            raise unknown_name(what, pattern, names)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]


def one_job(arguments: Sequence[str]) -> Job:
    """Return the job that train.py would run for these arguments."""
    from hookline.trainer.config.command import parse_command  # Hydra: not needed for --help
    from hookline.trainer.config.preflight import preflight

    command = parse_command(arguments)
    if command.sweep or command.display or command.explain:
        raise UserError(f"'{' '.join(arguments)}' received. Expected the values of one run, such as recipe=bnn.")
    (job,) = preflight(command)
    return job


@contextmanager
def built(job: Job) -> Iterator[Run]:
    """Yield a job's run, built and traced, showing warnings as plain lines; nothing is trained or written."""
    from hookline.trainer.deferred import plain_warnings, quiet_start

    with quiet_start():
        from hookline.trainer.run.session import prepare
    with plain_warnings():
        yield prepare(job.config, job.recipe)


def check_output(key: str, text: str, endings: Sequence[str], *, overwrite: bool | None) -> None:
    """Raise UserError if a file cannot or must not be written; `overwrite` is None in scripts without that option."""
    path = user_path(text, key)
    if not path.name.endswith(tuple(endings)):
        raise UserError(f"{key}={text} received. Expected a file that ends with {' or '.join(endings)}.")
    if path.is_dir() or (path.exists() and not overwrite):
        other = "another file, or overwrite=true" if overwrite is False and path.is_file() else "another file"
        raise UserError(f"{key}={text} exists already. Expected {other}.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{key}={text}: {path.absolute().parent} is not a directory. Expected an existing one.")


def write_file(path: Path, text: str) -> None:
    """Write a file atomically, under a temporary name first."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Expected a writable location.") from error


def new_figure(width: float, height: float) -> Any:
    """Return a Matplotlib figure of a size in inches, to be saved to a file."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; cells are single-line texts."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("|".join(["", *(f" {cell} " if cell else " " for cell in line), ""]) for line in lines)


FORMULA = ("=", "+", "-", "@")
"""Prefixes of texts that a spreadsheet would evaluate as formulas."""


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        float(value)
        return value
    shown = printable(value)
    return f"'{shown}" if len(shown) > 1 and shown.startswith(FORMULA) else shown
