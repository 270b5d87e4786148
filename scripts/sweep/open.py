"""Open a sweep: a new one, or one that resumes."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from hookline.scripts.sweep.record import FILE_NAME, Sweep, SweepJob, read_sweep
from hookline.scripts.sweep.record import LOCK as RECORD_LOCK
from hookline.trainer.config.command import Command, expand_sweep, open_composer, parse_overrides
from hookline.trainer.config.overrides import quoted
from hookline.trainer.config.parts import KEY as PLUGINS
from hookline.trainer.config.preflight import Job, check_early, preflight, preflight_each
from hookline.trainer.config.stored import FILE_NAME as RUN_CONFIG
from hookline.trainer.errors import UserError, import_optional, user_path
from hookline.trainer.run.directory import LOCK

CAN_GO_ON = (None, "interrupted", "paused", "unsaved")
"""Status in summary.json of a run that can be resumed; None if it was killed before it wrote one."""
MAX_TRIALS = 1000
CONFIG_DIR = "--config-dir"
JOURNAL = "study.journal"
"""The study of a search without --storage, in the directory of its sweep."""


def job_arguments(sweep: Sweep, job: SweepJob, threads: int | None) -> list[str]:
    """Return the arguments of a job's process; an interrupted run is resumed, a failed one starts over."""
    if resumed_path(job.overrides) is not None:
        return [*job.overrides, *sweep.flags]
    run = sweep.directory / job.run
    if (run / RUN_CONFIG).is_file() and sweep.summary(job).get("status") in CAN_GO_ON:
        plugins = [each for each in job.overrides if each.startswith("plugins=")]
        return [f"resume={quoted(run)}", *plugins, *sweep.flags]
    if run.exists():
        first = re.sub(r"_try\d+$", "", job.run)
        names = itertools.chain([first], (f"{first}_try{count}" for count in itertools.count(2)))
        job.run = next(name for name in names if not (sweep.directory / name).exists())
    own = [] if threads is None else [f"trainer.threads={threads}"]
    return [*job.overrides, f"run_dir={quoted(sweep.directory / job.run)}", *own, *sweep.flags]


def added_threads(sweep: Sweep, checked: Job) -> int | None:
    """Return the value of trainer.threads for a job; None if its config or the user sets it."""
    said = checked.config["trainer"]["threads"] is not None
    typed = any(each.startswith("trainer.threads=") for each in checked.overrides)  # null means all cores
    return None if said or typed else sweep.threads


def resumed_path(overrides: Sequence[str]) -> str | None:
    """Return the path given by resume= in the overrides of a job; None for a new run."""
    found = next((each.partition("=")[2] for each in overrides if each.startswith("resume=")), "null")
    return None if found == "null" else found.strip("'\"")


