"""Documented commands, run one after another in a place of their own; what fails is told with where it stands."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import re
import runpy
import shlex
import sys
import tomllib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

import train
from tests.support.documentation import Block, Command, DocumentationError, Part, parts
from tests.support.documented import check, reason_not_to_run, same, shortened, single_run, write_config
from tests.support.workplace import Workplace, copy_project, make_files, program, run_shell
from trainer.config.command import Command as CommandLine
from trainer.config.preflight import Job, preflight_each
from trainer.errors import UserError

LAST_LINES = 12
SECONDS = 900.0
TRACEBACK = "Traceback (most recent call last)"
PROCESSES = ("launch", "ablate", "kill_runs", "benchmark", "submit")
"""Scripts that start processes of their own: they are run where all is."""
EPOCHS = {"bnn": 7, "frozen_mask": 4}
"""Of the run of a recipe that stands for the reader's; of other recipes, two do."""
Items = Sequence[Block | Command]
Runner = Callable[[Command, Part], tuple[int, str]]


def check_page(items: Items, directory: Path) -> list[str]:
    """Return what is wrong with the commands and blocks of a page, as far as that shows without running them.

    Args:
        items: of the page.
        directory: empty; the current one, and on Python's path.
    """
    make_files(directory)
    place = Workplace(directory, lambda recipe, path: write_config(path, _job(recipe)))
    failures: list[str] = []
    jobs: list[tuple[Command, list[str]]] = []
    made: set[str] = set()
    for item in items:
        with _told(item, failures), contextlib.redirect_stdout(io.StringIO()):
            if isinstance(item, Block):
                read_block(item, directory)
                continue
            for part in parts(item, place.fill(item)):
                if (overrides := single_run(part)) is None:
                    check(part, made)
                else:
                    jobs.append((item, overrides))
                    made |= {each.partition("=")[2] for each in overrides if each.startswith("run_dir=")}
    return [*failures, *_wrong_jobs(jobs)]


def _wrong_jobs(jobs: Sequence[tuple[Command, list[str]]]) -> list[str]:
    """Return what is wrong with single runs: all are composed together, and one by one only where one is wrong."""
    failures: list[str] = []
    try:
        preflight_each(CommandLine(()), [overrides for _, overrides in jobs])
    except UserError:
        for item, overrides in jobs:
            with _told(item, failures):
                preflight_each(CommandLine(()), [overrides])
    return failures


def _job(recipe: str) -> Job:
    data = ["data.path=photos"] if recipe == "clothing_retrieval" else []
    (job,) = preflight_each(CommandLine(()), [[f"recipe={recipe}", *data]])
    return job


def read_block(block: Block, directory: Path) -> None:
    """Read a block by its language, and save it where it has the name of a file.

    Args:
        block: of a page.
        directory: to save it to.
    """
    text = "\n".join(block.lines) + "\n"
    if block.language == "python":
        ast.parse(text, filename=block.place)
    else:
        {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}[block.language](text)
    if block.file_name is not None:
        path = directory / block.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run_here(items: Items, directory: Path) -> tuple[int, list[str]]:
    """Run the commands and blocks of a page in this process; return how many ran, and what failed.

    Sweeps and what else starts processes is left to `run_as_printed`.

    Args:
        items: of the page.
        directory: empty; the current one, and on Python's path.
    """
    make_files(directory)
    place = Workplace(directory, _make_run)
    return _run(items, place, _in_this_process, lambda block: _run_block_here(block, directory))


def run_as_printed(items: Items, directory: Path) -> tuple[int, list[str]]:
    """Run the commands and blocks of a page as processes, in a copy of the project; return how many, and what failed.

    Args:
        items: of the page.
        directory: to make.
    """
    copy_project(directory)
    make_files(directory)
    bin_directory = directory / ".venv" / "bin"
    program(bin_directory / "python", f'exec {shlex.quote(sys.executable)} "$@"')
    program(bin_directory / "tensorboard", f'exec {shlex.quote(sys.executable)} -m tensorboard.main "$@"')
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TF_NUM", "PYTHONPATH"))
    }
    environment = {**kept, "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "2"}

    def shell(text: str) -> tuple[int, str]:
        return run_shell(text, directory, environment, SECONDS)

    def make_run(recipe: str, path: Path) -> None:
        code, output = shell(shlex.join(["python", "train.py", *run_arguments(recipe, path)]))
        if code:
            raise DocumentationError(f"the run that stands for the reader's: exit code {code}\n{output}")

    def run(command: Command, part: Part) -> tuple[int, str]:
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in part.environment)
        target = "" if part.target is None else f" > {shlex.quote(part.target)}"
        return shell(f"{variables}{shlex.join(part.words)}{target}")

    def run_block(block: Block) -> tuple[int, str]:
        read_block(block, directory)
        name = block.file_name or "block.py"
        if block.file_name is None:
            (directory / name).write_text("\n".join(block.lines) + "\n")
        return shell(f"python {shlex.quote(name)}") if block.language == "python" else (0, "")

    return _run(items, Workplace(directory, make_run), run, run_block)


