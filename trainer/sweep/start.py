"""What a job of a sweep is started with: as a new run, as one that goes on, or not at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trainer.config.preflight import Job
from trainer.config.stored import FILE_NAME as RUN_CONFIG
from trainer.sweep.record import Sweep, SweepJob, is_complete, read_summary

CAN_GO_ON = (None, "interrupted", "paused", "unsaved")
"""Status in summary.json of a run that can be resumed; None where it was killed before it wrote one."""
PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
LABEL_LENGTH = 60


def is_done(sweep: Sweep, job: SweepJob) -> bool:
    """Return whether the run of a job is complete on disk, whatever the record says.

    Args:
        sweep: that it belongs to.
        job: of the sweep.
    """
    return is_complete(read_summary(sweep.run_directory(job)))


def job_arguments(sweep: Sweep, job: SweepJob, threads: int | None) -> list[str]:
    """Return the arguments of a job's process; a run that was interrupted goes on, one that failed begins anew.

    Args:
        sweep: that it belongs to.
        job: that is not done; it gets another run directory where its own is taken by a run that failed.
        threads: for trainer.threads; None where the config says it.
    """
    if resumed_path(job.overrides) is not None:
        return [*job.overrides, *sweep.flags]
    run = sweep.run_directory(job)
    if (run / RUN_CONFIG).is_file() and read_summary(run).get("status") in CAN_GO_ON:
        plugins = [each for each in job.overrides if each.startswith("plugins=")]
        return [f"resume={quoted(run)}", *plugins, *sweep.flags]
    if run.exists():
        job.run = _unused(sweep.directory, job.run)
    own = [] if threads is None else [f"trainer.threads={threads}"]
    return [*job.overrides, f"run_dir={quoted(sweep.run_directory(job))}", *own, *sweep.flags]


def added_threads(sweep: Sweep, checked: Job) -> int | None:
    """Return what trainer.threads shall be for a job; None where its config or the user has said it.

    Args:
        sweep: that the job belongs to.
        checked: the job.
    """
    said = checked.config["trainer"]["threads"] is not None
    typed = any(each.startswith("trainer.threads=") for each in checked.overrides)  # null for all cores
    return None if said or typed else sweep.threads


def resumed_path(overrides: Sequence[str]) -> str | None:
    """Return what resume= names among the overrides of a job; None for a new run.

    Args:
        overrides: one value each.
    """
    found = next((each.partition("=")[2] for each in overrides if each.startswith("resume=")), "null")
    return None if found == "null" else found.strip("'\"")


def run_name(number: int, own: Sequence[str]) -> str:
    """Return the name of a job's run directory, which is its name in TensorBoard, too.

    Args:
        number: of the job.
        own: its overrides that not all jobs of the sweep have.
    """
    parts = [f"{number:02}"]
    for override in own:
        key, _, value = override.partition("=")
        text = value if key == "recipe" else f"{key.rpartition('.')[2]}-{value}"
        parts.append(re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-"))
    return "_".join(parts)[:LABEL_LENGTH].rstrip("-_.")


def quoted(path: Path) -> str:
    """Return a path as a value on the command line, in quotes where it holds special characters.

    Args:
        path: any.
    """
    text = str(path)
    if PLAIN.fullmatch(text):
        return text
    # Hydra reads a backslash as itself, except before a quote.
    return "'" + re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'") + "'"


def _unused(directory: Path, name: str) -> str:
    base = re.sub(r"_try\d+$", "", name)
    tries = 2
    while (directory / f"{base}_try{tries}").exists():
        tries += 1
    return f"{base}_try{tries}"