def run_name(number: int, own: Sequence[str]) -> str:
    """Return the name of a job's run directory, which is also its name in TensorBoard."""
    parts = [f"{number:02}"]
    for override in own:
        key, _, value = override.partition("=")
        text = value if key == "recipe" else f"{key.rpartition('.')[2]}-{value}"
        parts.append(re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-"))
    return "_".join(parts)[:60].rstrip("-_.")


DIRECTORY = Path("runs") / "sweeps"


@dataclass
class OpenSweep:
    """Hold a sweep with its jobs checked; nothing is written yet."""

    sweep: Sweep  # as it will be recorded
    checked: dict[int, Job]  # the jobs by number; for a search, one example under 0
    is_new: bool = False  # whether nothing was recorded yet
    fixed: list[str] = field(default_factory=list)  # of a search: the overrides that every job has
    space: dict[str, Any] = field(default_factory=dict)  # of a search: Optuna's distribution of each key that it sets


def open_sweep(command: Command) -> OpenSweep:
    """Return the sweep of a command line, every job composed and checked."""
    directory = _directory(command)
    recorded = read_sweep(directory) if (directory / FILE_NAME).exists() else None
    check_place(directory, f"--sweep {directory}")
    if recorded is None and not command.overrides and command.directory is not None:
        raise UserError(f"--sweep {directory} is not a sweep yet, and no recipe was given. Expected recipe=<name>.")
    if recorded is not None and command.flags != recorded.flags and (command.flags or command.overrides):
        raise UserError(
            f"{directory} was begun with other flags: {' '.join(recorded.flags) or 'none'}. Expected the same."
        )
    searches = command.trials is not None or (recorded is not None and recorded.trials is not None)
    if command.storage is not None and not searches:
        raise UserError("--storage received, which is for the study of a search. Expected --trials <number> with it.")
    for override in command.overrides:
        if override.partition("=")[0].lstrip("+") == "run_dir":
            raise UserError(
                f"'{override}' received with -m. Expected --sweep <directory>: each job has a run directory in it."
            )
    if recorded is not None and not command.overrides:
        _check_record(command, recorded)
        command = replace(command, overrides=tuple(recorded.space))
    return _search(command, directory, recorded) if searches else _grid(command, directory, recorded)


def check_place(directory: Path, given: str) -> None:
    """Refuse a directory that holds files but is not a sweep: a sweep would hide the runs in it."""
    left = (LOCK, RECORD_LOCK, JOURNAL, f".{JOURNAL}.lock")  # by a sweep killed before it had a record
    is_new = not directory.is_dir() or all(each.name in left for each in directory.iterdir())
    if not is_new and not (directory / FILE_NAME).exists():
        raise UserError(f"{given} holds files, but no {FILE_NAME}. Expected a new directory, or a sweep.")


def _directory(command: Command) -> Path:
    if command.directory is None:
        first = DIRECTORY / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        names = itertools.chain([first], (first.with_name(f"{first.name}_{count}") for count in itertools.count(1)))
        path = next(each for each in names if not each.exists())
    else:
        path = user_path(command.directory, "--sweep")
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"The directory {path} of the sweep cannot be written. Give another with --sweep <directory>.")
    return path


def untrusted(sweep: Sweep) -> list[str]:
    """Return the arguments that only a full command line may give: code to load, and a config directory."""
    named = [each for job in sweep.jobs for each in job.overrides] + sweep.space
    plugins = [each for each in named if each.partition("=")[0].lstrip("+") == PLUGINS]
    return plugins + [each for each in sweep.flags[::2] if each == CONFIG_DIR]


def _check_record(command: Command, sweep: Sweep) -> None:
    """Refuse a record, which may be untrusted, that could execute code or write elsewhere; typed flags are trusted."""
    if (found := untrusted(sweep)) and (found[0] != CONFIG_DIR or command.flags != sweep.flags):
        raise UserError(
            f"{sweep.directory} records {found[0]}, which --sweep alone does not take from there. Expected the whole "
            "command line that began the sweep, if you trust it."
        )
    for job in sweep.jobs:
        inside = not Path(job.run).is_absolute() and ".." not in Path(job.run).parts
        if not inside and resumed_path(job.overrides) is None:
            raise UserError(f"{sweep.directory} records the run {job.run}, outside of it. Expected runs of its own.")


def _search(command: Command, directory: Path, recorded: Sweep | None) -> OpenSweep:
    import_optional("optuna", extra="search", needed_by="--trials")
    overrides = list(command.overrides)
    if recorded is not None:
        if recorded.trials is None or recorded.space != overrides:
            raise UserError(f"{directory} holds another sweep. Expected -m --sweep {directory} alone to resume it.")
        if (directory / JOURNAL).exists() == (command.storage is not None):
            where = f"in its {JOURNAL}. Expected no" if command.storage else "in a database. Expected its URL:"
            raise UserError(f"The study of {directory} is {where} --storage.")
    sweep = recorded or Sweep(directory, flags=command.flags, space=overrides, study=directory.absolute().name)
    sweep.trials = command.trials or sweep.trials
    if sweep.trials is not None and sweep.trials > MAX_TRIALS:
        raise UserError(f"--trials {sweep.trials} received. Expected at most {MAX_TRIALS}.")
    return replace(open_space(sweep), is_new=recorded is None)


def open_space(sweep: Sweep) -> OpenSweep:
    """Return a search after checking its space."""
    fixed, space = read_space(command_of(sweep), sweep.space)
    ends = [  # every choice, and both ends of every interval, are checked
        [f"{key}={as_text(value, each)}" for value in getattr(each, "choices", None) or (each.low, each.high)]
        for key, each in space.items()
    ]
    rows = [[*fixed, *(own[row % len(own)] for own in ends)] for row in range(max(map(len, ends)))]
    example = preflight_each(command_of(sweep), rows)[0]
    return OpenSweep(sweep, {0: example}, fixed=fixed, space=space)


