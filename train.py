"""The command line: compose the config, check it, build, train. See `python train.py --help`."""

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
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # installed, this file is in the package, not beside it

from hookline.trainer.deferred import open_streams
from hookline.trainer.errors import NonFiniteError, UnsavedError, UserError, WorkersError, as_typed, one_line, printable
from hookline.trainer.replicas.cluster import cluster_source

if TYPE_CHECKING:
    from hookline.trainer.config.preflight import Job
    from hookline.trainer.run.session import Outcome

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
SIGNALLED = 128
"""Exit codes above it give the signal that ended the process, as in shells: 143 is SIGTERM."""
QUIET = "quiet"
"""The mode of the hook `progress` in which a run prints only its result."""
NOTE = re.compile(r"in hook (?P<hook>[^,]+), stage ")
"""Match the note in which `hookline.trainer.step.stage.in_stage` names the origin of an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code: 0 done, 1 failed, 2 user error, 130 or 143 interrupted.

    Args:
        arguments: command line arguments without the program name; None for those of the process.
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

            return run_command(command)  # each job in its own process
        jobs = check(arguments)
    except UserError as error:
        return report(error, WRONG, debug=asks_for_traceback(arguments))
    except KeyboardInterrupt as error:
        return report(error, INTERRUPTED)
    return run_job(jobs[0]) if jobs else DONE


def asked_help(arguments: Sequence[str]) -> str | None:
    """Return the help that a command line requests, in full or for the name after the flag; None without a flag."""
    flag = next((each for each in arguments if each in ("--help", "-h")), None)
    if flag is None:
        return None
    from hookline.scripts.help import entry_text, help_text

    names = arguments[arguments.index(flag) + 1 :]
    return entry_text(names[0]) if names and not names[0].startswith("-") else help_text()


def check(arguments: Sequence[str]) -> list[Job]:
    """Return a command line's validated jobs, one without -m; if it displays a config, print that and return []."""
    from hookline.trainer.config.command import parse_command, show
    from hookline.trainer.config.preflight import check_display, check_early, preflight

    command = parse_command(arguments)
    if command.explain:
        from hookline.scripts.explain import explain

        say(explain(command))
        return []
    if command.display:
        if {"--cfg", "--info"} & {*command.display}:  # the overrides must be valid
            check_display(command)
        shown = io.StringIO()  # printed at once: Hydra shows a traceback if the reader closes the pipe
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
    """Print and flush text; if the reader has closed the pipe, discard it and all later output."""
    try:
        print(printable(as_typed(text), keep="\n\t"), end=end, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def execute_job(job: Job, began: float | None = None) -> Outcome:
    """Train and return the outcome; `began` is the `time.monotonic` of the request, None for the process start."""
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
    """Train and return the exit code."""
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
    """Return the exit code of an interruption: 128 plus the signal number; 0 if the run reached its own time limit."""
    number: int | None = getattr(error, "signal_number", INTERRUPTED - SIGNALLED)
    return DONE if number is None else SIGNALLED + number


def report(error: BaseException, code: int, *, debug: bool = False) -> int:
    """Print an error as one line, or with its traceback if requested, and return the exit code."""
    with suppress(OSError):  # the reader may have closed the pipe
        if debug or os.environ.get("HYDRA_FULL_ERROR", "0") != "0":
            traceback.print_exception(error)
        elif isinstance(error, KeyboardInterrupt):
            print(as_typed(str(error)) or "Interrupted.", file=sys.stderr)
        else:
            print(f"Error: {as_typed(one_line(str(error)))}{unnamed_hook(error)}", file=sys.stderr)
    return code


def unnamed_hook(error: BaseException) -> str:
    """Return the hook that raised a user error, in brackets, if the message does not name it."""
    if isinstance(error, UserError):
        for note in getattr(error, "__notes__", []):
            found = NOTE.match(note)
            if found and not re.search(rf"\b{re.escape(found['hook'])}\b", str(error)):
                key = found["hook"].partition("@")[0]
                return f" (hook {found['hook']}: its options are hooks.{key}.<option>)"
    return ""


def asks_for_traceback(arguments: Sequence[str]) -> bool:
    """Return whether a command line requests the traceback of user errors."""
    return "debug=true" in (argument.lower().lstrip("+") for argument in arguments)


if __name__ == "__main__":
    sys.exit(main())
