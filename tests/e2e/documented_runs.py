"""Documented commands, run one after another in a place of their own; what fails is told with where it stands."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import runpy
import shlex
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path

from hookline import train
from hookline.trainer.config.command import Command as CommandLine
from hookline.trainer.config.preflight import preflight_each
from tests.e2e.documented import check, is_run, shortened, single_run, write_config
from tests.support.documentation import Block, Command, DocumentationError, programs
from tests.support.workplace import Workplace, make_files

PROCESSES = ("launch", "ablate", "kill_runs", "benchmark", "submit")
"""Scripts that start processes of their own; their tests run them."""
EPOCHS = {"bnn": 7, "frozen_mask": 4}
"""Of the run of a recipe that stands for the reader's; of other recipes, two do."""
READERS = {"python": ast.parse, "toml": tomllib.loads}
Items = Sequence[Block | Command]
Ran = tuple[int, str]


def check_page(items, directory):
    """Return what is wrong with a page, as far as that shows without running it; the directory is the current one."""
    make_files(directory)
    place = Workplace(directory, lambda recipe, path: write_config(path, _job(recipe)))
    failures = []
    jobs = []
    made = set()
    for item in items:
        with _told(item, failures), contextlib.redirect_stdout(io.StringIO()):
            if isinstance(item, Block):
                read_block(item, directory)
                continue
            for words in programs(place.fill(item)):
                if (overrides := single_run(words)) is None:
                    check(words, made)
                else:
                    jobs.append((item, overrides))
                    made |= {each.partition("=")[2] for each in overrides if each.startswith("run_dir=")}
    with contextlib.suppress(Exception):  # all together, which is faster; one by one only where one is wrong
        preflight_each(CommandLine(()), [overrides for _, overrides in jobs])
        return failures
    for item, overrides in jobs:
        with _told(item, failures):
            preflight_each(CommandLine(()), [overrides])
    return failures


def _job(recipe):
    data = ["data.path=photos"] if recipe == "clothing_retrieval" else []
    (job,) = preflight_each(CommandLine(()), [[f"recipe={recipe}", *data]])
    return job


def read_block(block, directory):
    text = "\n".join(block.lines) + "\n"
    READERS[block.language](text)
    path = directory / (block.file_name or "block.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_here(items, directory):
    """Run the commands and blocks of a page in this process, but what starts others; return how many, what failed."""
    make_files(directory)

    def make_run(recipe, path):
        _judge("the reader's run", _captured(lambda: train.main(run_arguments(recipe, path))))

    def run(words):
        script = Path(words[1])
        if words[0] != "python" or script.stem in PROCESSES or "-m" in words:
            return -1, ""
        module = importlib.import_module(".".join(script.with_suffix("").parts))
        return _captured(lambda: module.main(list(words[2:])))

    def run_block(block):
        path = read_block(block, directory)
        return _captured(lambda: runpy.run_path(str(path)) and 0) if block.language == "python" else (0, "")

    return _run(items, Workplace(directory, make_run), run, run_block)


def run_arguments(recipe, path):
    """Return the arguments of the run that stands for one of the reader's."""
    saving = ["hooks.checkpoint.every_seconds=0", "hooks.checkpoint.keep_last=9"]  # as a run that takes its time
    limits = [f"trainer.epochs={EPOCHS.get(recipe, 2)}", "trainer.compile=off"]
    return [f"recipe={recipe}", *limits, f"run_dir={path}", *saving]


def _run(items, place, run, run_block):
    failures = []
    count = 0
    for item in items:
        with _told(item, failures):
            if isinstance(item, Block):
                count += 1
                _judge("a block", run_block(item))
                continue
            for words in filter(is_run, programs(place.fill(item))):
                short = shortened(words)
                ran = run(short)
                count += ran[0] >= 0
                _judge(shlex.join(short), ran)
    return count, failures


def _judge(name, ran):
    code, output = ran
    if code > 0 or "Traceback (most recent call last)" in output:
        last = "\n".join(f"    {line}" for line in output.strip().splitlines()[-12:])
        raise DocumentationError(f"ran: {name}\n  exit code {code}; it ends with\n{last}")


@contextlib.contextmanager
def _told(item, failures):
    """Note what goes wrong with a part of a page, and where it stands."""
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the page is told
        shown = item.text if isinstance(item, Command) else f"a block of {item.language}"
        failures.append(f"{item.place}: {shown}\n  {type(error).__name__}: {error}")


def _captured(call):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = call()
        except Exception:  # noqa: BLE001 - the page is told
            traceback.print_exc()
            code = 1
    return code, shown.getvalue()