def run_arguments(recipe: str, path: Path) -> list[str]:
    """Return the arguments of the run that stands for one of the reader's.

    Args:
        recipe: its name.
        path: of the run.
    """
    saving = ["hooks.checkpoint.every_seconds=0", "hooks.checkpoint.keep_last=9"]  # as a run that takes its time
    return [
        f"recipe={recipe}",
        f"trainer.epochs={EPOCHS.get(recipe, 2)}",
        "trainer.compile=off",
        f"run_dir={path}",
        *saving,
    ]


def _make_run(recipe: str, path: Path) -> None:
    code, output = _captured(lambda: train.main(run_arguments(recipe, path)))
    if code:
        raise DocumentationError(f"the run that stands for the reader's: exit code {code}\n{output}")


def _run(
    items: Items, place: Workplace, run: Runner, run_block: Callable[[Block], tuple[int, str]]
) -> tuple[int, list[str]]:
    failures: list[str] = []
    count = 0
    for item in items:
        with _told(item, failures):
            if isinstance(item, Block):
                code, output = run_block(item)
                count += 1
                _judge(item, f"{item.language} block", code, output, ())
                continue
            for part in parts(item, place.fill(item)):
                if reason_not_to_run(part) is None:
                    short = shortened(part)
                    code, output = run(item, short)
                    count += code >= 0
                    _judge(item, shlex.join(short.words), code, output, item.output)
    return count, failures


def _judge(item: Block | Command, ran: str, code: int, output: str, expected: Sequence[str]) -> None:
    """Refuse an exit code other than 0, a traceback, and output that is not as it is shown."""
    if code > 0 or TRACEBACK in output:
        last = "\n".join(f"    {line}" for line in output.strip().splitlines()[-LAST_LINES:])
        raise DocumentationError(f"ran: {ran}\n  exit code {code}; it ends with\n{last}")
    if missing := not_shown(output, expected):
        raise DocumentationError(f"ran: {ran}\n  its output lacks the line that is shown: {missing}")


def not_shown(output: str, expected: Sequence[str]) -> str | None:
    """Return the first line of an output as it is documented that the output lacks; "..." stands for anything.

    Args:
        output: of a command.
        expected: lines in the order in which they are shown.
    """
    lines = iter([" ".join(line.split()) for line in output.splitlines()])
    for shown in expected:
        pattern = re.escape(" ".join(shown.split())).replace(re.escape("..."), ".*")
        if pattern and not any(re.fullmatch(pattern, line) for line in lines):
            return shown
    return None


@contextlib.contextmanager
def _told(item: Block | Command, failures: list[str]):
    """Note what goes wrong with a part of a page, and where it stands."""
    shown = item.text if isinstance(item, Command) else f"a block of {item.language}"
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the page is told
        told = str(error) if isinstance(error, DocumentationError) else f"{type(error).__name__}: {error}"
        failures.append(f"{item.place}: {shown}\n  {told.removeprefix(f'{item.place}: {shown}').strip()}")


def _in_this_process(command: Command, part: Part) -> tuple[int, str]:
    """Run a program of ours in this process; -1 where it is left to the processes."""
    words = same(part)
    script = Path(words[1])
    if words[0] != "python" or script.stem in PROCESSES or "-m" in words:
        return -1, ""
    module = importlib.import_module(".".join(script.with_suffix("").parts))
    code, output = _captured(lambda: module.main(list(words[2:])))
    if part.target is not None:
        Path(part.target).write_text(output)
    return code, output


def _run_block_here(block: Block, directory: Path) -> tuple[int, str]:
    read_block(block, directory)
    if block.language != "python":
        return 0, ""
    path = directory / (block.file_name or "block.py")
    path.write_text("\n".join(block.lines) + "\n")
    return _captured(lambda: runpy.run_path(str(path)) and 0)


def _captured(call: Callable[[], int]) -> tuple[int, str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = call()
        except Exception:  # noqa: BLE001 - the page is told
            traceback.print_exc()
            code = 1
    return code, shown.getvalue()
