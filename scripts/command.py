"""What the commands of this folder share: `key=value` arguments, and one line for a mistake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from hookline.train import DONE, INTERRUPTED, WRONG, report
from hookline.trainer.errors import UserError, as_typed, unknown_name
from hookline.trainer.quiet import open_streams

Options = TypeVar("Options")


def make_main(
    usage: str,
    parse: Callable[[Sequence[str]], Options],
    command: Callable[[Options], int | None],
    *,
    debug: Callable[[Sequence[str]], bool] = lambda arguments: False,
) -> Callable[..., int]:
    """Return the `main` of a script: it takes the arguments as `run_command` does, and returns the exit code."""

    def main(arguments: Sequence[str] | None = None) -> int:
        return run_command(arguments, usage, lambda given: command(parse(given)), debug=debug)

    return main


def run_command(
    arguments: Sequence[str] | None,
    usage: str,
    command: Callable[[Sequence[str]], int | None],
    *,
    debug: Callable[[Sequence[str]], bool] = lambda arguments: False,
) -> int:
    """Run a command and return its exit code: 0 done, 2 a mistake of the user, 130 interrupted, or its own."""
    open_streams()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments:
        print(as_typed(usage))
        return DONE
    try:
        code = command(arguments)
    except UserError as error:
        return report(error, WRONG, debug=debug(arguments))
    except KeyboardInterrupt as error:
        return report(error, INTERRUPTED)
    return DONE if code is None else code


def parse_options(arguments: Sequence[str], make: Callable[..., Options], texts: Collection[str]) -> Options:
    """Return the options of a command line."""
    values: dict[str, Any] = {}
    known = list(vars(make()))
    for argument in arguments:
        key, separator, text = argument.partition("=")
        if key not in known:
            raise unknown_name("option", key, known)
        if not separator or key in values:
            raise UserError(f"'{argument}' received. Expected {key}=<value>, once.")
        try:
            values[key] = text if key in texts or text == "*" else _from_yaml(text)
        except ValueError as error:
            raise UserError(f"'{argument}' is no value. Expected such as {key}=<value>; see --help.") from error
    return make(**values)


def _from_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
