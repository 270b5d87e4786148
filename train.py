"""The door: compose the config, check it, build, train. See `python train.py --help`."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__" and Path(__file__).with_name("__init__.py").exists() and not sys.flags.safe_path:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # installed, it stands in the package, not beside it

from hookline.trainer.deferred import open_streams
from hookline.trainer.errors import NonFiniteError, UnsavedError, UserError, WorkersError, as_typed, one_line, printable
from hookline.trainer.replicas.cluster import cluster_source

if TYPE_CHECKING:
    from hookline.trainer.config.preflight import Job
    from hookline.trainer.run.session import Outcome

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
SIGNALLED = 128
"""An exit code above it says which signal ended the process, as shells have it: 143 is SIGTERM."""
QUIET = "quiet"
"""The mode of the hook progress in which a run prints its result only."""
NOTE = re.compile(r"in hook (?P<hook>[^,]+), stage ")
"""How `hookline.trainer.step.stage.in_stage` says where an error came from."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code: 0 done, 1 failed, 2 a mistake of the user, 130 or 143 interrupted.

    Args:
        arguments: without the program's name; None for the process's own.
    """
    open_streams()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if (text := asked_help(arguments)) is not None:
            say(text)
            return DONE
        from hookline.trainer.config.command import parse_command  # Hydra: not needed for --help

        if (command := parse_command(arguments)).sweep:
            from hookline.scripts.sweep.command import run_command

            return run_command(command)  # each job in a process of its own
        jobs = check(arguments)
    except UserError as error:
        return report(error, WRONG, debug=asks_for_traceback(arguments))
    except KeyboardInterrupt as error:
        return report(error, INTERRUPTED)
    return run_job(jobs[0]) if jobs else DONE


def asked_help(arguments: Sequence[str]) -> str | None:
    """Return the help that a command line asks for: all, or about the one name that follows; None for none."""
    flag = next((each for each in arguments if each in ("--help", "-h")), None)
    if flag is None:
        return None
    from hookline.scripts.help import entry_text, help_text

    names = arguments[arguments.index(flag) + 1 :]
    return entry_text(names[0]) if names and not names[0].startswith("-") else help_text()


def check(arguments: Sequence[str]) -> list[Job]:
    """Return the validated jobs of a command line, one without -m. Where it shows a config, show it and return none."""
    from hookline.trainer.config.command import parse_command, show
    from hookline.trainer.config.preflight import check_display, check_early, preflight

    command = parse_command(arguments)
    if command.explain:
        from hookline.scripts.explain import explain

        say(explain(command))
        return []
    if command.display:
        if {"--cfg", "--info"} & {*command.display}:  # its overrides must be right
            check_display(command)
        shown = io.StringIO()  # printed at once, for a reader that leaves makes Hydra show a traceback
        try:
            with redirect_stdout(shown):
                show(command)
        finally:
            say(shown.getvalue(), end="")
        return []
    jobs = preflight(command)
    for job in jobs:
        check_early(job)
    return jobs


def say(text: str, end: str = "\n") -> None:
    """Print text at once; when its reader has left, carry on without it."""
    try:
        print(printable(as_typed(text), keep="\n\t"), end=end, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def execute_job(job: Job, began: float | None = None) -> Outcome:
    """Train, and return what the run leaves behind; `began` is when it was asked for, None for the process's start."""
    from hookline.trainer.deferred import plain_warnings, quiet_start

    several = cluster_source(job.config["trainer"]) is not None
    with quiet_start(errors=not several):
        from hookline.scripts.planning.trace import plan_text
        from hookline.trainer.run.session import execute  # TensorFlow: seconds to import
        from hookline.trainer.run.times import process_began
    began = process_began() if began is None else began
    with plain_warnings():
        return execute(job.config, job.recipe, job.overrides, plan=plan_text, began=began)


def run_job(job: Job) -> int:
    """Train, and return the exit code."""
    if sys.stdout.isatty() and (job.config["hooks"].get("progress") or {"mode": QUIET}).get("mode") != QUIET:
        say(f"{job.recipe}: loading TensorFlow and data, tracing the step ...")
    try:
        execute_job(job)
        return DONE
    except UserError as error:
        return report(error, WRONG, debug=job.config["debug"])
    except (NonFiniteError, UnsavedError, WorkersError) as error:
        return report(error, FAILED, debug=job.config["debug"])
    except KeyboardInterrupt as error:
        return report(error, interrupted_code(error))
    except Exception:  # noqa: BLE001 - a fault of the program: its traceback is what is needed
        traceback.print_exc()
        return FAILED


def interrupted_code(error: KeyboardInterrupt) -> int:
    """Return the exit code for an interruption: 128 and the signal's number; 0 where the run's own time was over."""
    number: int | None = getattr(error, "signal_number", INTERRUPTED - SIGNALLED)
    return DONE if number is None else SIGNALLED + number


def report(error: BaseException, code: int, *, debug: bool = False) -> int:
    """Print an error as one line, or with its traceback where that is wanted, and return the exit code."""
    with suppress(OSError):  # of a reader that has left
        if debug or os.environ.get("HYDRA_FULL_ERROR", "0") != "0":
            traceback.print_exception(error)
        elif isinstance(error, KeyboardInterrupt):
            print(as_typed(str(error)) or "Interrupted.", file=sys.stderr)
        else:
            print(f"Error: {as_typed(one_line(str(error)))}{unnamed_hook(error)}", file=sys.stderr)
    return code


def unnamed_hook(error: BaseException) -> str:
    """Return the hook that a mistake was found by, in brackets, where its message does not name it."""
    if isinstance(error, UserError):
        for note in getattr(error, "__notes__", []):
            found = NOTE.match(note)
            if found and not re.search(rf"\b{re.escape(found['hook'])}\b", str(error)):
                key = found["hook"].partition("@")[0]
                return f" (hook {found['hook']}: its options are hooks.{key}.<option>)"
    return ""


def asks_for_traceback(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for the traceback of a mistake."""
    return "debug=true" in (argument.lower().lstrip("+") for argument in arguments)


if __name__ == "__main__":
    sys.exit(main())
