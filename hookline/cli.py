"""The console command `hookline`: a subcommand for each script. See `hookline --help`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hookline.trainer.errors import UserError, did_you_mean, printable
from hookline.trainer.quiet import open_streams

DONE, WRONG, INTERRUPTED = 0, 2, 130
SCRIPTS = "hookline.scripts"


@dataclass(frozen=True)
class Subcommand:
    """Describe a subcommand.

    Attributes:
        module: whose `main` takes its arguments and returns the exit code.
        purpose: in one line.
    """

    module: str
    purpose: str


SUBCOMMANDS = {
    "train": Subcommand("hookline.train", "Train a recipe; with -m, one run for each combination of values"),
    "resume": Subcommand("hookline.train", "Resume a run where it stopped, bit for bit"),
    "plan": Subcommand(f"{SCRIPTS}.plan", "Print what a run will do, without training"),
    "check-gradients": Subcommand(
        f"{SCRIPTS}.check_gradients", "Compare the gradients that a run overrides with true ones"
    ),
    "evaluate": Subcommand(f"{SCRIPTS}.evaluate", "Say how good a run or an export is"),
    "predict": Subcommand(f"{SCRIPTS}.predict", "Predict with an exported network or a run"),
    "export": Subcommand(f"{SCRIPTS}.export", "Write the finished model of a run for other programs"),
    "compare": Subcommand(f"{SCRIPTS}.compare", "Compare finished runs"),
    "verify": Subcommand(
        f"{SCRIPTS}.verify", "Say whether a run directory is sound; replay=<steps> trains steps of it again"
    ),
    "ablate": Subcommand(f"{SCRIPTS}.ablate", "Run a recipe without each of its technique hooks in turn"),
    "sensitivity": Subcommand(f"{SCRIPTS}.sensitivity", "Measure how much each layer of a finished run can be pruned"),
    "launch": Subcommand(f"{SCRIPTS}.launch", "Start the workers of a run on this machine"),
    "submit": Subcommand(f"{SCRIPTS}.submit", "Give the jobs of a sweep to SLURM"),
}
USAGE = "Usage: hookline <command> [key=value ...]"
EXAMPLES = (
    "hookline train recipe=bnn run_dir=runs/first",
    "hookline resume runs/first",
    "hookline export run=runs/first format=packed",
)
FLAGS = """\
hookline <command> --help   what a command takes; hookline train --help lists every recipe, hook, model and data set
hookline --version          the version that is installed
hookline --completion bash  a script that completes commands and names: eval "$(hookline --completion bash)"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code; 2 for one that does not exist.

    Args:
        arguments: without the program's name; None for the process's own.
    """
    open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except UserError as error:
        _print(f"Error: {error}", sys.stderr)
        return WRONG
    except KeyboardInterrupt:  # while a module is being imported; scripts handle their own
        _print("Interrupted.", sys.stderr)
        return INTERRUPTED


def _run(given: Sequence[str]) -> int:
    name, rest = (given[0], list(given[1:])) if given else ("--help", [])
    if name in ("--help", "-h", "help"):
        if not rest:
            _print(help_text())
            return DONE
        name, rest = rest[0], ["--help", *rest[1:]]
    if name in ("--version", "-V"):
        _print(version_text())
        return DONE
    if name == "--completion":
        from hookline.completion import completion_text

        _print(completion_text(rest, list(SUBCOMMANDS)))
        return DONE
    if name not in SUBCOMMANDS:
        raise _unknown(name)
    if name == "resume":
        rest = resume_arguments(rest)
    return load_main(name)(rest)


def load_main(name: str) -> Callable[[Sequence[str]], int]:
    """Return the function behind a subcommand; this imports its module.

    Args:
        name: a key of `SUBCOMMANDS`.
    """
    module: Any = importlib.import_module(SUBCOMMANDS[name].module)
    return cast(Callable[[Sequence[str]], int], module.main)


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `train` that resume a run.

    Args:
        arguments: the directory of the run, or resume=<it>; then overrides.

    Raises:
        UserError: the first one is no directory, but an override.
    """
    if "--help" in arguments or "-h" in arguments:
        return ["--help"]
    if not arguments or arguments[0].startswith("-"):
        raise UserError("No run was given. Expected its directory: hookline resume runs/first.")
    first, *rest = arguments
    if first.startswith("resume="):
        return [first, *rest]
    if "=" in first and not Path(first).is_dir():
        raise UserError(f"'{first}' received. Expected the directory of the run first: hookline resume <run> {first}.")
    from hookline.scripts.sweep.open import quoted

    return [f"resume={quoted(Path(first))}", *rest]


def help_text() -> str:
    """Return the text of `hookline --help`."""
    width = max(map(len, SUBCOMMANDS)) + 2
    commands = [f"  {name:<{width}}{each.purpose}" for name, each in SUBCOMMANDS.items()]
    return "\n".join([USAGE, "", *(f"  {each}" for each in EXAMPLES), "", "Commands", *commands, "", FLAGS.rstrip()])


def version_text() -> str:
    """Return the name and the version of what is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"hookline {version('hookline')}"
    except PackageNotFoundError:
        return "hookline, not installed: a copy of its source on the path"


def _unknown(name: str) -> UserError:
    if "=" in name:
        return UserError(f"'{name}' received. Expected a command first: hookline train {name}.")
    kind = "option" if name.startswith("-") else "command"
    return UserError(
        f"Unknown {kind} '{name}'.{did_you_mean(name.replace('_', '-'), SUBCOMMANDS)} Expected one of: "
        f"{', '.join(SUBCOMMANDS)}."
    )


def _print(text: str, stream: Any = None) -> None:
    """Print a text at once; when its reader has left, carry on without it."""
    stream = stream or sys.stdout
    try:
        print(printable(text, keep="\n\t"), file=stream, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