def command_of(sweep: Sweep) -> Command:
    """Return a command with the flags of a sweep, for composing its jobs."""
    named = dict(zip(sweep.flags[::2], sweep.flags[1::2], strict=True))
    return Command((), config_dir=named.get(CONFIG_DIR), config_name=named.get("--config-name"))


def _grid(command: Command, directory: Path, recorded: Sweep | None) -> OpenSweep:
    if recorded is not None and not command.overrides:
        known = preflight_each(command_of(recorded), [job.overrides for job in recorded.jobs])
        return OpenSweep(recorded, {job.number: each for job, each in zip(recorded.jobs, known, strict=True)})
    found = preflight(command)
    asked = {frozenset(job.overrides): job for job in found}
    sweep = recorded or Sweep(directory, flags=command.flags)
    before = [frozenset(job.overrides) for job in sweep.jobs]
    for other in sweep.jobs:
        if frozenset(other.overrides) not in asked:
            raise UserError(
                f"{directory} holds another sweep, with the job '{' '.join(other.overrides)}' that this command "
                "line lacks. Expected all of its jobs, and optionally more, or another directory."
            )
    new = [job for key, job in asked.items() if key not in before]
    for job in new:
        check_early(job, directories=False)
    lists = [job.overrides for job in found]
    for job in new:
        number, resumed = len(sweep.jobs) + 1, resumed_path(job.overrides)
        run = run_name(number, own_overrides(job.overrides, lists))
        run = run if resumed is None else str(user_path(resumed, "resume").absolute())
        sweep.jobs.append(SweepJob(number, job.overrides, run))
    checked = {job.number: asked[frozenset(job.overrides)] for job in sweep.jobs}
    return OpenSweep(sweep, checked, is_new=recorded is None)


def own_overrides(overrides: Sequence[str], lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the overrides of a job that are not shared by all jobs."""
    shared = set.intersection(*map(set, lists))
    return [each for each in overrides if each not in shared]


LOG = "log"
DIGITS = 4
"""Significant digits of a suggested number: enough to distinguish trials, few enough to read."""


def as_text(value: Any, distribution: Any) -> str:
    """Return a value of a distribution as written on the command line: a choice, a whole number, or a rounded one."""
    if not isinstance(value, float):
        return str(value)
    return repr(min(max(float(f"{value:.{DIGITS}g}"), distribution.low), distribution.high))


def read_space(command: Command, texts: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the overrides that every trial has, and Optuna's distributions of the others, by key."""
    with open_composer(command, overrides=texts) as composer:
        overrides = parse_overrides(texts, composer.loader)
    fixed = [str(each.input_line) for each in overrides if not each.is_sweep_override()]
    space = {each.get_key_element(): _distribution(each) for each in overrides if each.is_sweep_override()}
    if not space:
        raise UserError(
            "--trials received, but no override says what to search. Expected, for example, "
            "'optimizer.learning_rate=tag(log, interval(1e-4, 1e-2))' or model.activation=tanh,relu."
        )
    return fixed, space


def _distribution(override: Override) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # an extra

    value = override.value()
    if not isinstance(value, IntervalSweep):
        if isinstance(value, RangeSweep) and value.step == 1:
            start, stop = value.start or 0, value.stop or 0
            if isinstance(start, int) and isinstance(stop, int) and start < stop:
                return IntDistribution(start, stop - 1)
        return CategoricalDistribution([each.partition("=")[2] for (each,) in expand_sweep([override], sweep=True)])
    low, high = value.start, value.end
    if low is None or high is None or not -math.inf < low < high < math.inf:
        raise UserError(
            f"'{override.input_line}' is not an interval. Expected two finite numbers, the smaller one first."
        )
    log, others = LOG in value.tags, sorted(value.tags - {LOG})
    if others:
        raise UserError(f"'{override.input_line}' has the tag '{others[0]}'. Expected no tag but log.")
    if log and low <= 0:
        raise UserError(f"'{override.input_line}' begins at {low:g}. Expected a number above 0 with the tag log.")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)
